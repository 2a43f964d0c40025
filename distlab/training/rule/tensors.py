"""Tensors in a step: which of them have rows of the batch, and in which form they are sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from distlab.training.rule.current import current

# Operations whose result is the same for other numbers of the same shape.
OF_SHAPES = ("Shape", "ShapeN", "Size", "Rank")


def has_rows(tensor: Any) -> bool:
    """Whether a tensor has rows of the batch: their number is not known, or fits."""
    if not tf.is_tensor(tensor) or isinstance(tensor, tf.Variable) or tensor.shape.rank == 0:
        return False
    first, step = None if tensor.shape.rank is None else tensor.shape[0], current()
    if first is None:
        return True
    if step is None or step.rows is None:
        size = (step.known_size if step is not None else None) or 0
        return bool(size) and (first == size or (size > 1 and first % size == 0))
    return bool(tf.executing_eagerly() and first % int(step.rows.length) == 0)


def rows_in(tensor: Any) -> tf.Tensor:
    """The number of a tensor's rows, dense, ragged or sparse."""
    if isinstance(tensor, tf.RaggedTensor):
        return tensor.nrows(tf.int32)
    if isinstance(tensor, tf.SparseTensor):
        return tf.cast(tensor.dense_shape[0], tf.int32)
    return tf.shape(tensor)[0]


def made_of(tensor: Any) -> tuple[Any, Any]:
    """The `Rows`, and the replica's own, that a whole tensor was made of; None twice of others."""
    return getattr(tensor, "_distlab_made_of", (None, None))


def let_out(tree: Any) -> Any:
    """Returns tensors that leave a layer as they should: by its outputs or its losses."""
    for part in tf.nest.flatten(tree, expand_composites=True):
        if getattr(part, "_distlab_own", None) is not None:
            part._distlab_own = None
    return tree


def is_differentiable(tensor: Any) -> bool:
    """Whether a gradient may flow through a tensor with rows."""
    dense = isinstance(tensor, tf.Tensor) and has_rows(tensor)
    return dense and (tensor.dtype.is_floating or tensor.dtype.is_complex)


def counts_rows(tensor: Any) -> bool:
    """Whether a tensor without rows is made of their number."""

    def is_number(each: Any) -> bool:
        return each.op.type not in OF_SHAPES and each.dtype.is_integer

    return not has_rows(tensor) and any(
        any(map(has_rows, each.op.inputs))
        for each in ancestors(tensor, through=is_number)
        if each.op.type in OF_SHAPES and each.op.type != "Rank"
    )


def ancestors(tensor: Any, *, through: Callable[[Any], bool] | None = None) -> Iterator[Any]:
    """Yields a tensor and all that it is computed from; where `through` is false, no further."""
    waiting, seen = [tensor], set()
    while waiting:
        each = waiting.pop()
        if each.ref() in seen:
            continue
        seen.add(each.ref())
        yield each
        if through is None or through(each):
            waiting += each.op.inputs


def as_real(tensor: tf.Tensor) -> tf.Tensor:
    """A tensor that a collective takes: of a complex one, both parts, on an axis behind its own."""
    if not tensor.dtype.is_complex:
        return tensor
    return tf.stack([tf.math.real(tensor), tf.math.imag(tensor)], -1)


def as_kind(tensor: tf.Tensor, kind: tf.DType) -> tf.Tensor:
    """The tensor that `as_real` was given."""
    if not kind.is_complex:
        return tf.cast(tensor, kind)
    return tf.cast(tf.complex(tensor[..., 0], tensor[..., 1]), kind)
