"""Which optimizers can train with the one copy of each variable that CentralStorage keeps.

    check_optimizer(model)      # raises where Keras would stop in the middle of a step

There an optimizer can only update the weights and its slots for them. Keras stops with a text
that names neither the optimizer nor its option.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from distlab.errors import ModelError
from distlab.strategy.describing import describe
from distlab.training.keras_private import models
from distlab.training.keras_private.optimizers import inner


def check_scope(model: keras.Model, strategy: tf.distribute.Strategy) -> None:
    """Raises where the model, or its optimizer, was made outside the strategy's scope.

    Args:
        model: A compiled model.
        strategy: The strategy that shall train it.

    Raises:
        ModelError: It was.
    """
    if not models.built_in_scope_of(model, strategy):
        raise ModelError(
            asked="distribute(build, strategy)",
            found="a model, or its optimizer, that was made outside the strategy's scope: its "
            "variables are not on the replicas",
            do="create the layers and the optimizer inside build(), which distribute calls in "
            "the scope; for a later compile(), create the optimizer `with strategy.scope():`",
        )


def check_optimizer(model: keras.Model) -> None:
    """Raises where the model's optimizer cannot train under the model's strategy.

    Args:
        model: A compiled model.

    Raises:
        ModelError: The optimizer has an option, or is of a kind, that does not work there.
    """
    strategy = model.distribute_strategy
    replicas = strategy.num_replicas_in_sync
    if replicas == 1 or describe(strategy).kind != "central_storage":
        return
    optimizer = inner(model.optimizer)
    found = []
    if optimizer.gradient_accumulation_steps:
        found.append(f"gradient_accumulation_steps={optimizer.gradient_accumulation_steps}")
    if optimizer.use_ema:
        found.append("use_ema=True")
    if optimizer is not model.optimizer:
        found.append("a LossScaleOptimizer")
    if isinstance(optimizer, keras.optimizers.Muon):
        found.append("Muon")
    if found:
        raise ModelError(
            asked=f"train with {type(optimizer).__name__} under CentralStorageStrategy",
            found=f"{' and '.join(found)}, which cannot update the one copy of a variable that "
            f"{replicas} replicas share there",
            do="leave it out, or take dl.make_strategy('mirrored')",
        )
