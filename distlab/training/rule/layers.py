"""Layers in a step: an outermost one computes own rows, unless it looks at those of others."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from distlab.training.keras_private import ACTIVITIES_ARE_SUMS
from distlab.training.rule import mixing
from distlab.training.rule.losses import is_keras
from distlab.training.rule.rows import Step, current

# Keras's layers that mix examples: by pairs, a histogram of the batch, or its first image's waves.
_MIXING = tuple(
    getattr(keras.layers, name)
    for name in ("MixUp", "CutMix", "Equalization", "RandAugment", "RandomElasticTransform")
    if hasattr(keras.layers, name)
)


def call(original: Callable[..., Any]) -> Callable[..., Any]:
    """Of `keras.layers.Layer`."""

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        step = current()
        if step is None:
            return original(self, *args, **kwargs)
        before, step.layer = step.layer, self
        outer, step.mark = step.mark, None
        start = mixing.Mark.now() if step.rows is not None and outer is not None else None
        step.running.append(self)
        try:
            result = _called(step, original, self, args, kwargs)
        finally:
            step.running.pop()
            step.layer, step.mark = before, outer
        if start is not None:
            outer.note_call(start.start, result)
        if self in step.own_statistics:
            step.own_statistics.remove(self)
            _bring_together(step, self)
        return result

    return called


def _called(step: Step, original: Callable[..., Any], layer: Any, args: Any, kwargs: Any) -> Any:
    rows, whole = step.rows, sees_whole(layer)
    if rows is None and not whole:
        rows = step.rows_of((args, kwargs)) if step.can_meet() else None
        if rows is None:
            return original(layer, *args, **kwargs)
        args, kwargs = rows.own((args, kwargs))
        with step.on(rows, layer):
            result = _looked_at(step, original, layer, args, kwargs)
            return rows.whole(result, promise=True)
    if rows is None:
        return original(layer, *args, **kwargs)
    if not whole:
        return _looked_at(step, original, layer, args, kwargs)
    args, kwargs = rows.whole((args, kwargs))
    with step.on(None, layer):
        return rows.own(original(layer, *args, **kwargs))


def _looked_at(step: Step, original: Callable[..., Any], layer: Any, args: Any, kwargs: Any) -> Any:
    """Calls a layer with own rows, and finds out whether it looks at other rows."""
    is_known = not _runs_users_code(layer) or hasattr(layer, "whole_batch")
    if is_known or step.backward:
        return original(layer, *args, **kwargs)
    step.mark = mark = mixing.Mark.now()
    try:
        result = original(layer, *args, **kwargs)
    finally:
        step.mark = None
    if mark.mixes((args, kwargs)):
        vars(layer)["_distlab_sees_whole"] = step.again = True
    return result


def sees_whole(layer: Any) -> bool:
    """Whether a layer gets the whole batch; what it is made of may still compute own rows.

    So it is if it says `whole_batch = True` (`False` says that it need not), if it was seen to look
    at other rows, or if it isn't Keras's and keeps a state, gives a loss or counts in a metric:
    these are of the batch.
    """
    kept = vars(layer)
    if "_distlab_sees_whole" not in kept or not layer.built:
        regularizer = layer.activity_regularizer
        result = isinstance(layer, _MIXING) or getattr(layer, "stateful", False) is True
        by_rows = is_keras(regularizer) and not ACTIVITIES_ARE_SUMS
        result |= regularizer is not None and not by_rows
        if is_keras(layer):
            axis = getattr(layer, "axis", -1)
            result |= 0 in (axis if isinstance(axis, list | tuple) else [axis])
        else:
            names = {name for method in _methods(layer) for name in _names_in(method)}
            result |= bool(layer._non_trainable_variables or names & {"add_loss", "update_state"})
        kept["_distlab_sees_whole"] = getattr(layer, "whole_batch", result)
    return bool(kept["_distlab_sees_whole"])


def _methods(layer: Any) -> list[Any]:
    if isinstance(layer, keras.Model):
        return [layer.call]
    own = [kind for kind in type(layer).__mro__ if not is_keras(kind) and kind is not object]
    return [method for kind in own for method in vars(kind).values()]


def _names_in(method: Any) -> set[str]:
    """The names of attributes that a function's code uses."""
    function = getattr(method, "python_function", method)  # of a tf.function
    waiting, names = [getattr(getattr(function, "__func__", function), "__code__", None)], set()
    while waiting:
        code = waiting.pop()
        if code is not None:
            names |= set(code.co_names)
            waiting += [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return names


def _runs_users_code(layer: Any) -> bool:
    return not is_keras(layer) or isinstance(layer, keras.Model | keras.layers.Lambda)


def losses(self: Any) -> list[Any]:
    """What a layer gave to `add_loss`: in a step each replica, which is a thread, has its own."""
    step = current()
    if step is not None:
        return step.losses.setdefault(id(self), [])
    if "_losses" not in vars(self):
        raise AttributeError("_losses")
    return vars(self)["_losses"]  # type: ignore[no-any-return]


def add_loss(original: Callable[..., Any]) -> Callable[..., Any]:
    """Of `keras.layers.Layer`: what own rows give is their part of the mean over replicas."""

    def add_loss(self: Any, loss: Any) -> None:
        step = current()
        if step is None:
            original(self, loss)
            return
        if step.rows is not None:
            change = step.rows.part if step.own_losses else step.rows.whole
            loss = tf.nest.map_structure(change, loss)
        self._losses.extend(tf.nest.flatten(loss))

    return add_loss


def own_losses(original: Callable[..., Any]) -> Callable[..., Any]:
    """Of layers, `_get_own_losses`: those of the step, also where Keras keeps them elsewhere."""
    return lambda self: original(self) if current() is None else list(self._losses)


def _bring_together(step: Step, layer: keras.layers.BatchNormalization) -> None:
    """Moving averages become the mean of those that replicas have of their own rows."""
    rows, both = step.batch, (layer.moving_mean, layer.moving_variance)
    values = tf.stack([tf.convert_to_tensor(variable) for variable in both])
    means = rows.total(values * tf.cast(rows.share, values.dtype))
    for variable, mean in zip(both, tf.unstack(means), strict=True):
        variable.assign(mean)


def moments(original: Callable[..., Any]) -> Callable[..., Any]:
    """Of BatchNormalization: mean and variance of the whole batch, of those of the replicas."""

    def moments(self: Any, inputs: tf.Tensor, mask: Any) -> Any:
        step = current()
        if step is None or step.rows is None:
            return original(self, inputs, mask)
        if step.batch_norm == "replica" and not self.synchronized:
            step.own_statistics.append(self)
            return original(self, inputs, mask)
        rows, axes = step.rows, self._reduction_axes
        if mask is None:
            mean, variance = tf.nn.moments(inputs, axes)
            count = tf.cast(tf.size(inputs) / tf.size(mean), inputs.dtype) * tf.ones_like(mean)
        else:
            counted = tf.broadcast_to(mask[..., None], tf.shape(inputs))
            count = tf.reduce_sum(tf.cast(counted, inputs.dtype), axes)

            def mean_of(values: tf.Tensor) -> tf.Tensor:
                total = tf.reduce_sum(tf.where(counted, values, tf.zeros_like(values)), axes)
                return tf.math.divide_no_nan(total, count)

            mean = mean_of(inputs)
            shape = [1] * inputs.shape.rank
            shape[self.axis] = -1
            variance = mean_of(tf.square(inputs - tf.reshape(mean, shape)))
        each = rows.of_each(tf.stack([mean, variance, count]))
        means, variances, counts = each[:, 0], each[:, 1], each[:, 2]
        in_all = tf.reduce_sum(counts, 0) + (0.0 if mask is None else keras.config.epsilon())
        mean = tf.reduce_sum(means * counts, 0) / in_all
        variance = tf.reduce_sum(counts * (variances + tf.square(means - mean)), 0) / in_all
        return mean, variance

    return moments
