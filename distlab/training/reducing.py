"""Sums over the replicas, in a replica's function.

gradients = sum_over_replicas(after([loss], gradients))
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Container
from typing import Any

import tensorflow as tf

# What to sum, and what makes a gradient of that sum.
_Part = tuple[Any, Callable[[Any], Any]]

_KEYS_OF_A_ROW = 2**32  # a key names a row and, of the slices of that row, one


def sum_over_replicas(parts: list[Any], *, alike: Container[int] = ()) -> list[Any]:
    """Returns the sums of what each replica gives, in order.

    Args:
        parts: Tensors, or slices of sparse ones, of any types. TensorFlow puts all in one message
            to the other workers, and that holds one type only.
        alike: Which of the parts, by index, are slices that one device has once for the whole
            batch, and every replica has as well.
    """
    context = tf.distribute.get_replica_context()
    # One device has the slices of each lookup of a table side by side, so they stay apart.
    lookups = [
        _lookups(part, alike=index in alike, replicas=context.num_replicas_in_sync)
        for index, part in enumerate(parts)
    ]
    flat = [one for several in lookups for one in several]
    of_dtype: dict[tf.DType, list[int]] = defaultdict(list)
    for index, (part, _) in enumerate(flat):
        of_dtype[part.dtype].append(index)
    sums = [part for part, _ in flat]
    for indices in of_dtype.values():
        together = [sums[index] for index in indices]
        together = context.all_reduce(tf.distribute.ReduceOp.SUM, together)
        for index, total in zip(indices, together, strict=True):
            sums[index] = flat[index][1](total)
    each = iter(sums)
    return [_joined([next(each) for _ in several]) for several in lookups]


def _lookups(gradient: Any, *, alike: bool, replicas: int) -> list[_Part]:
    """What to sum for each lookup of a table in a step, and what makes a gradient of that sum.

    Lookups of sparse inputs take each row once, and one device then has one slice for a row. The
    sum over replicas has one for each replica, and optimizers square slices one by one. In eager
    steps nothing tells where rows come from.
    """
    if not isinstance(gradient, tf.IndexedSlices) or replicas == 1:
        return [(gradient, _as_it_is)]
    several, distinct, is_known = [gradient.indices], [False], False
    if not tf.executing_eagerly():
        is_known = gradient.indices.shape.is_fully_defined()
        rows = _origin(gradient.indices)
        several = list(rows.op.inputs)[:-1] if rows.op.type == "ConcatV2" else [rows]
        distinct = [_origin(r).op.type.startswith(("Unique", "SparseSegment")) for r in several]
    if not any(distinct) and (is_known or not alike):
        return [_by_place(gradient) if alike else (gradient, _as_it_is)]
    sizes, count = [tf.size(rows) for rows in several], len(several)
    values = tf.split(gradient.values, sizes, num=count)
    indices = tf.split(gradient.indices, sizes, num=count)
    parts = zip(values, indices, distinct, strict=True)
    slices = [(tf.IndexedSlices(*part, gradient.dense_shape), once) for *part, once in parts]
    others = _by_row if alike else (lambda part: (part, _as_it_is))
    return [(part, _merged) if once else others(part) for part, once in slices]


def _by_place(gradient: tf.IndexedSlices) -> _Part:
    """As `_lookups`, of slices that are the same on every replica."""
    options = {"indices": gradient.indices, "dense_shape": gradient.dense_shape}
    return gradient.values, functools.partial(tf.IndexedSlices, **options)


def _by_row(gradient: tf.IndexedSlices) -> _Part:
    """As `_lookups`, adding the nth slice of a row to the nth slice of that row elsewhere.

    A replica may have fewer slices, such as those of positions up to its longest example.
    """
    rows = tf.cast(gradient.indices, tf.int64)
    order = tf.argsort(rows, stable=True)
    in_order = tf.gather(rows, order)
    numbers = tf.range(tf.size(rows)) - tf.searchsorted(in_order, in_order)
    numbers = tf.cast(tf.gather(numbers, tf.argsort(order)), tf.int64)
    keys = rows * _KEYS_OF_A_ROW + numbers

    def of_rows(total: tf.IndexedSlices) -> tf.IndexedSlices:
        merged = _merged(total)
        rows = tf.cast(merged.indices // _KEYS_OF_A_ROW, gradient.indices.dtype)
        return tf.IndexedSlices(merged.values, rows, gradient.dense_shape)

    return tf.IndexedSlices(gradient.values, keys, gradient.dense_shape), of_rows


def _as_it_is(total: Any) -> Any:
    return total


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
