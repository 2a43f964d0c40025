"""Whether a model can be trained as `distribute` does, asked before the first step.

    check_scope(model, strategy)                       # made where its variables belong?
    check_methods(model, base=keras.Model, ...)        # with Keras's own step?
    check_optimizer(model)                             # by an optimizer that works there?

Keras stops in the middle of a step, with a text that names neither the cause nor the cure.
"""

from __future__ import annotations

from typing import Any

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


def check_methods(model: Any, *, base: type, methods: tuple[str, ...]) -> None:
    """Raises where the model's class brings a step of its own.

    Args:
        model: A model of Keras or tf_keras.
        base: The class of models there.
        methods: What is not to be overridden: our step would pass over it in silence.

    Raises:
        ModelError: It does.
    """
    own = [name for name in methods if getattr(type(model), name) is not getattr(base, name)]
    if own:
        raise ModelError(
            asked=f"distribute(build, strategy) with a {type(model).__name__}",
            found=f"a custom {' and '.join(own)}, which the distributed step cannot call",
            do="write the loop by hand, as lesson 03 does, or express it as a loss, a metric "
            "or a layer",
        )


def check_optimizer(model: keras.Model) -> None:
    """Raises where the model's optimizer cannot train under the model's strategy.

    With the one copy of each variable that CentralStorageStrategy keeps, an optimizer can only
    update the weights and its slots for them.

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
