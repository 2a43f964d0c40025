"""Sums over the replicas, in a replica's function.

gradients = sum_over_replicas(after([loss], gradients))
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import tensorflow as tf


def sum_over_replicas(parts: list[Any]) -> list[Any]:
    """Returns the sums of what each replica gives, in order.

    Args:
        parts: Tensors, or slices of sparse ones, of any types. TensorFlow puts all in one message
            to the other workers, and that holds one type only.
    """
    context = tf.distribute.get_replica_context()
    of_dtype: dict[tf.DType, list[int]] = defaultdict(list)
    for index, part in enumerate(parts):
        of_dtype[part.dtype].append(index)
    sums = list(parts)
    for indices in of_dtype.values():
        together = [parts[index] for index in indices]
        together = context.all_reduce(tf.distribute.ReduceOp.SUM, together)
        for index, total in zip(indices, together, strict=True):
            merge = context.num_replicas_in_sync > 1 and has_distinct_rows(parts[index])
            sums[index] = _merged(total) if merge else total
    return sums


def has_distinct_rows(gradient: Any) -> bool:
    """Whether it is a sparse gradient whose rows TensorFlow has made distinct on this replica.

    Lookups of sparse inputs take each row once, and one device then has one slice for a row. The
    sum over replicas has one for each replica, and optimizers square slices one by one. In eager
    steps nothing tells where rows come from.

    Args:
        gradient: A tensor, or the slices of a sparse one.
    """
    if not isinstance(gradient, tf.IndexedSlices) or tf.executing_eagerly():
        return False
    rows = gradient.indices
    while rows.op.type in ("Reshape", "Identity", "Cast"):
        rows = rows.op.inputs[0]
    return bool(rows.op.type.startswith("Unique"))


def _merged(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """The same gradient, with one slice for each row."""
    rows, row_of_slice = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, row_of_slice, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def after(done: list[Any], gradients: list[Any]) -> list[Any]:
    """Returns the gradients, which no operation has before all of `done` is computed.

    An update must come after every read of the old value. Where a variable's gradient does not
    depend on its value (a factor of a loss), TensorFlow's graph optimizer loses that order: it
    takes the edge from the read to the update for one of two ways, and later removes the other
    (seen in TensorFlow 2.21; `dependency_optimization` is the pass). A loss depends on all that
    its model reads, so gradients that wait for it are safe.

    Args:
        done: Tensors, or operations.
        gradients: Tensors, or slices of sparse ones.
    """
    with tf.control_dependencies(done):
        return [tf.identity(gradient) for gradient in gradients]
