"""A global batch split over the replicas inside the step, where all replicas are on the CPU.

TensorFlow distributes a data set by an iterator for each device, which brings batches to a GPU
ahead of time. On logical CPUs there is nothing to bring: making these iterators, twice an epoch in
`fit`, costs as much as dozens of steps of a small model, and asking each of them for a batch
slows every step. There the data set stays whole, and a step cuts its batch into slices.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from distlab.batching import split_batch
from distlab.errors import DatasetError
from distlab.strategy.describing import describe

_UNEQUAL = "distlab: the parts of a batch have different first dimensions"
_MESSAGE = re.compile(rf"\[{_UNEQUAL}\] \[([\d ]+)\]")


def splits(strategy: tf.distribute.Strategy) -> bool:
    """Whether batches are to be split in the step: one process, replicas on CPUs only.

    Args:
        strategy: A strategy.
    """
    kind = describe(strategy).kind
    if kind == "default":
        return True  # nothing to split, and no devices to ask for
    if kind not in ("one_device", "mirrored", "central_storage", "multi_worker"):
        return False
    devices = strategy.extended.worker_devices
    return all(tf.DeviceSpec.from_string(device).device_type == "CPU" for device in devices)


def can_be_split(element_spec: Any) -> bool:
    """Whether every part of a batch has examples along its first dimension, to slice there.

    Args:
        element_spec: What a data set says of its batches.
    """
    parts = tf.nest.flatten(element_spec)
    dense = all(isinstance(part, tf.TensorSpec | tf.RaggedTensorSpec) for part in parts)
    if not dense or not all(part.shape.rank for part in parts):
        return False
    return len({part.shape[0] for part in parts} - {None}) <= 1


def check_parts(batch: Any, replicas: int) -> None:
    """Raises if the known shapes of a batch show a part that does not have a row per example.

    Args:
        batch: Tensors or specs, or a structure of them; what has no shape is left alone.
        replicas: Among how many the batch is divided. One replica takes the batch as it is.

    Raises:
        DatasetError: A part has no first dimension, or one that differs from those of the others.
    """
    shapes = [getattr(part, "shape", None) for part in tf.nest.flatten(batch)]
    known = [one for one in shapes if isinstance(one, tf.TensorShape) and one.rank is not None]
    if replicas == 1:
        return
    if any(shape.rank == 0 for shape in known):
        raise _indivisible("a part of shape (), which has no examples", replicas)
    if len({shape[0] for shape in known} - {None}) > 1:
        raise _unequal([str(shape[0]) for shape in known], replicas)


@contextlib.contextmanager
def parts_explained(replicas: int) -> Iterator[None]:
    """Inside the block, parts of a batch that turn out to be unequal in a step are explained.

    Args:
        replicas: Among how many the batch is divided.

    Raises:
        DatasetError: The parts have different first dimensions.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        found = _MESSAGE.search(str(error.message))
        if found is None:
            raise
        raise _unequal(found[1].split(), replicas) from error


def _unequal(rows: list[str], replicas: int) -> DatasetError:
    return _indivisible(f"parts whose first dimensions are {', '.join(rows)}", replicas)


def _indivisible(found: str, replicas: int) -> DatasetError:
    return DatasetError(
        asked=f"divide a batch among {replicas} replicas",
        found=found,
        do="give each part of a batch one row for each example: call batch() on the data set, and "
        "keep what all examples share in the model, as a constant or a non-trainable weight",
    )


def split(
    strategy: tf.distribute.Strategy, batch: Any, *, pad: bool = False
) -> tuple[Any, tf.Tensor | None]:
    """Returns a slice of the batch for each replica, in order; sizes differ by 1 at most.

    Args:
        strategy: The strategy that runs the step.
        batch: Tensors, or a structure of them; already distributed values stay as they are.
        pad: Whether a replica for which no example is left gets the last one, for operations
            that cannot take an empty batch. By `share_of` it knows that it has none.

    Returns:
        What to give to `strategy.run`, and how many examples the batch has: None where the
        values came distributed.

    Raises:
        DatasetError: The parts have different first dimensions. If their shapes are known only when
            the step runs, the step fails, and `parts_explained` raises this error.
    """
    replicas = strategy.num_replicas_in_sync
    parts = tf.nest.flatten(batch)
    if any(isinstance(part, tf.distribute.DistributedValues) for part in parts):
        each = (strategy.experimental_local_results(part) for part in parts if part is not None)
        for of_replica in zip(*each, strict=False):
            _assert_equal_rows(list(of_replica))
        return batch, None
    parts = [as_tensor(part) for part in parts]
    examples = tf.shape(next(part for part in parts if part is not None))[0]
    if replicas == 1:
        return batch, examples
    check_parts(parts, replicas)
    _assert_equal_rows(parts)

    def slice_of(context: tf.distribute.ValueContext) -> Any:
        first, end = share_of(context.replica_id_in_sync_group, replicas, examples)
        if pad:
            first = tf.minimum(first, examples - 1)
            end = tf.maximum(end, first + 1)
        slices = [None if part is None else part[first:end] for part in parts]
        return tf.nest.pack_sequence_as(batch, slices)

    return strategy.experimental_distribute_values_from_function(slice_of), examples


def as_tensor(part: Any) -> Any:
    """Returns an array of `train_on_batch` as a tensor, and any other part of a batch as it is.

    Args:
        part: A tensor, an array, a distributed value or None.
    """
    ready = part is None or tf.is_tensor(part)
    if ready or isinstance(part, tf.distribute.DistributedValues):
        return part
    return tf.convert_to_tensor(part)


def _assert_equal_rows(parts: list[Any]) -> None:
    dense = [part for part in parts if isinstance(part, tf.Tensor | tf.RaggedTensor)]
    if len(dense) < 2 or all(part.shape[0] is not None for part in dense):
        return
    rows = tf.stack([tf.cast(tf.shape(part)[0], tf.int64) for part in dense])
    same = tf.reduce_all(tf.equal(rows, rows[0]))
    tf.raw_ops.Assert(condition=same, data=[_UNEQUAL, rows], summarize=len(dense))


def at_least_one(batch: Any) -> Any:
    """Returns a batch without an example with one of zeros, and any other as it is.

    Args:
        batch: One replica's part of a batch. Parts that are not dense stay empty.
    """

    def filled(part: Any) -> Any:
        if not isinstance(part, tf.Tensor) or not part.shape.rank:
            return part
        shape = tf.shape(part)
        missing = tf.maximum(1 - shape[:1], 0)
        return tf.concat([part, tf.zeros(tf.concat([missing, shape[1:]], 0), part.dtype)], 0)

    return tf.nest.map_structure(filled, batch)


def share_of(replica: Any, replicas: int, examples: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the first example of a replica, and the one behind its last.

    Args:
        replica: Its number, from 0.
        replicas: How many there are.
        examples: How many examples the batch has.
    """
    size, more = examples // replicas, examples % replicas
    first = replica * size + tf.minimum(replica, more)
    return first, first + size + tf.cast(replica < more, examples.dtype)


def cut(examples: int, replicas: int) -> list[tuple[int, int]]:
    """Returns where each replica's share of a batch begins and ends.

    Args:
        examples: How many examples the batch has.
        replicas: Among how many it is shared.
    """
    shares = split_batch(examples, replicas, source="distribute")
    return list(itertools.pairwise([0, *itertools.accumulate(shares)]))
