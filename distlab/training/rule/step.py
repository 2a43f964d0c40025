"""One step on one replica, while it is traced: whose rows tensors have, and what was seen."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from distlab.training.keras_private import models
from distlab.training.rule.current import in_step
from distlab.training.rule.rows import Rows
from distlab.training.rule.tensors import OF_SHAPES, ancestors, has_rows, made_of, rows_in

# The attribute of a model that says whose rows its BatchNormalization takes statistics of.
BATCH_NORM = "_distlab_batch_norm"


class RetraceNeeded(Exception):
    """The step will be traced again: a promise was looked at, or a layer looks at other rows."""


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
        layer: The innermost layer that runs, or the loss or metric that has own rows.
        running: All layers that run, the innermost last, and the graph that each was called in.
        called: Layers, losses and metrics that run or have run, by their ids.
        in_loop: Whether what is made is the body of a loop that has no graph of its own.
        is_meeting: Whether a collective of distlab's own is made.
        cut: The layer that gets the whole batch within one that has own rows, and gives back these.
        has_doors: Whether a layer has computed with own rows, and may have kept some of them.
        site: Where it, or a loss or a metric, was called, if it is to be seen whether it looks at
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
        self.of_parts = models.loss_trackers(model) if own_losses else []
        self.rows: Rows | None = None
        self.layer: Any = None
        self.running: list[tuple[Any, Any]] = []
        self.site: Any = None
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
            self.batch = Rows.given(rows_in(first)) if in_parts else Rows.cut(rows_in(first))
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
        # overflows no sooner than on one device, gradients begin as many times gradient_divisor.
        halves = any(layer.compute_dtype == "float16" for layer in models.layers(model))
        self.gradient_divisor = 2 ** math.ceil(math.log2(self.batch.replicas)) if halves else 1

    @contextlib.contextmanager
    def on(self, rows: Rows | None, layer: Any = None) -> Iterator[None]:
        """Inside the block tensors have these rows, in a layer or in none."""
        before, self.rows, self.layer = (self.rows, self.layer), rows, layer
        if layer is not None:
            self.called[id(layer)] = layer
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
        sizes = [rows_in(part) for part in tensors]
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
        return any(
            each.ref() in self._data or each.ref() in self.alike for each in ancestors(tensor)
        )

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
        """The promises that anything looked at."""
        return self._seen | {key for key, whole in self._promised.items() if whole.consumers()}

    def differs(self, tensor: tf.Tensor) -> bool:
        """Whether replicas may have different values, for they come of own rows."""

        def may_differ(each: Any) -> bool:
            return each.ref() not in self.alike and each.op.type not in OF_SHAPES

        return any(each.ref() in self._bounds for each in ancestors(tensor, through=may_differ))

    def _bound(self, rows: Rows) -> None:
        self._bounds |= {rows.first.ref(), rows.count.ref()}


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
