"""The global batches that both sides train on: read once, kept in memory, given out in order.

batches = read(data, steps=5)
batches.dataset()               # all of them
batches.single(0)               # a data set of the first one only
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from distlab.errors import DatasetError, InvalidArgument
from distlab.training.workers.exchanging import Workers


@dataclass(frozen=True, kw_only=True)
class Batches:
    """Global batches in memory.

    Attributes:
        elements: One structure of tensors a step, as the data set gave it.
        spec: The data set's description of an element.
        rereads_alike: Whether the data set gave the same batches when it was read again.
    """

    elements: tuple[Any, ...]
    spec: Any
    rereads_alike: bool = True

    def sizes(self) -> list[int]:
        """Returns how many examples each batch has."""
        return [int(tf.nest.flatten(element)[0].shape[0]) for element in self.elements]

    def dataset(self) -> tf.data.Dataset:
        """Returns a data set of all batches, in order."""
        sizes = self.sizes()
        if _alike(self.elements) and len(set(sizes[:-1])) <= 1 and sizes[-1] <= sizes[0]:
            # Batched as the user's was: of no fixed size, and shared out in the same way.
            joined = tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), *self.elements)
            return tf.data.Dataset.from_tensor_slices(joined).batch(sizes[0])
        first, *rest = [tf.data.Dataset.from_tensors(element) for element in self.elements]
        for more in rest:
            first = first.concatenate(more)
        return first

    def single(self, index: int) -> tf.data.Dataset:
        """Returns a data set of one batch."""
        return tf.data.Dataset.from_tensor_slices(self.elements[index]).batch(max(self.sizes()))

    def up_to(self, steps: int) -> Batches:
        """Returns the first batches."""
        return Batches(elements=self.elements[:steps], spec=self.spec)

    def reordered(self) -> Batches | None:
        """Returns the batches with the examples inside each in another order.

        In exact arithmetic a step on them is the same, where no step looks at a place in a batch.
        None where they cannot be reordered.
        """
        if not all(_indexable(part) for part in tf.nest.flatten(self.elements)):
            return None
        draw = np.random.default_rng(0)  # of its own: nobody's random numbers are used up
        elements = []
        for element, size in zip(self.elements, self.sizes(), strict=True):
            order = draw.permutation(size)
            elements.append(
                tf.nest.map_structure(lambda part, o=order: tf.gather(part, o), element)
            )
        return Batches(elements=tuple(elements), spec=self.spec)

    def in_equal_shares(self, replicas: int) -> Batches | None:
        """Returns full batches only, trimmed so that every replica gets as many examples."""
        sizes = self.sizes()
        share = max(sizes) // replicas * replicas
        if share == 0 or set(sizes) == {share}:
            return None
        kept = [
            tf.nest.map_structure(lambda part: part[:share], element)
            for element, size in zip(self.elements, sizes, strict=True)
            if size == max(sizes)
        ]
        return Batches(elements=tuple(kept), spec=self.spec)

    def with_shares_alike(self, replicas: int) -> Batches | None:
        """Returns batches that give every replica the same examples.

        What a replica computes from its own share (a mean, a count of masked steps) is then what
        one device computes from all. None where a batch has fewer examples than replicas.
        """
        shares = [size // replicas for size in self.sizes()]
        if 0 in shares:
            return None
        elements = [
            tf.nest.map_structure(lambda p, n=share: tf.concat([p[:n]] * replicas, 0), element)
            for element, share in zip(self.elements, shares, strict=True)
        ]
        return Batches(elements=tuple(elements), spec=self.spec)


def check_alike(batches: Batches, workers: Workers) -> None:
    """Raises where a worker reads other batches than the chief."""
    digest = hashlib.blake2b()
    for part in tf.nest.flatten(batches.elements, expand_composites=True):
        digest.update(np.asarray(part.numpy()).tobytes())
    told = workers.exchange([len(batches.elements), digest.hexdigest()])
    others = [name for name, one in zip(workers.names, told, strict=True) if one != told[0]]
    if others:
        raise DatasetError(
            asked=f"check_parity on {workers.count} workers",
            found=f"other batches on {others[0]} than on {workers.names[0]}",
            do="give all workers the same global batches, in the same order: shuffle with a seed, "
            "and let distribute share them out",
        )


def read(data: tf.data.Dataset, steps: int) -> Batches:
    """Reads batches into memory, twice, to see whether a second reading gives the same."""
    if not isinstance(data, tf.data.Dataset):
        raise InvalidArgument(
            asked=f"check_parity(build, {type(data).__name__}, strategy=strategy)",
            found="data that are no tf.data.Dataset",
            do="give global batches: tf.data.Dataset.from_tensor_slices((x, y)).batch(32)",
        )
    elements = tuple(data.take(steps))
    if not elements:
        raise DatasetError(
            asked="check_parity(build, data, strategy=strategy)",
            found="a data set without a batch",
            do="look at what filters it, or make it anew where a generator was used up",
        )
    if any(part.shape.rank == 0 for part in tf.nest.flatten(elements[0])):
        raise InvalidArgument(
            asked="check_parity(build, data, strategy=strategy)",
            found=f"a data set of single examples: {data.element_spec}",
            do="batch it, by the global batch size: data.batch(32)",
        )
    again = tuple(data.take(steps))
    alike = len(again) == len(elements) and all(map(_same, elements, again))
    return Batches(elements=elements, spec=data.element_spec, rereads_alike=alike)


def _indexable(part: Any) -> bool:
    return isinstance(part, tf.Tensor | tf.RaggedTensor)


def _alike(elements: tuple[Any, ...]) -> bool:
    """Whether the batches can be joined: dense, and the same but for the number of examples."""
    shapes = [
        [part.shape[1:] if isinstance(part, tf.Tensor) else None for part in tf.nest.flatten(one)]
        for one in elements
    ]
    return None not in shapes[0] and all(one == shapes[0] for one in shapes)


def _same(one: Any, other: Any) -> bool:
    pairs = zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True)
    return all(_same_part(a, b) for a, b in pairs)


def _same_part(a: Any, b: Any) -> bool:
    if isinstance(a, tf.Tensor):
        if a.dtype == tf.string:
            return bool(np.array_equal(a.numpy(), b.numpy()))
        return a.shape == b.shape and bool(a.numpy().tobytes() == b.numpy().tobytes())  # nan is nan
    parts = [tf.nest.flatten(part, expand_composites=True) for part in (a, b)]
    return all(_same_part(*pair) for pair in zip(*parts, strict=True))
