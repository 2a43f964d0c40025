"""A replica's rows of a batch, and the step that it is in.

Outside of layers tensors are whole, the same on all replicas. In a layer they are own rows.
`Rows` cuts the one out of the other and puts it together again; `current()` says where we are.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from distlab.training.rule.refusal import refusal

SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN

# The attribute of a model that says whose rows its BatchNormalization takes statistics of.
BATCH_NORM = "_distlab_batch_norm"

# Types that a collective of TensorFlow takes.
_SENT = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64, tf.string)

# Operations whose result is the same for other numbers of the same shape.
_OF_SHAPES = ("Shape", "ShapeN", "Size", "Rank")

# Replicas are traced in turns, each in a thread of its own.
_NOW = threading.local()


def current() -> Step | None:
    """The step that this thread is in, None outside of one."""
    return getattr(_NOW, "step", None)


@contextlib.contextmanager
def in_step(step: Step) -> Iterator[Step]:
    """Inside the block, in a replica's function, layers and losses go by the step."""
    before, _NOW.step = current(), step
    try:
        yield step
    finally:
        _NOW.step = before


def meet(collective: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a collective returns; what layers keep on themselves stays this replica's.

    Replicas are traced in turns, which change at each collective, and share their layers. So in
    `self.hidden = ...`, then a collective, `self.hidden` would be that of the last replica.
    """
    step = current()
    if step is None:
        return collective(*args, **kwargs)
    if step.in_loop:
        raise refusal(
            step,
            "rows that are put together in tf.vectorized_map or a jacobian, where replicas cannot "
            "wait for each other",
            "call layers outside of it",
        )
    layers = [step.model, *step.called.values()]
    kept = [(vars(layer), dict(vars(layer))) for layer in layers]
    lists = {
        id(value): (value, list(value))
        for _, own in kept
        for value in own.values()
        if type(value) is list
    }
    before, step.is_meeting = step.is_meeting, True
    try:
        result = collective(*args, **kwargs)
    finally:
        step.is_meeting = before
    for now, own in kept:
        kept_names = (name for name in own if not name.startswith("_distlab"))
        now.update({name: own[name] for name in kept_names if now.get(name) is not own[name]})
    for value, own_items in lists.values():
        value[:] = own_items
    return result


class Rows:
    """`count` rows of a replica, from `first` on, among the `size` of a batch.

    A replica for which no row is left computes one that doesn't count, since a convolution cannot
    take none: `length` is at least 1, and `start` is where those rows begin.
    """

    def __init__(self, size: tf.Tensor, first: tf.Tensor, count: tf.Tensor) -> None:
        self.context = tf.distribute.get_replica_context()
        self.replicas = replicas_of(self.context)
        self.size, self.first, self.count = size, first, count
        self.start, self.length = tf.minimum(first, size - 1), tf.maximum(count, 1)
        self.share = tf.cast(count, tf.float64) / tf.cast(size, tf.float64)

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
        each = meet(context.all_reduce, SUM, place * count)
        return cls(tf.reduce_sum(each), tf.reduce_sum(each[:replica]), count)

    def if_any(self, value: tf.Tensor) -> tf.Tensor:
        """The value; zeros of a replica that has no row."""
        return tf.where(self.count > 0, value, tf.zeros_like(value))

    def part(self, value: tf.Tensor) -> tf.Tensor:
        """What own rows add to the mean over replicas: by a number that is a mean, or by rows."""
        if value.shape.rank:
            return self.real(value) * self.replicas
        return self.if_any(value * tf.cast(self.share * self.replicas, value.dtype))

    def total(self, value: tf.Tensor) -> tf.Tensor:
        """The sum over all replicas."""
        return meet(self.context.all_reduce, SUM, self.if_any(value))

    def mean(self, value: tf.Tensor) -> tf.Tensor:
        """The mean over all replicas; where all ask for the same, its gradient sends nothing."""
        step = current()

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def mean(value: tf.Tensor) -> Any:
            def back(asked: tf.Tensor) -> tf.Tensor:
                if step is not None and step.can_meet() and not step.differs(asked):
                    return asked
                return meet(self.context.all_reduce, MEAN, asked)

            # A constant where TensorFlow looks for variables: it would walk through all replicas.
            return meet(self.context.all_reduce, MEAN, tf.stop_gradient(value)), back

        return mean(value)

    def of_each(self, value: tf.Tensor) -> tf.Tensor:
        """The values of all replicas, in a stack: a sum, whose shape is always the same."""
        return meet(self.context.all_reduce, SUM, self.at_own_place(self.if_any(value)))

    def at_own_place(self, value: tf.Tensor) -> tf.Tensor:
        """A stack with a place for each replica, and zeros in those of the others."""
        places = tf.range(self.replicas) == self.context.replica_id_in_sync_group
        places = tf.reshape(places, [-1, *[1] * value.shape.rank])
        return tf.where(places, value, tf.zeros_like(value))  # 0 times NaN would be NaN

    def real(self, tree: Any) -> Any:
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
            return step.let_out(self._whole(part, promise=promise))

        with step.on(step.rows):  # and in no layer: what is made here is not the layer's
            return _each(tree, whole)

    def labels(self, tree: Any) -> Any:
        """Own rows of what goes with outputs; an example may have several rows there."""
        return _each(
            tree,
            lambda part: self._own(part, _rows_in(part) // self.size) if has_rows(part) else part,
        )

    def times(self, own: Any) -> Any:
        """How many rows of the tensor belong to one of the batch, where examples are flattened."""
        return _rows_in(own) // self.length

    def _own(self, tensor: Any, times: Any = 1) -> Any:
        if not has_rows(tensor):
            return tensor
        rows, part = made_of(tensor)
        if rows is self and (hasattr(tensor, "_distlab_shape") or not tensor.dtype.is_floating):
            return part
        if rows is self:  # cut out of it, for a step may ask for its gradient
            times = _rows_in(tensor) // self.size
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
            return self.total(self.part(tensor) / self.replicas) if mean else tensor
        if not has_rows(tensor):
            return tensor
        if isinstance(tensor, tf.RaggedTensor):
            tensor = self.real(tensor)
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
        rows = tensor if promise else self.real(tensor)
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
        return as_kind(meet(self.context.all_gather, tf.cast(rows, sent), axis=0), kind)

    def asked_for_all(self, tree: Any) -> Any:
        """Whole tensors whose gradient is that of all rows, where it was asked of own ones."""

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def asked_for_all(tensor: tf.Tensor) -> Any:
            def back(asked: tf.Tensor) -> tf.Tensor:
                times = _rows_in(asked) // self.size
                own = asked[self.first * times : (self.first + self.count) * times]
                return self._put_together(own) / tf.cast(self.replicas, asked.dtype)

            return tf.identity(tensor), back

        return _each(tree, lambda part: asked_for_all(part) if _has_gradient(part) else part)

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
                total = as_kind(meet(self.context.all_reduce, SUM, asked), kind)
                return total[place[0] : place[1]]

            # A constant where TensorFlow looks for variables: it would walk through all replicas.
            return put_together(tf.stop_gradient(rows)), back

        return gathered(rows)


class Step:
    """One step on one replica, while it is traced.

    Args:
        model: The model whose step it is.
        batch: A whole batch, or this replica's part of one.
        in_parts: Whether it is a part.
        own_losses: Whether losses may be parts of the replica's, whose mean over replicas counts:
            Keras's own step only adds and scales them.
        needed: The numbers of the outputs that are put together; of all others it is only promised,
            since nobody was seen to look at them but layers, losses and metrics that take own rows.
            None: of all. `looked_at` says which promises must be kept: trace the step again.
        finite: What fails, before gradients are used, where one of these losses is not finite.
        shared: What the replicas of this process share (`rule.operations`).

    Attributes:
        data: The batch as the step gets it.
        rows: Those of the layer that runs, None outside of layers.
        layer: The innermost layer that runs.
        running: All layers that run, the innermost last, and the graph that each was called in.
        called: Layers that run or have run, by their ids.
        in_loop: Whether what is made is the body of a loop that has no graph of its own.
        is_meeting: Whether a collective of distlab's own is made.
        cut: The layer that gets the whole batch within one that has own rows, and gives back these.
        has_doors: Whether a layer has computed with own rows, and may have kept some of them.
        mark: Where it, or a loss or a metric, was called, if it is to be seen whether it looks at
            other rows.
        batch_norm: Whose rows BatchNormalization takes statistics of, "global" or "replica".
        own_statistics: BatchNormalization layers that took those of a replica.
        again: Whether a layer, loss or metric was seen to look at other rows: trace it again.
    """

    def __init__(
        self,
        model: keras.Model,
        batch: Any,
        *,
        in_parts: bool = False,
        own_losses: bool = False,
        needed: set[int] | None = None,
        finite: Callable[[tf.Tensor], list[Any]] | None = None,
        shared: Any = None,
    ) -> None:
        self.shared: Any = None if tf.executing_eagerly() else shared
        self.called: dict[int, Any] = {}
        self.is_meeting = self.has_doors = self.in_loop = False
        self.cut: Any = None
        self.model, self.own_losses, self.needed, self.finite = model, own_losses, needed, finite
        first = next(part for part in tf.nest.flatten(batch) if part is not None)
        self.batch_norm = vars(model).get(BATCH_NORM, "global")
        self.own_statistics: list[keras.layers.Layer] = []
        # What tracks losses that replicas may have parts of.
        compiled = None if model._compile_loss is None else model._compile_loss.metrics
        self.of_parts = [model._loss_tracker, *(compiled or ())] if own_losses else []
        self.rows: Rows | None = None
        self.layer: Any = None
        self.running: list[tuple[Any, Any]] = []
        self.mark: Any = None
        self.again = self.backward = False
        self.losses: dict[int, list[tf.Tensor]] = {}  # what layers gave to add_loss, by layer
        self.alike: set[Any] = set()  # tensors that are the same on all replicas
        self.graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        self._promised: dict[int, tf.Tensor] = {}
        self._outputs = -1
        self._seen: set[int] = set()
        self._bounds: set[Any] = set()  # tensors that differ from replica to replica
        # The number of rows if it is known before the step runs.
        self.known_size = None if in_parts else first.shape[0]
        with in_step(self):
            self.batch = Rows.given(_rows_in(first)) if in_parts else Rows.cut(_rows_in(first))
            self._bound(self.batch)
            self.data = batch
            given = tf.nest.flatten(batch, expand_composites=True)
            self._data = {part.ref() for part in given if tf.is_tensor(part)}
            if in_parts:
                filled = tf.nest.map_structure(_at_least_one_row, batch)
                own = tf.nest.flatten(filled, expand_composites=True)
                self._bounds |= {part.ref() for part in own if tf.is_tensor(part)}
                with self.on(self.batch):
                    self.data = self.batch.whole(filled, promise=True)
        # Own rows count `replicas` times in a replica's gradient, until the mean. So that float16
        # overflows no sooner than on one device, gradients begin as many times smaller.
        halves = any(layer.compute_dtype == "float16" for layer in model._flatten_layers())
        self.smaller = 2 ** math.ceil(math.log2(self.batch.replicas)) if halves else 1

    @contextlib.contextmanager
    def on(self, rows: Rows | None, layer: Any = None) -> Iterator[None]:
        """Inside the block tensors have these rows, in a layer or in none."""
        before, self.rows, self.layer = (self.rows, self.layer), rows, layer
        try:
            yield
        finally:
            self.rows, self.layer = before

    @contextlib.contextmanager
    def in_loss(self) -> Iterator[None]:
        """Inside the block, in a loss of the whole batch, losses are numbers of the whole batch."""
        before, self.own_losses = self.own_losses, False
        try:
            yield
        finally:
            self.own_losses = before

    def can_meet(self) -> bool:
        """Whether replicas can exchange tensors: not in a loop or a condition, and not eagerly."""
        if self.in_loop:
            return False
        return self.graph is not None and tf.compat.v1.get_default_graph() is self.graph

    def rows_of(self, tree: Any) -> Rows | None:
        """The replica's rows of a call's arguments; None if nothing in them has any."""
        tensors = [part for part in tf.nest.flatten(tree) if has_rows(part)]
        known = [rows for rows, _ in map(made_of, tensors) if rows is not None]
        if known or not tensors:
            return known[0] if known else None
        sizes = [_rows_in(part) for part in tensors]
        for size in sizes[1:]:
            tf.debugging.assert_equal(size, sizes[0], "a layer's inputs differ in their rows")
        rows = Rows.cut(sizes[0])
        self._bound(rows)
        return rows

    def has_rows_of_data(self, tree: Any) -> bool:
        """Whether all that is taken for rows is made of the batch, and not only of its size.

        A constant with as many rows may be a state for each example, or a mask with another axis
        of that length.
        """
        parts = [part for part in tf.nest.flatten(tree) if has_rows(part)]
        return all(
            part.shape.rank is None or part.shape[0] is None or self._is_data(part)
            for part in parts
        )

    def _is_data(self, tensor: Any) -> bool:
        waiting, seen = [tensor], set()
        while waiting:
            each = waiting.pop()
            if each.ref() in self._data or each.ref() in self.alike:
                return True
            if each.ref() not in seen:
                seen.add(each.ref())
                waiting += each.op.inputs
        return False

    def made_of(self, tree: Any) -> Rows | None:
        """The rows that all of these tensors were made of; None if some were not, or of others."""
        rows = {
            id(each): each for each, _ in map(made_of, tf.nest.flatten(tree)) if each is not None
        }
        some = [part for part in tf.nest.flatten(tree) if has_rows(part)]
        complete = all(made_of(part)[0] is not None for part in some)
        return next(iter(rows.values())) if len(rows) == 1 and complete else None

    def give_whole_batch(self, layer: Any) -> None:
        """Lets the step be traced again, with the whole batch for a layer that asks for it.

        Rows cannot be put together in a loop or a condition, so there it is the layer that has it.
        """
        if not self.can_meet():
            outer = [each for each, graph in self.running if graph is self.graph]
            layer = outer[-1] if outer else layer
        if layer is not None:
            vars(layer)["_distlab_sees_whole"] = self.again = True

    def keep_in_layer(self, tensors: Any) -> None:
        """Notes that a layer has computed these with own rows."""
        self.has_doors = True
        for tensor in tensors:
            if tensor.dtype not in (tf.resource, tf.variant):
                tensor._distlab_own = self.rows

    def let_out(self, tree: Any) -> Any:
        """Notes that these leave a layer as they should, and returns them."""
        for part in tf.nest.flatten(tree, expand_composites=True):
            if getattr(part, "_distlab_own", None) is not None:
                part._distlab_own = None
        return tree

    def through_door(self, tensor: Any) -> Any:
        """All rows of a tensor that a layer computed with own rows and did not return as one."""
        rows = getattr(tensor, "_distlab_own", None)
        if rows is None:
            return tensor
        if not hasattr(tensor, "_distlab_whole"):
            with self.on(rows):
                tensor._distlab_whole = self._all_rows(rows, tensor)
        return tensor._distlab_whole

    def check_sources(self, sources: Any) -> None:
        """Raises where a gradient is asked for that has own rows."""
        if any(
            getattr(part, "_distlab_own", None) is not None for part in tf.nest.flatten(sources)
        ):
            raise refusal(
                self,
                "the gradient of a tensor that a layer has kept",
                "return the tensor from the layer's call()",
            )

    def _all_rows(self, rows: Rows, tensor: Any) -> Any:
        if rows.context is not self.batch.context:
            found = "a tensor that a layer has kept on another replica"
        elif not self.can_meet():
            found = "a tensor that a layer has kept, in a loop or a condition"
        elif counts_rows(tensor):
            found = "a number of rows that a layer has kept, which are a replica's own there"
        else:
            return rows.whole(tensor)
        raise refusal(self, found, "return it from the layer's call()")

    def promises(self) -> bool:
        """Whether the next output is a promise."""
        self._outputs += 1
        kept = self.needed is None or self._outputs in self.needed
        return not kept and not tf.executing_eagerly()

    def note_promise(self, whole: tf.Tensor) -> None:
        """Keeps a promise in mind, until the step is traced."""
        self._promised[self._outputs] = whole

    def look_at(self, tree: Any) -> None:
        """Notes tensors that are looked at without an operation."""
        refs = {part.ref() for part in tf.nest.flatten(tree) if hasattr(part, "_distlab_shape")}
        self._seen |= {key for key, whole in self._promised.items() if whole.ref() in refs}

    def looked_at(self) -> set[int]:
        """The promises that somebody looked at."""
        return self._seen | {key for key, whole in self._promised.items() if whole.consumers()}

    def differs(self, tensor: tf.Tensor) -> bool:
        """Whether replicas may have different values, for they come of own rows."""
        waiting, seen = [tensor], set()
        while waiting:
            each = waiting.pop()
            if each.ref() in self._bounds:
                return True
            if each.ref() in seen or each.ref() in self.alike or each.op.type in _OF_SHAPES:
                continue
            seen.add(each.ref())
            waiting += each.op.inputs
        return False

    def _bound(self, rows: Rows) -> None:
        self._bounds |= {rows.first.ref(), rows.count.ref()}


def share_of(replica: Any, replicas: int, examples: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the first example of a replica, and the one behind its last."""
    size, more = examples // replicas, examples % replicas
    first = replica * size + tf.minimum(replica, more)
    return first, first + size + tf.cast(replica < more, examples.dtype)


def replicas_of(context: Any) -> int:
    """How many replicas there are, which a step doesn't know."""
    return int(context.strategy.extended._num_replicas_in_sync)


def made_of(tensor: Any) -> tuple[Rows | None, Any]:
    """The rows, and the replica's own, that a whole tensor was made of."""
    return getattr(tensor, "_distlab_made_of", (None, None))


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


def _has_gradient(part: Any) -> bool:
    dense = isinstance(part, tf.Tensor) and has_rows(part)
    return dense and (part.dtype.is_floating or part.dtype.is_complex)


def as_real(tensor: tf.Tensor) -> tf.Tensor:
    """A tensor that a collective takes: of a complex one, both parts, on an axis behind its own."""
    if not tensor.dtype.is_complex:
        return tensor
    return tf.stack([tf.math.real(tensor), tf.math.imag(tensor)], -1)


def as_kind(tensor: tf.Tensor, kind: tf.DType) -> tf.Tensor:
    """What `as_real` was made of."""
    if not kind.is_complex:
        return tf.cast(tensor, kind)
    return tf.cast(tf.complex(tensor[..., 0], tensor[..., 1]), kind)


def counts_rows(tensor: Any) -> bool:
    """Whether a tensor without rows is made of their number."""
    waiting, seen = [] if has_rows(tensor) else [tensor], set()
    while waiting:
        each = waiting.pop()
        if each.ref() in seen:
            continue
        seen.add(each.ref())
        if each.op.type in _OF_SHAPES:
            if any(map(has_rows, each.op.inputs)) and each.op.type != "Rank":
                return True
        elif each.dtype.is_integer:
            waiting += each.op.inputs
    return False


def shape_of_promise(original: Callable[..., Any]) -> Callable[..., Any]:
    """Of TensorFlow's operation: the shape of a promised tensor is known without it."""

    def shape(input: Any, *args: Any, **kwargs: Any) -> tf.Tensor:
        if current() is None or not hasattr(input, "_distlab_shape"):
            return original(input, *args, **kwargs)
        return tf.cast(input._distlab_shape(), kwargs.get("out_type") or tf.int32)

    return shape


def of_a_loop(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces what makes the body of `tf.vectorized_map` and of jacobians, in the step's graph."""

    def loop(*args: Any, **kwargs: Any) -> Any:
        step = current()
        if step is None:
            return original(*args, **kwargs)
        before, step.in_loop = step.in_loop, True
        try:
            return original(*args, **kwargs)
        finally:
            step.in_loop = before

    return loop


def all_gather(tensor: Any) -> Any:
    """Returns the rows of all replicas.

    In a layer of your own, tensors hold a replica's rows of the batch. Where the layer needs those
    of all, as a loss over pairs of examples does, it asks for them here. Elsewhere, and without
    `distribute`, tensors are whole, and come back as they are.

    Args:
        tensor: A tensor `[rows, ...]`, or a structure of them.

    Returns:
        `[rows of all replicas, ...]`, in the order of the batch. Gradients flow through it.
    """
    step = current()
    return tensor if step is None or step.rows is None else step.rows.whole(tensor)


def _unknown(size: tf.Tensor) -> tf.Tensor:
    """A number that TensorFlow doesn't know before the step runs, and so has no shape of."""
    if tf.executing_eagerly():
        return size
    return tf.raw_ops.PlaceholderWithDefault(input=size, shape=[])


def _rows_in(tensor: Any) -> tf.Tensor:
    if isinstance(tensor, tf.RaggedTensor):
        return tensor.nrows(tf.int32)
    if isinstance(tensor, tf.SparseTensor):
        return tf.cast(tensor.dense_shape[0], tf.int32)
    return tf.shape(tensor)[0]


def _at_least_one_row(part: Any) -> Any:
    """A part of a batch, with a row of zeros if it has none; of an unknown number of rows."""
    if not isinstance(part, tf.Tensor) or not part.shape.rank:
        return part
    shape = tf.shape(part)
    missing = tf.maximum(1 - shape[:1], 0)
    filled = tf.concat([part, tf.zeros(tf.concat([missing, shape[1:]], 0), part.dtype)], 0)
    if tf.executing_eagerly():
        return filled
    return tf.raw_ops.PlaceholderWithDefault(input=filled, shape=[None, *part.shape[1:]])


def _where_slices_are_cheap(tensor: Any) -> Any:
    """Cuts a batch before it goes to a GPU."""
    gpus = tf.config.list_logical_devices("GPU") if isinstance(tensor, tf.Tensor) else []
    return tf.device("CPU:0") if gpus else contextlib.nullcontext()


def _each(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Changes tensors, and in the same way the masks and logits that Keras keeps with them."""

    def changed(tensor: Any) -> Any:
        made = change(tensor)
        if made is tensor:
            return tensor
        mask, logits = (getattr(tensor, name, None) for name in ("_keras_mask", "_keras_logits"))
        if mask is not None:
            made._keras_mask = tf.cast(change(mask), tf.bool)
        if logits is not None:
            made._keras_logits = change(logits)
        return made

    return tf.nest.map_structure(changed, tree)
