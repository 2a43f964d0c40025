"""Layers in a step: an outermost one computes own rows, unless it looks at those of others."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from distlab.errors import DistlabError
from distlab.training.keras_private import ACTIVITIES_ARE_SUMS
from distlab.training.keras_private.layers import layer_losses, own_state, reduction_axes
from distlab.training.rule import mixing
from distlab.training.rule.current import replaces, run_collective
from distlab.training.rule.losses import is_keras
from distlab.training.rule.refusal import is_of_user
from distlab.training.rule.rows import MEAN
from distlab.training.rule.step import Step
from distlab.training.rule.tensors import has_rows, let_out

# Keras's layers that mix examples: by pairs, a histogram of the batch, or its first image's waves.
_MIXING = tuple(
    getattr(keras.layers, name)
    for name in ("MixUp", "CutMix", "Equalization", "RandAugment", "RandomElasticTransform")
    if hasattr(keras.layers, name)
)


@replaces("keras.layers.Layer.__call__")
def sharded_call(
    step: Step, original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any
) -> Any:
    """Calls a layer: an outermost one computes own rows, unless it looks at other rows."""
    before, step.layer = step.layer, self
    outer, step.site = step.site, None
    start = mixing.CallSite.now() if step.rows is not None and outer is not None else None
    step.running.append((self, tf.compat.v1.get_default_graph()))
    step.called[id(self)] = self
    try:
        result = _called(step, original, self, args, kwargs)
    except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
        if not isinstance(error, DistlabError):
            _try_whole_batch(step, self)
        raise
    finally:
        step.running.pop()
        step.layer, step.site = before, outer
    if start is not None:
        outer.note_call(start.start, result)
    if self in step.own_statistics:
        step.own_statistics.remove(self)
        _bring_together(step, self)
    return result


def _called(step: Step, original: Callable[..., Any], layer: Any, args: Any, kwargs: Any) -> Any:
    rows, whole = step.rows, sees_whole(layer)
    if rows is None and not whole:
        rows = step.rows_of((args, kwargs)) if step.can_meet() else None
        if rows is None:
            return original(layer, *args, **kwargs)
        if not step.has_rows_of_data((args, kwargs)):
            step.give_whole_batch(layer)
        if sees_whole_back(step.model):
            args, kwargs = rows.asked_for_all((args, kwargs))
        args, kwargs = rows.own((args, kwargs))
        with step.on(rows, layer):
            result = _looked_at(step, original, layer, args, kwargs)
            return rows.whole(result, promise=True)
    if rows is None:
        return original(layer, *args, **kwargs)
    if whole and not step.can_meet():
        step.give_whole_batch(layer)
    if not whole or step.again:
        return _looked_at(step, original, layer, args, kwargs)
    args, kwargs = rows.whole((args, kwargs))
    outer, step.cut = step.cut, step.cut or layer
    try:
        with step.on(None, layer):
            result = original(layer, *args, **kwargs)
            # Only then is it asked for all rows on the way back, which costs a message.
            return rows.own(rows.asked_for_all(result) if sees_whole_back(layer) else result)
    finally:
        step.cut = outer


def _try_whole_batch(step: Step, layer: Any) -> None:
    """Lets the step be traced again if a layer failed with own rows, whose sizes are not known."""
    had_own_rows = step.rows is None and step.shared is not None and not sees_whole(layer)
    if had_own_rows and not step.again and getattr(layer, "whole_batch", True) and step.can_meet():
        step.give_whole_batch(layer)


def _looked_at(step: Step, original: Callable[..., Any], layer: Any, args: Any, kwargs: Any) -> Any:
    """Calls a layer with own rows, and finds out whether it looks at other rows."""
    is_known = not _runs_users_code(layer) or hasattr(layer, "whole_batch")
    if is_known or step.backward:
        return original(layer, *args, **kwargs)
    step.site = site = mixing.CallSite.now()
    try:
        result = original(layer, *args, **kwargs)
    finally:
        step.site = None
    if site.mixes((args, kwargs)):
        step.give_whole_batch(layer)
    if step.shared is not None and step.can_meet():
        step.shared.compare_constants(step, site.constants)
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
            result |= bool(own_state(layer) or names & {"add_loss", "update_state"})
        kept["_distlab_sees_whole"] = getattr(layer, "whole_batch", result)
    return bool(kept["_distlab_sees_whole"])


def sees_whole_back(layer: Any) -> bool:
    """Whether a layer that gets the whole batch is given all rows of its outputs' gradient.

    Of a model it says so of all that the step computes outside of layers.
    """
    return bool(vars(layer).get("_distlab_sees_whole_back"))


@replaces("tensorflow.python.ops.custom_gradient._graph_mode_decorator")
def custom_gradient(
    step: Step, original: Callable[..., Any], function: Any, args: Any, kwargs: Any
) -> Any:
    """Gives a user's own gradient what is asked of the whole batch.

    With own rows it finds that `replicas` times, which only what is linear may ignore.
    """
    if (
        step.shared is None
        or step.backward
        or not is_of_user(getattr(function, "__module__", None))
    ):
        return original(function, args, kwargs)
    if step.rows is None or step.layer is None:
        whole = step.cut or step.model
        if not sees_whole_back(whole):
            vars(whole)["_distlab_sees_whole_back"] = step.again = True
        return original(function, args, kwargs)
    layer, rows = step.layer, step.rows

    def scaled(*given: Any) -> Any:
        result, back = function(*given)

        def back_of_whole(*asked: Any, **variables: Any) -> Any:
            if not step.backward:  # asked for by the layer itself
                return back(*asked, **variables)
            if not any(map(has_rows, tf.nest.flatten(result))):
                return of_weights(*asked, **variables)
            site, times = mixing.CallSite.now(), rows.replicas / step.gradient_divisor
            found = back(*[_times(each, 1 / times) for each in asked], **variables)
            if site.mixes((asked, given, result)):
                vars(layer)["_distlab_sees_whole_back"] = True
                step.give_whole_batch(layer)
            return tf.nest.map_structure(lambda each: _times(each, times), found)

        def of_weights(*asked: Any, **variables: Any) -> Any:
            # Of what has no rows each replica is asked for the part of its own.
            divisor, reduce = step.gradient_divisor, rows.context.all_reduce
            means = [run_collective(reduce, MEAN, tf.convert_to_tensor(each)) for each in asked]
            found = back(*[_times(each, divisor) for each in means], **variables)
            return tf.nest.map_structure(lambda each: _times(each, 1 / divisor), found)

        back_of_whole.__signature__ = inspect.signature(back)  # type: ignore[attr-defined]
        return result, back_of_whole

    return original(scaled, args, kwargs)


def _times(value: Any, factor: float) -> Any:
    return None if value is None else value * tf.cast(factor, value.dtype)


def _may_hold(name: str, value: Any) -> bool:
    """Whether what a layer has under a name may hold a function that it calls with rows."""
    if name in ("build", "quantize") or name.endswith(("initializer", "regularizer", "constraint")):
        return False
    return callable(value) or isinstance(value, list | tuple | dict)


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
    """Whether a layer is the user's, or one of Keras's that was given a function of the user's."""
    if not is_keras(layer) or isinstance(layer, keras.Model | keras.layers.Lambda):
        return True
    if "_distlab_runs_users_code" not in vars(layer):
        held = tf.nest.flatten(
            [value for name, value in vars(layer).items() if _may_hold(name, value)]
        )
        layer._distlab_runs_users_code = any(
            _runs_users_code(each) if isinstance(each, keras.layers.Layer) else not is_keras(each)
            for each in held
            if callable(each)
        )
    return bool(layer._distlab_runs_users_code)


@replaces("keras.layers.Layer._losses", is_stored=True)
def losses_of_step(step: Step, original: Callable[..., Any], self: Any) -> list[Any]:
    """The losses that a layer was given in this step; each replica, a thread, has its own."""
    return step.losses.setdefault(id(self), [])


@replaces("keras.layers.Layer.add_loss")
def add_loss(step: Step, original: Callable[..., Any], self: Any, loss: Any) -> None:
    """Adds a loss to the step's; that of own rows is their part of the mean over replicas."""
    if step.rows is not None:
        change = step.rows.scaled_share if step.own_losses else step.rows.whole
        loss = let_out(tf.nest.map_structure(change, loss))
    layer_losses(self).extend(tf.nest.flatten(loss))


@replaces("keras.layers.Layer._get_own_losses")
def own_losses(step: Step, original: Callable[..., Any], self: Any) -> list[Any]:
    """The layer's losses in this step, also where Keras keeps them elsewhere."""
    return list(layer_losses(self))


def _bring_together(step: Step, layer: keras.layers.BatchNormalization) -> None:
    """Moving averages become the mean of those that replicas have of their own rows."""
    rows, both = step.batch, (layer.moving_mean, layer.moving_variance)
    values = tf.stack([tf.convert_to_tensor(variable) for variable in both])
    means = rows.total(values * tf.cast(rows.share, values.dtype))
    for variable, mean in zip(both, tf.unstack(means), strict=True):
        variable.assign(mean)


@replaces("keras.layers.BatchNormalization._moments")
def moments_of_batch(
    step: Step, original: Callable[..., Any], self: Any, inputs: tf.Tensor, mask: Any
) -> Any:
    """Mean and variance of the whole batch, made of those of the replicas' rows."""
    if step.rows is None:
        return original(self, inputs, mask)
    if not step.can_meet():  # in the cell of a recurrent layer
        step.give_whole_batch(self)
        return original(self, inputs, mask)
    if step.batch_norm == "replica" and not self.synchronized:
        step.own_statistics.append(self)
        return original(self, inputs, mask)
    rows, axes = step.rows, reduction_axes(self)
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
