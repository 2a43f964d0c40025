"""An optimizer of Keras: what it does where no strategy is."""

from __future__ import annotations

from typing import Any

import keras
from keras.src.optimizers.base_optimizer import BaseOptimizer


def on_one_device(optimizer: keras.optimizers.Optimizer, method: str, *args: Any) -> Any:
    """Calls a method of an optimizer as Keras has it for every backend."""
    return getattr(BaseOptimizer, method)(optimizer, *args)


def apply_scaled(optimizer: keras.optimizers.LossScaleOptimizer, *args: Any) -> Any:
    """Applies scaled gradients where they are."""
    return optimizer._common_apply(*args)
