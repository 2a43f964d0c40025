"""What Keras and TensorFlow do in a step, in the hands of whoever watches this thread.

    with installed():                        # around `strategy.run`, or a call of a step
        with using(hooks):                # in the replica's own thread
            model.train_step(data)           # the user's, unchanged

`installed` replaces a few functions for a while. Each replacement asks whether this thread is
watched, and does what the original does if it is not.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.losses import loss as loss_module
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.eager.polymorphic_function import autograph_util
from tensorflow.python.ops.resource_variable_ops import ResourceVariable


class Hooks:
    """What a watched step does. Subclasses change what they need; this changes nothing."""

    # Whether losses are divided by the number of replicas: by Keras, which multiplies them again,
    # and by code that asks its strategy for the number.
    keras_scales_losses = True

    def gradient(
        self, compute: Callable[..., Any], target: Any, sources: Any, output_gradients: Any
    ) -> Any:
        """`GradientTape.gradient`; `compute` takes a target, sources and output gradients."""
        return compute(target, sources, output_gradients)

    def in_backward_pass(self) -> Hooks:
        """What watches while gradients are computed."""
        return Hooks()

    def update_mean(
        self, update: Callable[[Any, Any], None], values: Any, sample_weight: Any
    ) -> None:
        """`keras.metrics.Mean.update_state`."""
        update(values, sample_weight)

    def update_sum(
        self, update: Callable[[Any, Any], None], values: Any, sample_weight: Any
    ) -> None:
        """`keras.metrics.Sum.update_state`."""
        update(values, sample_weight)

    def read(self, read: Callable[[], Any], variable: Any) -> Any:
        """The value of a Keras variable."""
        return read()

    def assign(self, assign: Callable[[Any], None], variable: Any, value: Any) -> None:
        """Assignment to a Keras variable."""
        assign(value)

    def write(self, variable: tf.Variable) -> None:
        """Called before a TensorFlow variable is assigned to."""

    def apply(
        self, apply: Callable[[Any, Any], None], optimizer: Any, grads: Any, variables: Any
    ) -> None:
        """An optimizer's `apply`."""
        apply(grads, variables)


# Replicas are traced in turns, each in a thread of its own.
_NOW = threading.local()

_LOCK = threading.Lock()
_PUT_BACK = contextlib.ExitStack()
_blocks = 0  # how many `installed` blocks are open


@contextlib.contextmanager
def using(hooks: Hooks | None) -> Iterator[None]:
    """Inside the block, this thread's steps go through the hooks.

    Args:
        hooks: What to do; None for what Keras and TensorFlow do.
    """
    before = getattr(_NOW, "hooks", None)
    _NOW.hooks = hooks
    try:
        yield
    finally:
        _NOW.hooks = before


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Inside the block, threads can use hooks. Blocks may be nested, and may overlap."""
    global _blocks
    with _LOCK:
        _blocks += 1
        if _blocks == 1:
            for owner, name, make in _REPLACED:
                original = getattr(owner, name)
                if name in vars(owner):
                    _PUT_BACK.callback(setattr, owner, name, original)
                else:
                    _PUT_BACK.callback(delattr, owner, name)
                made = make(original)
                if not isinstance(made, property):
                    functools.update_wrapper(made, original)
                setattr(owner, name, made)
    try:
        yield
    finally:
        with _LOCK:
            _blocks -= 1
            if _blocks == 0:
                _PUT_BACK.close()


def _in_use() -> Hooks | None:
    return getattr(_NOW, "hooks", None)


def _gradient(original: Any) -> Any:
    def gradient(
        self: Any,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        def compute(target: Any, sources: Any, output_gradients: Any) -> Any:
            with using(hooks.in_backward_pass()):
                return original(self, target, sources, output_gradients, unconnected_gradients)

        hooks = _in_use() or Hooks()
        return hooks.gradient(compute, target, sources, output_gradients)

    return gradient


def _update(kind: str, original: Any) -> Any:
    def update_state(self: Any, values: Any, sample_weight: Any = None) -> None:
        hooks = _in_use()
        if hooks is None:
            original(self, values, sample_weight=sample_weight)
        else:
            getattr(hooks, kind)(
                lambda values, weight: original(self, values, sample_weight=weight),
                values,
                sample_weight,
            )

    return update_state


def _value(original: Any) -> Any:
    def value(self: Any) -> Any:
        hooks = _in_use() or Hooks()
        return hooks.read(lambda: original.fget(self), self)

    return property(value)


def _assign(original: Any) -> Any:
    def direct_assign(self: Any, value: Any) -> None:
        hooks = _in_use()
        if hooks is None:
            original(self, value)
        else:
            hooks.assign(lambda value: original(self, value), self, value)

    return direct_assign


def _write(original: Any) -> Any:
    def assign(self: Any, *args: Any, **kwargs: Any) -> Any:
        if hooks := _in_use():
            hooks.write(self)
        return original(self, *args, **kwargs)

    return assign


def _apply(original: Any) -> Any:
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        hooks = _in_use()
        if hooks is None:
            original(self, grads, trainable_variables)
        else:
            hooks.apply(
                lambda grads, variables: original(self, grads, variables),
                self,
                grads,
                trainable_variables,
            )

    return apply


def _summing(_original: Any) -> Any:
    def all_reduce_sum_gradients(self: Any, grads_and_vars: Any) -> Any:
        # Keras sums as the last thing before the update. Here clipping and loss scales come after.
        # A LossScaleOptimizer updates in a thread of its own, so this holds in all threads.
        return list(grads_and_vars)

    return all_reduce_sum_gradients


def _scaling(original: Any) -> Any:
    def scale(value: Any) -> Any:
        hooks = _in_use()
        return original(value) if hooks is None or hooks.keras_scales_losses else value

    return scale


def _number_of_replicas(original: Any) -> Any:
    def num_replicas_in_sync(self: Any) -> int:
        hooks = _in_use()
        module = sys._getframe(1).f_globals.get("__name__", "")
        is_asked_by_step = module.partition(".")[0] not in ("distlab", "keras", "tensorflow")
        if hooks is None or hooks.keras_scales_losses or not is_asked_by_step:
            return int(original.fget(self))
        return 1

    return property(num_replicas_in_sync)


def _call_function(original: Any) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        """A `tf.function` in a step becomes part of it: replicas cannot meet inside of one."""
        function = self._python_function
        tensorflows = getattr(function, "__module__", "").startswith("tensorflow.")
        if _in_use() is None or type(self) is not _Function or tensorflows:
            return original(self, *args, **kwargs)
        if self._autograph and not tf.executing_eagerly():
            function = autograph_util.py_func_from_autograph(function)
            with ag_ctx.ControlStatusCtx(status=ag_ctx.Status.ENABLED):
                return function(*args, **kwargs)
        return function(*args, **kwargs)

    return call


def _average(original: Any) -> Any:
    def compute_average_loss(
        per_example_loss: Any, sample_weight: Any = None, global_batch_size: Any = None
    ) -> Any:
        hooks = _in_use()
        if hooks is not None and not hooks.keras_scales_losses and global_batch_size is None:
            global_batch_size = tf.shape(per_example_loss)[0]
        return original(per_example_loss, sample_weight, global_batch_size)

    return compute_average_loss


def _regularization(original: Any) -> Any:
    def scale_regularization_loss(regularization_loss: Any) -> Any:
        hooks = _in_use()
        if hooks is None or hooks.keras_scales_losses:
            return original(regularization_loss)
        return tf.reduce_sum(regularization_loss)

    return scale_regularization_loss


_Function = type(tf.function(lambda: None))
_Strategy = next(
    kind for kind in tf.distribute.Strategy.__mro__ if "num_replicas_in_sync" in vars(kind)
)
_Optimizer = next(
    kind for kind in keras.optimizers.Optimizer.__mro__ if "_all_reduce_sum_gradients" in vars(kind)
)
_Readable = next(kind for kind in keras.Variable.__mro__ if "value" in vars(kind))
_Variable = next(kind for kind in keras.Variable.__mro__ if "_direct_assign" in vars(kind))

_REPLACED: list[tuple[Any, str, Callable[[Any], Any]]] = [
    (tf.GradientTape, "gradient", _gradient),
    (keras.metrics.Mean, "update_state", functools.partial(_update, "update_mean")),
    (keras.metrics.Sum, "update_state", functools.partial(_update, "update_sum")),
    (_Readable, "value", _value),
    (_Variable, "_direct_assign", _assign),
    *((ResourceVariable, name, _write) for name in ("assign", "assign_add", "assign_sub")),
    (_Optimizer, "_all_reduce_sum_gradients", _summing),
    (keras.optimizers.Optimizer, "apply", _apply),
    (keras.optimizers.LossScaleOptimizer, "apply", _apply),
    (loss_module, "scale_loss_for_distribution", _scaling),
    (loss_module, "unscale_loss_for_distribution", _scaling),
    (_Strategy, "num_replicas_in_sync", _number_of_replicas),
    (tf.nn, "compute_average_loss", _average),
    (tf.nn, "scale_regularization_loss", _regularization),
    (_Function, "__call__", _call_function),
]
