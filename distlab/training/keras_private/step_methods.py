"""Which steps of a model run as they are written, and which as Keras's."""

from __future__ import annotations

import keras

from distlab.training.keras_private import held, losses, models


def is_own(model: keras.Model, method: str) -> bool:
    """Whether a step of the model runs unchanged on every replica.

    It does if the model brings it, or its `compute_loss`. With a `compute_metrics` of its own
    Keras's step runs so, too: only the step knows what that returns.

    Args:
        model: A compiled model.
        method: "train_step" or "test_step".
    """
    if models.has_own(model, method, "compute_loss"):
        return True
    accumulates = any(one.gradient_accumulation_steps for one in held.optimizers_of(model))
    gathers = losses.batch_losses_gathered(model)
    return models.has_own(model, "compute_metrics") and not (accumulates or gathers)
