"""The parts of an optimizer's step that must see what all replicas did."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf


def inner(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Returns the optimizer that makes the step: what a `LossScaleOptimizer` holds, or itself.

    Args:
        optimizer: The optimizer a model was compiled with.
    """
    return getattr(optimizer, "inner_optimizer", optimizer)


def batches_seen(optimizer: keras.optimizers.Optimizer) -> tf.Tensor:
    """Returns how many batches the optimizer has seen, also those it only accumulated.

    Args:
        optimizer: The optimizer a model was compiled with.
    """
    return tf.convert_to_tensor(inner(optimizer)._iterations)


def is_update_step(optimizer: keras.optimizers.Optimizer) -> tf.Tensor | None:
    """Whether the next batch ends an accumulation of gradients; None if none is asked for.

    Args:
        optimizer: The optimizer a model was compiled with.
    """
    steps = inner(optimizer).gradient_accumulation_steps
    return None if not steps else tf.equal((batches_seen(optimizer) + 1) % steps, 0)


@contextlib.contextmanager
def accumulating(optimizer: keras.optimizers.Optimizer, *, update: bool) -> Iterator[None]:
    """Inside the block `apply` adds to the accumulated gradients, or takes the step with them.

    Keras decides between the two by a condition inside the replica's step, where no condition
    may hold an update of a variable on several replicas.

    Args:
        optimizer: A built optimizer with `gradient_accumulation_steps`.
        update: Whether to take the step.
    """
    one = inner(optimizer)

    def apply(gradients: list[tf.Tensor], variables: list[Any]) -> None:
        sums = [one._accumulated_gradients[one._get_variable_index(v)] for v in variables]
        if update:
            steps = one.gradient_accumulation_steps
            means = [(new + old) / steps for new, old in zip(gradients, sums, strict=True)]
            means = one._clip_gradients(means)
            one._apply_weight_decay(variables)
            one._backend_update_step(means, variables, one.learning_rate)
            one._backend_reset_gradient_accumulators()
        else:
            one._backend_increment_gradient_accumulators(gradients, sums)
        one._update_model_variables_moving_average(one._trainable_variables)

    with _replaced(one, "_backend_apply_gradients", apply):
        yield


@contextlib.contextmanager
def overwriting_after(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Moves `ema_overwrite_frequency` from the replica's step to the end of the block.

    Keras replaces weights by their average under a condition inside the replica's step, where
    no condition may hold an update of a variable on several replicas.

    Args:
        optimizer: The optimizer a model was compiled with.
    """
    one = inner(optimizer)
    if not (one.use_ema and one.ema_overwrite_frequency):
        yield
        return
    step = tf.convert_to_tensor(one.iterations)
    due = tf.equal((step + 1) % one.ema_overwrite_frequency, 0)
    batches = batches_seen(optimizer)
    with _replaced(one, "ema_overwrite_frequency", None):
        yield
    # A step that a LossScaleOptimizer skipped is none.
    due &= batches_seen(optimizer) > batches

    def overwrite() -> None:
        one._overwrite_model_variables_with_average_value(one._trainable_variables)
        for variable in one._trainable_variables:
            if variable.constraint is not None:  # Keras applies it last, in every step
                one._distribution_strategy.extended.update(
                    variable.value, lambda v, c=variable.constraint: v.assign(c(v))
                )

    tf.cond(due, overwrite, lambda: None)


@contextlib.contextmanager
def counting_at_once(optimizer: keras.optimizers.Optimizer) -> Iterator[None]:
    """Inside the block the optimizer counts a step in one operation on the variable.

    Keras reads, adds and writes: where several workers share the variable, counts get lost.

    Args:
        optimizer: The optimizer a model was compiled with.
    """
    counts = {id(one._iterations): one._iterations for one in (optimizer, inner(optimizer))}
    with contextlib.ExitStack() as patches:
        for count in counts.values():
            patches.enter_context(_replaced(count, "assign_add", functools.partial(_add, count)))
        yield


def _add(variable: Any, value: Any) -> None:
    variable.value.assign_add(tf.cast(value, variable.dtype))


@contextlib.contextmanager
def _replaced(one: Any, name: str, value: Any) -> Iterator[None]:
    """Sets an attribute of this one object, past Keras's own bookkeeping, for a block."""
    kept = {name: one.__dict__[name]} if name in one.__dict__ else {}
    one.__dict__[name] = value
    try:
        yield
    finally:
        del one.__dict__[name]
        one.__dict__.update(kept)
