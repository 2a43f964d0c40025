"""Which optimizers can train on several replicas.

    check_optimizer(model)      # raises where Keras would stop in the middle of a step

Some of what an optimizer does per step cannot be traced inside `strategy.run` (TensorFlow: a
`merge_call` in a condition), or not with the one copy of each variable that
CentralStorageStrategy keeps. Keras then stops with a text that names neither.
"""

from __future__ import annotations

import keras

from distlab.errors import ModelError
from distlab.strategy.describing import describe


def check_optimizer(model: keras.Model) -> None:
    """Raises where the model's optimizer cannot train under the model's strategy.

    Args:
        model: A compiled model.

    Raises:
        ModelError: The optimizer has an option, or is of a kind, that does not work there.
    """
    strategy = model.distribute_strategy
    if strategy.num_replicas_in_sync == 1:
        return
    kind = describe(strategy).kind
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    found = []
    if optimizer.gradient_accumulation_steps:
        found.append(f"gradient_accumulation_steps={optimizer.gradient_accumulation_steps}")
    if optimizer.use_ema and optimizer.ema_overwrite_frequency:
        found.append(f"ema_overwrite_frequency={optimizer.ema_overwrite_frequency}")
    if kind == "central_storage":
        if optimizer.use_ema and not optimizer.ema_overwrite_frequency:
            found.append("use_ema=True")
        if isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer):
            found.append("a LossScaleOptimizer")
        if isinstance(optimizer, keras.optimizers.Muon):
            found.append("Muon")
    if found:
        raise ModelError(
            asked=f"train with {type(optimizer).__name__} under a strategy of kind {kind!r}",
            found=f"{' and '.join(found)}, which does not work on {strategy.num_replicas_in_sync} "
            "replicas there",
            do="leave it out, or train on one device"
            + (", or try 'mirrored'" if kind == "central_storage" else ""),
        )
