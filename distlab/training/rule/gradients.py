"""The gradients of the whole batch: the mean of the replicas', and what is done with it.

Outputs that were put together give each replica what all replicas ask for, so each finds
`replicas` times its part. What a step does with the mean is the same on all replicas, so each
updates its own copies of weights, slots and counts; nothing is brought together a second time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from distlab.training.keras_private import optimizers, strategies
from distlab.training.rule import doors
from distlab.training.rule.current import current, replaces, run_collective
from distlab.training.rule.refusal import refusal
from distlab.training.rule.rows import MEAN
from distlab.training.rule.step import RetraceNeeded, Step
from distlab.training.rule.tensors import as_kind, as_real

_TF_OPTIMIZER = "keras.src.backend.tensorflow.optimizer.TFOptimizer"
_VARIABLE = "tensorflow.python.distribute.values.DistributedVariable"

_NOW = threading.local()

# The key, among gradients that are sent, of the losses.
_LOSSES = -1


# Inside a replica: the optimizer, what it is to be built for.
Built = tuple[keras.optimizers.Optimizer, list[Any]]


@contextlib.contextmanager
def leaving_out() -> Iterator[list[Built]]:
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
        with leaving_out() as applied:
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
    return bool(getattr(_NOW, "alone", False))


def _writer() -> Callable[[Any], Any] | None:
    """Returns the finder of a replica's own copy; None where TensorFlow updates all copies."""
    return _own_copy if current() is not None or _is_alone() else None


def left_out() -> list[Built] | None:
    """Returns the optimizers and what they update, where there are no gradients; else None."""
    return getattr(_NOW, "applied", None)


@dataclasses.dataclass(frozen=True)
class _Watch:
    """The recipients of a gradient: the step, a check of the loss, or none if none is taken."""

    step: Step | None
    check: Callable[[tf.Tensor], list[Any]] | None
    is_left_out: bool


def _watching() -> _Watch | None:
    watch = _Watch(current(), getattr(_NOW, "check", None), left_out() is not None)
    return watch if watch.step or watch.check or watch.is_left_out else None


@replaces("tensorflow.GradientTape.gradient", when=_watching)
def gradient(
    watch: _Watch,
    original: Callable[..., Any],
    self: Any,
    target: Any,
    sources: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Returns, outside of layers, the gradient of the whole batch."""
    step = watch.step
    if step is not None and step.rows is None:
        step.look_at((target, sources))
        if step.shared is not None:
            target = tf.nest.map_structure(functools.partial(doors.with_all_rows, step), target)
            doors.check_sources(step, sources)
    if watch.is_left_out:
        return tf.nest.map_structure(_zeros, sources)
    if step is None:
        result = original(self, target, sources, *args, **kwargs)
        return _checked(watch.check, target, result)
    if step.rows is not None or step.backward:
        return original(self, target, sources, *args, **kwargs)
    if not step.can_meet():  # all replicas compute the whole batch
        result = original(self, target, sources, *args, **kwargs)
        return _checked(step.finite, target, result) if tf.executing_eagerly() else result
    if step.again or step.looked_at():
        raise RetraceNeeded
    scales = step.gradient_divisor != 1 and not args and kwargs.get("output_gradients") is None
    if scales:
        kwargs["output_gradients"] = tf.nest.map_structure(
            lambda part: tf.ones_like(part) / step.gradient_divisor, target
        )
    step.backward = True
    try:
        with step.on(step.batch):  # a layer may be computed again on the way back
            result = original(self, target, sources, *args, **kwargs)
    finally:
        step.backward = False
    with step.on(step.batch):  # slices of sparse ones are still each replica's own
        result = _mean(step, target, result)
    return _times(result, step.gradient_divisor) if scales else result


def _other_derivative(
    name: str, step: Step, original: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Refuses another way to a derivative outside of layers."""
    if step.layer is not None:
        return original(*args, **kwargs)
    raise refusal(
        step,
        f"{name}, for which replicas cannot wait for each other",
        "take tape.gradient, or ask for it inside a layer",
    )


for _asked, _replaced in {
    "tape.jacobian": "tensorflow.GradientTape.jacobian",
    "tape.batch_jacobian": "tensorflow.GradientTape.batch_jacobian",
    "tf.gradients": "tensorflow.gradients",
    "tf.autodiff.ForwardAccumulator": "tensorflow.autodiff.ForwardAccumulator._push_accumulator",
}.items():
    replaces(_replaced)(functools.partial(_other_derivative, _asked))


def _mean(step: Step, target: Any, result: Any) -> Any:
    """The mean over replicas, in one message for each type."""
    context = step.batch.context
    # All replicas check the losses that each has a part of: if one fails, all do.
    loss_check = step.finite if step.own_losses else None
    flat = tf.nest.flatten(_checked(None if loss_check else step.finite, target, result))
    sparse = {i: each for i, each in enumerate(flat) if isinstance(each, tf.IndexedSlices)}
    alike = {i for i, each in sparse.items() if not step.differs(each.indices)}
    sent = {
        i: each.values if i in alike else each for i, each in enumerate(flat) if each is not None
    }
    if loss_check:
        sent[_LOSSES] = step.batch.at_own_place(tf.cast(tf.stop_gradient(_sum(target)), tf.float32))
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
                means = run_collective(context.all_reduce, MEAN, parts)
                means = means if rows else [as_kind(mean, kind) for mean in means]
                sent |= zip(keys, means, strict=True)
    for i in sparse.keys() - alike:
        if i in lookups:  # one device has one slice for a row and a lookup
            sent[i] = _merged(sent[i], lookups[i])
    for i in alike:  # one device has one slice for a position
        sent[i] = tf.IndexedSlices(sent[i], sparse[i].indices, sparse[i].dense_shape)
    result = tf.nest.pack_sequence_as(result, [sent.get(i) for i in range(len(flat))])
    return _after(loss_check(sent[_LOSSES]), result) if loss_check else result


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


@replaces(
    "keras.optimizers.Optimizer.apply", "keras.optimizers.LossScaleOptimizer.apply", when=left_out
)
def note_optimizer(
    applied: list[Built], original: Any, self: Any, grads: Any, trainable_variables: Any = None
) -> None:
    """Records what an optimizer would update, while a step only makes variables."""
    if trainable_variables is not None:
        applied.append((self, list(trainable_variables)))


@replaces(f"{_TF_OPTIMIZER}._backend_update_step", when=_writer)
def update_own_copies(
    own_copy: Callable[[Any], Any], original: Any, self: Any, grads: Any, variables: Any, rate: Any
) -> None:
    """Updates a replica's own copies of the variables."""
    for grad, variable in zip(grads, variables, strict=True):
        self.update_step(grad, own_copy(variable), rate)


@replaces(f"{_TF_OPTIMIZER}._apply_weight_decay", when=_writer)
def decay_own_copies(
    own_copy: Callable[[Any], Any], original: Any, self: Any, variables: Any
) -> None:
    """Decays a replica's own copies of the variables."""
    optimizers.on_one_device(self, original.__name__, list(map(own_copy, variables)))


@replaces(
    f"{_TF_OPTIMIZER}._backend_increment_gradient_accumulators",
    f"{_TF_OPTIMIZER}._overwrite_model_variables_with_average_value",
    when=_writer,
)
def as_on_one_device(own_copy: Any, original: Callable[..., Any], self: Any, *args: Any) -> Any:
    """Does what Keras does where no strategy is, in place of TensorFlow's way."""
    return optimizers.on_one_device(self, original.__name__, *args)


@replaces("keras.optimizers.LossScaleOptimizer._tf_apply", when=_writer)
def apply_scaled(own_copy: Any, original: Callable[..., Any], self: Any, *args: Any) -> Any:
    """Applies scaled gradients, which are the same on all replicas."""
    return optimizers.apply_scaled(self, *args)


def _own_copy(variable: Any) -> Any:
    value = strategies.variable_in(variable)
    _note_written(value)
    return strategies.copy_here(value)


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


@replaces("tensorflow.python.distribute.ps_values.AggregatingVariable._assign_func", when=_writer)
def assign_on_first(
    own_copy: Any, original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any
) -> Any:
    """Assigns on the first replica to the one copy of all: what replicas assign is alike."""
    change = kwargs.pop("f")
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    is_first = tf.get_static_value(replica) == 0
    return change(strategies.shared_copy(self), *args, **kwargs) if is_first else None


@replaces("tensorflow.python.distribute.values._on_write_update_replica", when=_writer)
def assign_own_copy(
    own_copy: Callable[[Any], Any],
    original: Callable[..., Any],
    variable: Any,
    change: Callable[..., Any],
    value: Any,
    **kwargs: Any,
) -> Any:
    """Assigns to a replica's own copy of a variable: what replicas assign is alike."""
    return change(own_copy(variable), value, **kwargs)


def _scatter(name: str, own_copy: Any, original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Writes to some elements of a replica's own copy."""
    return getattr((own_copy or _own_copy)(self), name)(*args, **kwargs)


# Some of these only variables with one copy have.
for _name in (
    *("scatter_nd_update", "scatter_nd_add", "scatter_nd_sub", "scatter_nd_max", "scatter_nd_min"),
    *("scatter_update", "scatter_add", "scatter_sub", "scatter_max", "scatter_min", "scatter_mul"),
    *("scatter_div", "batch_scatter_update"),
):
    replaces(f"{_VARIABLE}.{_name}", when=_writer)(functools.partial(_scatter, _name))


@replaces(f"{_VARIABLE}.__int__")
def as_int(step: Any, original: Any, self: Any) -> int:
    """A variable's value as a whole number, which those on several replicas don't give."""
    return int(self.numpy())


@replaces(f"{_VARIABLE}.__float__")
def as_float(step: Any, original: Any, self: Any) -> float:
    """A variable's value as a number, which those on several replicas don't give."""
    return float(self.numpy())
