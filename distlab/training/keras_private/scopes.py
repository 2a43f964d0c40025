"""Where a model, its layers and its optimizers were made: in the scope of which strategy."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from distlab.training.keras_private import held, models
from distlab.training.keras_private.held import inner


def made_outside(model: keras.Model, strategy: tf.distribute.Strategy) -> str | None:
    """Returns what of a model was not made inside `strategy.scope()`, None if all was."""
    if not strategy_matters(strategy):
        return None
    inside = model._distribute_strategy is strategy
    if not inside or not all(_is_of(strategy, one) for one in held.optimizers_of(model)):
        return ""
    for layer in models.layers(model) if strategy.num_replicas_in_sync > 1 else ():
        for weight in layer._trainable_variables:
            made = getattr(weight._value, "distribute_strategy", None)
            if weight._value is not None and weight.trainable and made is not strategy:
                return str(layer.name)
    return None


def _is_of(strategy: tf.distribute.Strategy, optimizer: keras.optimizers.Optimizer) -> bool:
    every = (optimizer, inner(optimizer))
    return all(one._distribution_strategy is strategy for one in every)


def strategy_matters(strategy: tf.distribute.Strategy) -> bool:
    """Whether variables must be made inside the scope: not under TensorFlow's default."""
    return type(strategy).__name__ != "_DefaultDistributionStrategy"


@contextlib.contextmanager
def kept_graph() -> Iterator[None]:
    """Inside the block Keras's `clear_session` leaves the strategy's scope in place.

    It resets TensorFlow's default graph, which holds the scopes that are entered.
    """
    reset = tf.compat.v1.reset_default_graph
    tf.compat.v1.reset_default_graph = lambda: None
    try:
        yield
    finally:
        tf.compat.v1.reset_default_graph = reset


def compiling_in_scope(keras_compile: types.MethodType) -> Callable[..., None]:
    """Returns a `compile` that makes optimizer and metrics where the model's variables are."""
    model: Any = keras_compile.__self__

    @functools.wraps(keras_compile)
    def compile_(*args: Any, **kwargs: Any) -> None:
        strategy = model.distribute_strategy
        with strategy.scope():
            for value in (*args, *kwargs.values()):
                if isinstance(value, keras.optimizers.Optimizer) and not value.built:
                    _made_again(value, strategy)
            keras_compile(*args, **kwargs)

    return compile_


def _made_again(optimizer: keras.optimizers.Optimizer, strategy: tf.distribute.Strategy) -> None:
    """Makes an optimizer that was created elsewhere, and has no slots yet, a strategy's own."""
    if not strategy_matters(strategy) or _is_of(strategy, optimizer):
        return
    try:
        again = type(optimizer).from_config(optimizer.get_config())
    except Exception:  # a class of the user's that has no config: told by `check_scope`
        return
    # The same object stays, since its owner may hold it.
    optimizer.__dict__.clear()
    optimizer.__dict__.update(again.__dict__)
