"""A global batch split over the replicas inside the step, where all replicas are on the CPU.

TensorFlow distributes a data set by an iterator for each device, which brings batches to a GPU
ahead of time. On logical CPUs there is nothing to bring: making these iterators, twice an epoch in
`fit`, costs as much as dozens of steps of a small model, and asking each of them for a batch
slows every step. There the data set stays whole, and a step cuts its batch into slices.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from distlab.errors import DatasetError
from distlab.strategy.describing import describe

_UNEQUAL = "distlab: the parts of a batch have different first dimensions"
_MESSAGE = re.compile(rf"\[{_UNEQUAL}\] \[([\d ]+)\]")


def splits(strategy: tf.distribute.Strategy) -> bool:
    """Whether batches are to be split in the step: one process, replicas on CPUs only."""
    kind = describe(strategy).kind
    if kind == "default":
        return True  # nothing to split, and no devices to ask for
    if kind not in ("one_device", "mirrored", "central_storage", "multi_worker"):
        return False
    devices = strategy.extended.worker_devices
    return all(tf.DeviceSpec.from_string(device).device_type == "CPU" for device in devices)


def can_be_split(element_spec: Any) -> bool:
    """Whether every part of a batch has examples along its first dimension, to slice there."""
    parts = tf.nest.flatten(element_spec)
    dense = all(isinstance(part, tf.TensorSpec | tf.RaggedTensorSpec) for part in parts)
    if not dense or not all(part.shape.rank for part in parts):
        return False
    return len({part.shape[0] for part in parts} - {None}) <= 1


def check_parts(batch: Any, replicas: int) -> None:
    """Raises if the known shapes of a batch show a part that does not have a row per example."""
    shapes = {
        _name_of(path): part.shape
        for path, part in keras.tree.flatten_with_path(batch)
        if isinstance(getattr(part, "shape", None), tf.TensorShape)
    }
    known = {name: shape for name, shape in shapes.items() if shape.rank is not None}
    if replicas == 1:
        return
    if single := [name for name, shape in known.items() if shape.rank == 0]:
        raise _indivisible(f"{single[0]} of shape (), which has no examples", replicas)
    if len({shape[0] for shape in known.values()} - {None}) > 1:
        raise _unequal([f"{shape[0]} ({name})" for name, shape in known.items()], replicas)


def _name_of(path: tuple[Any, ...]) -> str:
    """What a part of a batch is called, as in "inputs['age']"."""
    first, *keys = path or (0,)
    if not isinstance(first, int):
        first, keys = 0, list(path)
    name = ("inputs", "targets", "sample weights")[first] if first < 3 else f"part {first}"
    return name + "".join(f"[{key!r}]" for key in keys)


@contextlib.contextmanager
def parts_explained(replicas: int) -> Iterator[None]:
    """Inside the block, parts of a batch that turn out to be unequal in a step are explained."""
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


def check_batch(batch: Any, replicas: int) -> None:
    """Raises, or lets the step fail, where parts of a batch do not have as many rows."""
    parts = [part for part in tf.nest.flatten(batch) if part is not None]
    if not any(isinstance(part, tf.distribute.DistributedValues) for part in parts):
        check_parts(parts, replicas)
        _assert_equal_rows(parts)
        return
    for of_replica in zip(*(getattr(part, "values", [part]) for part in parts), strict=False):
        _assert_equal_rows(list(of_replica))


def _assert_equal_rows(parts: list[Any]) -> None:
    dense = [part for part in parts if isinstance(part, tf.Tensor | tf.RaggedTensor)]
    if len(dense) < 2 or all(part.shape[0] is not None for part in dense):
        return
    rows = tf.stack([tf.cast(tf.shape(part)[0], tf.int64) for part in dense])
    same = tf.reduce_all(tf.equal(rows, rows[0]))
    tf.raw_ops.Assert(condition=same, data=[_UNEQUAL, rows], summarize=len(dense))


def share_of(replica: Any, replicas: int, examples: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the first example of a replica, and the one behind its last."""
    size, more = examples // replicas, examples % replicas
    first = replica * size + tf.minimum(replica, more)
    return first, first + size + tf.cast(replica < more, examples.dtype)
