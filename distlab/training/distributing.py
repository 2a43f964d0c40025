"""One line between a Keras model and any strategy.

def build():
    model = keras.Sequential([keras.Input((8, 8, 1)), ...])
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy")
    return model

model = distribute(build, strategy)
model.fit(train, epochs=3, validation_data=test)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import keras
import tensorflow as tf

from distlab.errors import InvalidArgument, ModelError, did_you_mean
from distlab.strategy import collective_keys
from distlab.training.keras_private import losses, scopes
from distlab.training.kinds import TF_KERAS, kind_of
from distlab.training.legacy_models import is_legacy
from distlab.training.model_requirements import check_gathers
from distlab.training.overrides import install
from distlab.training.workers.ending import ended_together
from distlab.training.workers.exchanging import workers_of


def distribute(
    build: Callable[[], keras.Model],
    strategy: tf.distribute.Strategy,
    *,
    batch_losses: Literal["replica", "gather"] = "replica",
) -> keras.Model:
    """Builds a model under a strategy, so that its own `fit` takes the steps of one device.

    `build` runs inside the strategy's scope. You get back the model that it made, with Keras's own
    `fit`, `evaluate`, `predict` and `save`. distlab replaces what `fit`, `evaluate` and `predict`
    run for a batch and, with several workers, how files are written. Up to rounding, the weights
    and the logs are those of plain Keras on one device:

    - The batch size of a data set or of `fit` is that of the GLOBAL batch. Each example has the
      same weight, even in a partial last batch, under masks and with sample weights.
    - Clipping, accumulation and loss scaling see the gradient of the global batch, and
      regularisers count once.
    - Your own `train_step`, `test_step` or `compute_loss` runs on every replica. Write it as for
      one device.

    What adds up over examples is exact. Random layers draw differently than on one device, and a
    BatchNormalization needs `synchronized=True`. With several parameter-server workers, a step may
    start from weights that are a few steps old. The page docs/distribute.md of distlab's repository
    says all of this in detail, and lists what is not exact.

    Args:
        build: Takes nothing, returns a new compiled `keras.Model`, as for one device.
        strategy: Any that `make_strategy` makes.
        batch_losses: What a compiled loss sees that looks at the batch as a whole (dice, pairs of
            examples, a ratio over a mask). With "replica" each replica uses its own examples, and
            `fit` warns how far off that is. With "gather" each compiled loss that is not Keras's
            own is computed from the examples of all replicas.

    Returns:
        The model.

    Raises:
        InvalidArgument: `strategy` is not a strategy, or `batch_losses` is not a choice.
        ModelError: `build` does not make a new compiled model, the strategy cannot train this model
            or its optimizer, or `batch_losses="gather"` does not reach its losses. `fit` raises it
            for a loss that is not finite, with the step and the replica.
        DeviceError: Workers beside parameter servers have several GPUs each.
        ProcessError: Another worker has failed or was lost, or a parameter server was. `fit`,
            `evaluate`, `predict` and `save` raise it too.
    """
    _check_arguments(build, strategy, batch_losses)
    kind = kind_of(strategy)
    kind.check_strategy(strategy)
    collective_keys.separate(strategy)
    with ended_together(workers_of(strategy), "build"), strategy.scope(), scopes.kept_graph():
        model = build()
    if is_legacy(model):
        kind = TF_KERAS
    kind.check_model(model, strategy)
    if batch_losses == "gather":
        check_gathers(model)
        losses.gather_batch_losses(model)
    return install(model, kind.table(model))


def _check_arguments(build: Any, strategy: Any, batch_losses: Any) -> None:
    if not isinstance(strategy, tf.distribute.Strategy):
        raise InvalidArgument(
            asked=f"distribute(build, {strategy!r})",
            found=f"a {type(strategy).__name__} where a strategy should be",
            do='make one: distribute(build, distlab.make_strategy("mirrored"))',
        )
    if batch_losses not in ("replica", "gather"):
        raise InvalidArgument(
            asked=f"distribute(build, strategy, batch_losses={batch_losses!r})",
            found="no such choice",
            do=did_you_mean(str(batch_losses), ("replica", "gather")),
        )
    if hasattr(build, "trainable_variables") or not callable(build):
        raise ModelError(
            asked=f"distribute({type(build).__name__}, strategy)",
            found="not a function that builds a model; a model that exists already was built "
            "outside the strategy's scope",
            do="write `def build(): ...; return model` and give distribute(build, strategy)",
            pitfall="A model made before the scope: an empty AssertionError",
        )
