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
    # One device has the slices of each lookup of a table side by side, so they stay apart.
    lookups = [_lookups(part) for part in parts]
    flat = [one for several in lookups for one in several]
    of_dtype: dict[tf.DType, list[int]] = defaultdict(list)
    for index, (part, _) in enumerate(flat):
        of_dtype[part.dtype].append(index)
    sums = [part for part, _ in flat]
    for indices in of_dtype.values():
        together = [sums[index] for index in indices]
        together = context.all_reduce(tf.distribute.ReduceOp.SUM, together)
        for index, total in zip(indices, together, strict=True):
            merge = context.num_replicas_in_sync > 1 and flat[index][1]
            sums[index] = _merged(total) if merge else total
    each = iter(sums)
    return [_joined([next(each) for _ in several]) for several in lookups]


def has_distinct_rows(gradient: Any) -> bool:
    """Whether TensorFlow has made rows of a sparse gradient distinct on this replica.

    Lookups of sparse inputs take each row once, and one device then has one slice for a row. The
    sum over replicas has one for each replica, and optimizers square slices one by one. In eager
    steps nothing tells where rows come from.

    Args:
        gradient: A tensor, or the slices of a sparse one.
    """
    return any(is_distinct for _, is_distinct in _lookups(gradient))


def _lookups(gradient: Any) -> list[tuple[Any, bool]]:
    """The slices of each lookup of a table in a step, and whether their rows are distinct."""
    if not isinstance(gradient, tf.IndexedSlices) or tf.executing_eagerly():
        return [(gradient, False)]
    rows = _origin(gradient.indices)
    several = list(rows.op.inputs)[:-1] if rows.op.type == "ConcatV2" else [rows]
    distinct = [_origin(r).op.type.startswith(("Unique", "SparseSegment")) for r in several]
    if len(several) == 1 or not any(distinct):
        return [(gradient, any(distinct))]
    sizes, count = [tf.size(rows) for rows in several], len(several)
    values = tf.split(gradient.values, sizes, num=count)
    indices = tf.split(gradient.indices, sizes, num=count)
    parts = zip(values, indices, strict=True)
    slices = [tf.IndexedSlices(*part, gradient.dense_shape) for part in parts]
    return list(zip(slices, distinct, strict=True))


def _origin(rows: tf.Tensor) -> tf.Tensor:
    """The row numbers before they were cast, flattened, or counted from the end of the table."""
    while rows.op.type in ("Reshape", "Identity", "Cast", "SelectV2"):
        # Keras selects between the numbers counted from the end and, last, those that were given.
        rows = rows.op.inputs[-1 if rows.op.type == "SelectV2" else 0]
    return rows


def _joined(several: list[Any]) -> Any:
    if len(several) == 1:
        return several[0]
    values, rows = [one.values for one in several], [one.indices for one in several]
    return tf.IndexedSlices(tf.concat(values, 0), tf.concat(rows, 0), several[0].dense_shape)


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
