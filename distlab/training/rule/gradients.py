"""The gradients of the whole batch: the mean of the replicas', and what is done with it.

Outputs that were put together give each replica what all replicas ask for, so each finds
`replicas` times its part. What a step does with the mean is the same on all replicas, so each
updates its own copies of weights, slots and counts; nothing is brought together once more.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from distlab.training.rule.refusal import refusal
from distlab.training.rule.rows import MEAN, Step, as_kind, as_real, current, meet

_NOW = threading.local()

# The key, among gradients that are sent, of the losses.
_TOLD = -1


class TracedAgain(Exception):
    """The step will be traced again anyway, so it isn't differentiated."""


# Inside a replica: the optimizer, what it is to be built for.
Built = tuple[keras.optimizers.Optimizer, list[Any]]


@contextlib.contextmanager
def left_out() -> Iterator[list[Built]]:
    """Inside the block gradients are zeros, and optimizers only say what they would update."""
    before, _NOW.applied = getattr(_NOW, "applied", None), []
    try:
        yield _NOW.applied
    finally:
        _NOW.applied = before


@contextlib.contextmanager
def building() -> Iterator[None]:
    """Inside the block a step only makes variables: nothing is differentiated or updated."""
    applied: list[Built] = []
    try:
        with left_out() as applied:
            yield
    finally:
        for optimizer, variables in applied:  # only now have these a value
            if not optimizer.built:
                optimizer.build(variables)


@contextlib.contextmanager
def watched(
    check: Callable[[tf.Tensor], list[Any]] | None, *, alone: bool = False
) -> Iterator[None]:
    """Inside the block, where no other replica is, a check comes before the gradients of a loss.

    If there is no other anywhere, what is updated need not be brought together.
    """
    before, _NOW.check = getattr(_NOW, "check", None), check
    was_alone, _NOW.alone = _is_alone(), alone
    try:
        yield
    finally:
        _NOW.check, _NOW.alone = before, was_alone


def _is_alone() -> bool:
    return getattr(_NOW, "alone", False)


def _updates_own_copies() -> bool:
    return current() is not None or _is_alone()


def are_left_out() -> bool:
    """Whether there are no gradients and no updates."""
    return getattr(_NOW, "applied", None) is not None


def gradient(original: Callable[..., Any]) -> Callable[..., Any]:
    """Of `tf.GradientTape`: outside of layers, the gradient of the whole batch."""

    def gradient(self: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        step = current()
        if step is not None and step.rows is None:
            step.look_at((target, sources))
            if step.shared is not None:
                target = tf.nest.map_structure(step.through_door, target)
                step.check_sources(sources)
        if are_left_out():
            return tf.nest.map_structure(_zeros, sources)
        if step is None:
            result = original(self, target, sources, *args, **kwargs)
            return _checked(getattr(_NOW, "check", None), target, result)
        if step.rows is not None or step.backward:
            return original(self, target, sources, *args, **kwargs)
        if not step.can_meet():  # all replicas compute the whole batch
            result = original(self, target, sources, *args, **kwargs)
            return _checked(step.finite, target, result) if tf.executing_eagerly() else result
        if step.again or step.looked_at():
            raise TracedAgain
        scales = step.smaller != 1 and not args and kwargs.get("output_gradients") is None
        if scales:
            kwargs["output_gradients"] = tf.nest.map_structure(
                lambda part: tf.ones_like(part) / step.smaller, target
            )
        step.backward = True
        try:
            with step.on(step.batch):  # a layer may be computed once more on the way back
                result = original(self, target, sources, *args, **kwargs)
        finally:
            step.backward = False
        with step.on(step.batch):  # slices of sparse ones are still each replica's own
            result = _mean(step, target, result)
        return _times(result, step.smaller) if scales else result

    return gradient


def refused(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Of other ways to a gradient: what a step may not ask for outside of layers."""

    def replace(original: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(*args: Any, **kwargs: Any) -> Any:
            step = current()
            if step is None or step.layer is not None:
                return original(*args, **kwargs)
            raise refusal(
                step,
                f"{name}, for which replicas cannot wait for each other",
                "take tape.gradient, or ask for it inside a layer",
            )

        return refuse

    return replace


def _mean(step: Step, target: Any, result: Any) -> Any:
    """The mean over replicas, in one message for each type."""
    context = step.batch.context
    # Losses that replicas have parts of are told to all of them: if one fails, all do.
    told = step.finite if step.own_losses else None
    flat = tf.nest.flatten(_checked(None if told else step.finite, target, result))
    sparse = {i: each for i, each in enumerate(flat) if isinstance(each, tf.IndexedSlices)}
    alike = {i for i, each in sparse.items() if not step.differs(each.indices)}
    sent = {
        i: each.values if i in alike else each for i, each in enumerate(flat) if each is not None
    }
    if told:
        sent[_TOLD] = step.batch.at_own_place(tf.cast(tf.stop_gradient(_sum(target)), tf.float32))
    lookups = {}
    for i in sparse.keys() - alike:
        if parts := _distinct_parts(sparse[i].indices):
            lookups[i] = tf.cast(sparse[i].dense_shape[0], sparse[i].indices.dtype)
            sent[i] = _numbered(sparse[i], parts, lookups[i])
    for kind in {each.dtype for each in sent.values()}:
        # Apart: with a sparse one among them none could be differentiated again.
        for rows in (False, True):
            keys = [
                i
                for i, each in sent.items()
                if each.dtype == kind and isinstance(each, tf.IndexedSlices) == rows
            ]
            if keys:
                parts = [sent[i] if rows else as_real(sent[i]) for i in keys]
                means = meet(context.all_reduce, MEAN, parts)
                means = means if rows else [as_kind(mean, kind) for mean in means]
                sent |= zip(keys, means, strict=True)
    for i in sparse.keys() - alike:
        if i in lookups:  # one device has one slice for a row and a lookup
            sent[i] = _merged(sent[i], lookups[i])
    for i in alike:  # one device has one slice for a position
        sent[i] = tf.IndexedSlices(sent[i], sparse[i].indices, sparse[i].dense_shape)
    result = tf.nest.pack_sequence_as(result, [sent.get(i) for i in range(len(flat))])
    return _after(told(sent[_TOLD]), result) if told else result


def _checked(check: Callable[..., list[Any]] | None, target: Any, result: Any) -> Any:
    """The gradients, once the loss is known, and is finite if that is to be checked."""
    if current() is None and check is None:
        return result
    loss = _sum(target)
    # No replica updates before all is read that the update changes.
    return _after([loss, *(check(loss[None]) if check else ())], result)


def _sum(target: Any) -> tf.Tensor:
    parts = [tf.reduce_sum(part) for part in tf.nest.flatten(target) if part is not None]
    return tf.add_n([tf.cast(part, parts[0].dtype) for part in parts])


def _after(done: list[Any], result: Any) -> Any:
    with tf.control_dependencies([each for each in done if each is not None]):
        return tf.nest.map_structure(
            lambda each: None if each is None else tf.identity(each), result
        )


def _times(result: Any, factor: int) -> Any:
    def times(each: Any) -> Any:
        if isinstance(each, tf.IndexedSlices):
            return tf.IndexedSlices(each.values * factor, each.indices, each.dense_shape)
        return None if each is None else each * factor

    return tf.nest.pack_sequence_as(result, [times(each) for each in tf.nest.flatten(result)])


def _zeros(source: Any) -> tf.Tensor:
    is_variable = isinstance(source, keras.Variable | tf.Variable)
    return tf.zeros(source.shape, source.dtype) if is_variable else tf.zeros_like(source)


def _distinct_parts(indices: tf.Tensor) -> list[tf.Tensor]:
    """The parts of sparse rows' numbers, one for each lookup, where each has a row once."""
    while indices.op.type in ("Reshape", "Identity", "Cast"):
        indices = indices.op.inputs[0]
    if indices.op.type.startswith(("Unique", "SparseSegment")):
        return [indices]
    if indices.op.type != "ConcatV2":
        return []
    parts = [_distinct_parts(part) for part in indices.op.inputs[:-1]]
    return [each for part in parts for each in part] if all(parts) else []


def _numbered(result: tf.IndexedSlices, parts: list[tf.Tensor], rows: tf.Tensor) -> Any:
    """The slices, with numbers of rows that tell lookups apart."""
    lookup = tf.repeat(tf.range(len(parts)), tf.stack([tf.size(part) for part in parts]))
    numbers = result.indices + tf.cast(lookup, rows.dtype) * rows
    return tf.IndexedSlices(result.values, numbers, result.dense_shape)


def _merged(result: tf.IndexedSlices, rows: tf.Tensor) -> tf.IndexedSlices:
    numbers, number_of_slice = tf.unique(result.indices)
    values = tf.math.unsorted_segment_sum(result.values, number_of_slice, tf.size(numbers))
    return tf.IndexedSlices(values, numbers % rows, result.dense_shape)


def apply(original: Callable[..., Any]) -> Callable[..., Any]:
    """Of optimizers: while a step only makes variables, keeps in mind what for."""

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        if not are_left_out():
            original(self, grads, trainable_variables)
        elif trainable_variables is not None:
            _NOW.applied.append((self, list(trainable_variables)))

    return apply


def update_own_copies(original: Callable[..., Any]) -> Callable[..., Any]:
    """Of optimizers, `_backend_update_step`: a replica updates its own copies of the variables."""

    def update(self: Any, grads: Any, variables: Any, rate: Any) -> None:
        if not _updates_own_copies():
            original(self, grads, variables, rate)
            return
        for grad, variable in zip(grads, variables, strict=True):
            self.update_step(grad, _own_copy(variable), rate)

    return update


def decay_own_copies(general: Callable[..., Any]) -> Callable[..., Any]:
    """Of optimizers, `_apply_weight_decay`: a replica does it to its own copies."""

    def replace(original: Callable[..., Any]) -> Callable[..., Any]:
        def decay(self: Any, variables: Any) -> None:
            if _updates_own_copies():
                general(self, [_own_copy(variable) for variable in variables])
            else:
                original(self, variables)

        return decay

    return replace


def _own_copy(variable: Any) -> Any:
    """TensorFlow's variable of this replica, or the one that all share, to write to it."""
    value = getattr(variable, "_value", variable)
    _note_written(value)
    return getattr(value, "_get_on_device_or_primary", lambda: value)()


@contextlib.contextmanager
def writes() -> Iterator[dict[int, Any]]:
    """Inside the block, which variables are written that have a copy for each replica, by ids."""
    before, _NOW.written = getattr(_NOW, "written", None), {}
    try:
        yield _NOW.written
    finally:
        _NOW.written = before


def _note_written(value: Any) -> None:
    written = getattr(_NOW, "written", None)
    if written is not None and isinstance(value, tf.distribute.DistributedValues):
        written[id(value)] = value


def as_on_one_device(general: Callable[..., Any]) -> Callable[..., Any]:
    """Of optimizers: does what Keras does where no strategy is, in place of TensorFlow's way."""

    def replace(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, *args: (general if _updates_own_copies() else original)(self, *args)

    return replace


def apply_here(original: Callable[..., Any]) -> Callable[..., Any]:
    """Of loss scales, `_tf_apply`: what is applied is the same on all replicas."""
    return lambda self, *args: (
        self._common_apply(*args) if _updates_own_copies() else original(self, *args)
    )


def assign_on_first(original: Callable[..., Any]) -> Callable[..., Any]:
    """Of variables of which all replicas share one copy: what replicas assign is alike."""

    def assign(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _updates_own_copies():
            return original(self, *args, **kwargs)
        change = kwargs.pop("f")
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        is_first = tf.get_static_value(replica) == 0
        return change(self._v, *args, **kwargs) if is_first else None

    return assign


SCATTERING = (
    *("scatter_nd_update", "scatter_nd_add", "scatter_nd_sub", "scatter_nd_max", "scatter_nd_min"),
    *("scatter_update", "scatter_add", "scatter_sub", "scatter_max", "scatter_min", "scatter_mul"),
    *("scatter_div", "batch_scatter_update"),
)


def on_own_copy(name: str, original: Callable[..., Any] | None) -> Callable[..., Any]:
    """Replaces a method of variables by that of a replica's own copy."""

    def scatter(self: Any, *args: Any, **kwargs: Any) -> Any:
        if original is not None and not _updates_own_copies():
            return original(self, *args, **kwargs)
        return getattr(_own_copy(self), name)(*args, **kwargs)

    return scatter


def assign_own_copy(original: Callable[..., Any]) -> Callable[..., Any]:
    """Of variables that have a copy for each replica: what replicas assign is alike."""

    def update(variable: Any, change: Callable[..., Any], value: Any, **kwargs: Any) -> Any:
        if not _updates_own_copies():
            return original(variable, change, value, **kwargs)
        _note_written(variable)
        return change(variable._get_on_device_or_primary(), value, **kwargs)

    return update
