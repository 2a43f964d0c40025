"""A global batch split over the replicas inside the step, where all replicas are on the CPU.

TensorFlow distributes a data set by an iterator for each device, which brings batches to a GPU
ahead of time. On logical CPUs there is nothing to bring: making these iterators, twice an epoch in
`fit`, costs as much as dozens of steps of a small model, and asking each of them for a batch
slows every step. There the data set stays whole, and a step cuts its batch into slices.
"""

from __future__ import annotations

import itertools
from typing import Any

import tensorflow as tf

from distlab.batching import split_batch
from distlab.strategy.describing import describe


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
    return dense and all(part.shape.rank for part in parts)


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
    """
    replicas = strategy.num_replicas_in_sync
    parts = tf.nest.flatten(batch)
    if any(isinstance(part, tf.distribute.DistributedValues) for part in parts):
        return batch, None
    parts = [as_tensor(part) for part in parts]
    examples = tf.shape(next(part for part in parts if part is not None))[0]
    if replicas == 1:
        return batch, examples

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
