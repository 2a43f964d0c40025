"""The optimizer that makes the step."""

from __future__ import annotations

import keras


def inner(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Returns the optimizer that makes the step: what a `LossScaleOptimizer` holds, or itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)
