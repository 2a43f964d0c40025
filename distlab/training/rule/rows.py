"""A replica's rows of a batch: cut out of whole tensors, and put together again.

Outside of layers tensors are whole, the same on all replicas. In a layer they are own rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from distlab.training.keras_private import strategies
from distlab.training.keras_private.tensors import keep_with
from distlab.training.rule.current import current, run_collective
from distlab.training.rule.tensors import (
    as_kind,
    as_real,
    has_rows,
    is_differentiable,
    let_out,
    made_of,
    rows_in,
)

SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN

# Types that a collective of TensorFlow takes.
_SENT = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64, tf.string)


class Rows:
    """`count` rows of a replica, from `first` on, among the `size` of a batch.

    A replica for which no row is left computes one that doesn't count, since a convolution cannot
    take none: `length` is at least 1, and `start` is where those rows begin.
    """

    def __init__(self, size: tf.Tensor, first: tf.Tensor, count: tf.Tensor) -> None:
        self.context = tf.distribute.get_replica_context()
        self.replicas = replicas_of(self.context)
        self.replica = tf.convert_to_tensor(self.context.replica_id_in_sync_group)
        self.size, self.first, self.count = size, first, count
        self._divisor = tf.maximum(size, 1)  # a step may filter out every row
        self.start, self.length = tf.minimum(first, self._divisor - 1), tf.maximum(count, 1)
        self.share = tf.cast(count, tf.float64) / tf.cast(self._divisor, tf.float64)

    @classmethod
    def cut(cls, size: tf.Tensor) -> Rows:
        """A replica's rows of a batch that is whole: sizes differ by one at most."""
        context = tf.distribute.get_replica_context()
        replica, replicas = context.replica_id_in_sync_group, replicas_of(context)
        size = _unknown(size)
        first, end = share_of(replica, replicas, size)
        return cls(size, first, end - first)

    @classmethod
    def given(cls, count: tf.Tensor) -> Rows:
        """A replica's rows of a batch that came in parts, in the order of the replicas."""
        context = tf.distribute.get_replica_context()
        replica = context.replica_id_in_sync_group
        count = _unknown(count)
        place = tf.one_hot(replica, replicas_of(context), dtype=tf.int32)
        each = run_collective(context.all_reduce, SUM, place * count)
        return cls(tf.reduce_sum(each), tf.reduce_sum(each[:replica]), count)

    def if_any(self, value: tf.Tensor) -> tf.Tensor:
        """The value; zeros of a replica that has no row."""
        return tf.where(self.count > 0, value, tf.zeros_like(value))

    def scaled_share(self, value: tf.Tensor) -> tf.Tensor:
        """Own rows' part of the mean over replicas: of a number that is a mean, or of rows."""
        if value.shape.rank:
            return self.without_padding_row(value) * self.replicas
        return self.if_any(value * tf.cast(self.share * self.replicas, value.dtype))

    def total(self, value: tf.Tensor) -> tf.Tensor:
        """The sum over all replicas."""
        return run_collective(self.context.all_reduce, SUM, self.if_any(value))

    def mean(self, value: tf.Tensor) -> tf.Tensor:
        """The mean over all replicas; where all ask for the same, its gradient sends nothing."""
        step = current()

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def mean(value: tf.Tensor) -> Any:
            def back(asked: tf.Tensor) -> tf.Tensor:
                if step is not None and step.can_meet() and not step.differs(asked):
                    return asked
                return run_collective(self.context.all_reduce, MEAN, asked)

            # A constant where TensorFlow looks for variables: it would walk through all replicas.
            return run_collective(self.context.all_reduce, MEAN, tf.stop_gradient(value)), back

        return mean(value)

    def of_each(self, value: tf.Tensor) -> tf.Tensor:
        """The values of all replicas, in a stack: a sum, whose shape is always the same."""
        return run_collective(self.context.all_reduce, SUM, self.at_own_place(self.if_any(value)))

    def at_own_place(self, value: tf.Tensor) -> tf.Tensor:
        """A stack with a place for each replica, and zeros in those of the others."""
        places = tf.range(self.replicas) == self.replica
        places = tf.reshape(places, [-1, *[1] * value.shape.rank])
        return tf.where(places, value, tf.zeros_like(value))  # 0 times NaN would be NaN

    def without_padding_row(self, tree: Any) -> Any:
        """Own rows without the one that doesn't count."""
        return _each(
            tree, lambda part: part[: self.count * self.times(part)] if has_rows(part) else part
        )

    def own(self, tree: Any) -> Any:
        """Own rows of whole tensors."""
        return _each(tree, self._own)

    def whole(self, tree: Any, *, promise: bool = False) -> Any:
        """The rows of all replicas; as a promise, what is only gathered if anybody looks at it."""
        step = current()
        if step is None:
            return tree

        def whole(part: Any) -> Any:
            return let_out(self._whole(part, promise=promise))

        with step.on(step.rows):  # and in no layer: what is made here is not the layer's
            return _each(tree, whole)

    def labels(self, tree: Any) -> Any:
        """Own rows of what goes with outputs; an example may have several rows there."""
        return _each(
            tree,
            lambda part: (
                self._own(part, rows_in(part) // self._divisor) if has_rows(part) else part
            ),
        )

    def times(self, own: Any) -> Any:
        """How many rows of the tensor belong to one of the batch, where examples are flattened."""
        return rows_in(own) // self.length

    def _own(self, tensor: Any, times: Any = 1) -> Any:
        if not has_rows(tensor):
            return tensor
        rows, part = made_of(tensor)
        if rows is self and (hasattr(tensor, "_distlab_shape") or not tensor.dtype.is_floating):
            return part
        if rows is self:  # cut out of it, for a step may ask for its gradient
            times = rows_in(tensor) // self._divisor
        if isinstance(tensor, tf.SparseTensor):
            begin = tf.pad([tf.cast(self.start, tf.int64)], [[0, tensor.shape.rank - 1]])
            size = tf.concat([[tf.cast(self.length, tf.int64)], tensor.dense_shape[1:]], 0)
            return tf.sparse.slice(tensor, begin, size)
        with _where_slices_are_cheap(tensor):
            return tensor[self.start * times : (self.start + self.length) * times]

    def _whole(self, tensor: Any, *, promise: bool) -> Any:
        step = current()
        if not tf.is_tensor(tensor) or step is None:
            return tensor
        if tensor.shape.rank == 0:
            mean = tensor.dtype.is_floating
            return self.total(self.scaled_share(tensor) / self.replicas) if mean else tensor
        if not has_rows(tensor):
            return tensor
        if isinstance(tensor, tf.RaggedTensor):
            tensor = self.without_padding_row(tensor)
            values, lengths = map(self._gathered, (tensor.values, tensor.row_lengths()))
            return tf.RaggedTensor.from_row_lengths(values, lengths)
        if isinstance(tensor, tf.SparseTensor):
            tensor = tf.sparse.slice(
                tensor,
                tf.zeros_like(tensor.dense_shape),
                tf.concat([[tf.cast(self.count, tf.int64)], tensor.dense_shape[1:]], 0),
            )
            first = tf.pad([tf.cast(self.first, tf.int64)], [[0, tensor.shape.rank - 1]])
            places, values = self._gathered(tensor.indices + first), self._gathered(tensor.values)
            size = tf.concat([[tf.cast(self.size, tf.int64)], tensor.dense_shape[1:]], 0)
            return tf.SparseTensor(places, values, size)
        promise = promise and step.promises()
        times = self.times(tensor)
        place = self.first * times, (self.first + self.count) * times
        rows = tensor if promise else self.without_padding_row(tensor)
        whole = self._gathered(rows, place, promise=promise)
        whole.set_shape([None, *tensor.shape[1:]])
        if promise:
            step.note_promise(whole)
            sizes = tf.shape(tensor)[1:]
            whole._distlab_shape = lambda: tf.concat([[self.size * times], sizes], 0)
        with contextlib.suppress(AttributeError):
            whole._distlab_made_of = self, tensor
        step.alike.add(whole.ref())
        return whole

    def _put_together(self, rows: tf.Tensor) -> tf.Tensor:
        kind, rows = rows.dtype, as_real(rows)
        sent = rows.dtype if rows.dtype in _SENT else tf.int64
        sent = tf.float32 if rows.dtype.is_floating and rows.dtype not in _SENT else sent
        return as_kind(run_collective(self.context.all_gather, tf.cast(rows, sent), axis=0), kind)

    def asked_for_all(self, tree: Any) -> Any:
        """Whole tensors whose gradient is that of all rows, where it was asked of own ones."""

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def asked_for_all(tensor: tf.Tensor) -> Any:
            def back(asked: tf.Tensor) -> tf.Tensor:
                times = rows_in(asked) // self._divisor
                own = asked[self.first * times : (self.first + self.count) * times]
                return self._put_together(own) / tf.cast(self.replicas, asked.dtype)

            return tf.identity(tensor), back

        return _each(tree, lambda part: asked_for_all(part) if is_differentiable(part) else part)

    def _gathered(self, rows: tf.Tensor, place: Any = None, *, promise: bool = False) -> tf.Tensor:
        kind = rows.dtype

        def put_together(rows: tf.Tensor) -> tf.Tensor:
            if promise:
                return tf.raw_ops.Placeholder(dtype=kind, shape=[None, *rows.shape[1:]])
            return self._put_together(rows)

        if place is None or not (kind.is_floating or kind.is_complex):
            return put_together(rows)

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def gathered(rows: tf.Tensor) -> Any:
            def back(asked: Any) -> tf.Tensor:
                asked = as_real(tf.convert_to_tensor(asked))
                total = as_kind(run_collective(self.context.all_reduce, SUM, asked), kind)
                return total[place[0] : place[1]]

            # A constant where TensorFlow looks for variables: it would walk through all replicas.
            return put_together(tf.stop_gradient(rows)), back

        return gathered(rows)


def share_of(replica: Any, replicas: int, examples: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the first example of a replica, and the one behind its last."""
    size, more = examples // replicas, examples % replicas
    first = replica * size + tf.minimum(replica, more)
    return first, first + size + tf.cast(replica < more, examples.dtype)


def replicas_of(context: Any) -> int:
    """How many replicas there are, which a step doesn't know."""
    return strategies.replicas_of(context.strategy)


def all_gather(tensor: Any) -> Any:
    """Gathers the rows of the whole batch, in a layer that needs those of other replicas.

    In a layer of your own, tensors hold a replica's rows of the batch. If the layer needs all rows,
    as a loss over pairs of examples does, it asks for them here. Elsewhere, and without
    `distribute`, tensors are whole and come back as they are.

    Args:
        tensor: A tensor `[rows, ...]`, or a structure of them.

    Returns:
        `[rows of all replicas, ...]`, in the order of the batch. Gradients flow through it.

    Example:
        >>> import keras
        >>> class Center(keras.layers.Layer):
        ...     def call(self, rows):
        ...         return rows - keras.ops.mean(dl.all_gather(rows), axis=0)
        >>> def build():
        ...     model = keras.Sequential([keras.Input((1,)), Center()])
        ...     model.compile(loss="mse")
        ...     return model
        >>> strategy = dl.make_strategy("mirrored", devices=dl.split_devices(2))
        >>> rows = keras.ops.convert_to_tensor([[1.0], [2.0], [3.0], [6.0]])
        >>> centered = dl.distribute(build, strategy).predict(rows, verbose=0)
        >>> dl.show("minus the mean of all four", centered[:, 0])
        minus the mean of all four: [-2, -1, 0, 3]
    """
    step = current()
    return tensor if step is None or step.rows is None else step.rows.whole(tensor)


def _unknown(size: tf.Tensor) -> tf.Tensor:
    """A number that TensorFlow doesn't know before the step runs, and so has no shape of."""
    if tf.executing_eagerly():
        return size
    return tf.raw_ops.PlaceholderWithDefault(input=size, shape=[])


def _where_slices_are_cheap(tensor: Any) -> Any:
    """Cuts a batch before it goes to a GPU."""
    gpus = tf.config.list_logical_devices("GPU") if isinstance(tensor, tf.Tensor) else []
    return tf.device("CPU:0") if gpus else contextlib.nullcontext()


def _each(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Changes tensors, and in the same way the masks and logits that Keras keeps with them."""

    def changed(tensor: Any) -> Any:
        if isinstance(tensor, tf.experimental.ExtensionType):
            return tf.nest.map_structure(change, tensor, expand_composites=True)
        made = change(tensor)
        return tensor if made is tensor else keep_with(made, tensor, change)

    return tf.nest.map_structure(changed, tree)
