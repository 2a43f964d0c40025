"""A global batch split over the replicas inside the step, where all replicas are on the CPU.

TensorFlow distributes a data set by an iterator for each device, which brings batches to a GPU
ahead of time. On logical CPUs there is nothing to bring: making these iterators, twice an epoch in
`fit`, costs as much as dozens of steps of a small model, and asking each of them for a batch
slows every step. There the data set stays whole, and a step cuts its batch into slices.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from distlab.strategy.describing import describe


def splits(strategy: tf.distribute.Strategy) -> bool:
    """Whether batches are to be split in the step: one process, replicas on CPUs only.

    Args:
        strategy: A strategy.
    """
    kind = describe(strategy).kind
    if kind == "default":
        return True  # nothing to split, and no devices to ask for
    if kind not in ("one_device", "mirrored", "central_storage"):
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


def split(strategy: tf.distribute.Strategy, batch: Any) -> Any:
    """Returns a slice of the batch for each replica: pieces of ceil(n / replicas), in order.

    This is how tf.distribute splits a batch that comes from memory: 10 examples on 4 replicas are
    3, 3, 3 and 1.

    Args:
        strategy: The strategy that runs the step.
        batch: Tensors, or a structure of them; already distributed values stay as they are.
    """
    replicas = strategy.num_replicas_in_sync
    parts = tf.nest.flatten(batch)
    if replicas == 1 or any(isinstance(part, tf.distribute.DistributedValues) for part in parts):
        return batch
    parts = [tf.convert_to_tensor(p) if not tf.is_tensor(p) else p for p in parts]
    size = -(-tf.shape(parts[0])[0] // replicas)

    def slice_of(context: tf.distribute.ValueContext) -> Any:
        index = context.replica_id_in_sync_group
        return tf.nest.pack_sequence_as(
            batch, [part[index * size : (index + 1) * size] for part in parts]
        )

    return strategy.experimental_distribute_values_from_function(slice_of)
