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
from distlab.strategy.describing import describe
from distlab.strategy.mirrored import separate_collectives
from distlab.training import model_requirements, overrides
from distlab.training.keras_private import scopes
from distlab.training.overrides import install
from distlab.training.parameter_server import server_requirements
from distlab.training.rule.rows import BATCH_NORM
from distlab.training.workers.ending import ended_together
from distlab.training.workers.exchanging import workers_of


def distribute(
    build: Callable[[], keras.Model],
    strategy: tf.distribute.Strategy,
    *,
    batch_norm: Literal["global", "replica"] = "global",
) -> keras.Model:
    """Builds a model under a strategy, so that its own `fit` takes the steps of one device.

    `build` runs inside the strategy's scope. You get back the model that it made, with Keras's own
    `fit`, `evaluate`, `predict` and `save`. distlab replaces what `fit`, `evaluate` and `predict`
    run for a batch and, with several workers, how files are written.

    Up to rounding, the weights and the logs are those of plain Keras on one device with the same
    global batch, seeds and order, for any model: any loss, any metric, your own `train_step`,
    dropout, batch normalization. Write it as for one device. The batch size of a data set or of
    `fit` is that of the GLOBAL batch; a last batch may be partial.

    Layers compute a replica's own rows, everything else sees the whole batch. A layer of your own
    that looks at other rows is given all of them where that is seen while TensorFlow traces it; say
    so by an attribute `whole_batch = True` where it is not. With several parameter-server workers,
    a step may start from weights that are a few steps old. The page docs/distribute.md of distlab's
    repository lists what differs, and what is refused.

    Args:
        build: Takes nothing, returns a new compiled `keras.Model`, as for one device.
        strategy: Any that `make_strategy` makes.
        batch_norm: Whose rows BatchNormalization normalizes by, in training: "global", those of the
            whole batch as on one device, or "replica", each replica's own, which is faster.

    Returns:
        The model.

    Raises:
        InvalidArgument: `strategy` is not a strategy, or `batch_norm` is not a choice.
        ModelError: `build` does not make a new compiled model, or the strategy cannot train this
            model or its optimizer. `fit` raises it for what replicas cannot do, such as a draw by
            a hidden state, and for a loss that is not finite, with the step.
        DeviceError: Workers beside parameter servers have several GPUs each.
        ProcessError: Another worker has failed or was lost, or a parameter server was. `fit`,
            `evaluate`, `predict` and `save` raise it too.
    """
    _check_arguments(build, strategy, batch_norm)
    on_servers, workers = describe(strategy).kind == "parameter_server", workers_of(strategy)
    if on_servers:
        server_requirements.check_strategy(strategy)
    separate_collectives(strategy)
    with ended_together(workers, "build"), strategy.scope(), scopes.kept_graph():
        model = build()
    model_requirements.check_model(model, strategy)
    vars(model)[BATCH_NORM] = batch_norm
    if on_servers:
        server_requirements.check_model(model)
        return install(model, overrides.of_parameter_servers(model))
    several = workers.count > 1
    return install(model, (overrides.of_workers if several else overrides.of_one_process)(model))


def _check_arguments(build: Any, strategy: Any, batch_norm: Any) -> None:
    if not isinstance(strategy, tf.distribute.Strategy):
        raise InvalidArgument(
            asked=f"distribute(build, {strategy!r})",
            found=f"a {type(strategy).__name__} where a strategy should be",
            do='make one: distribute(build, distlab.make_strategy("mirrored"))',
        )
    if batch_norm not in ("global", "replica"):
        raise InvalidArgument(
            asked=f"distribute(build, strategy, batch_norm={batch_norm!r})",
            found="no such choice",
            do=did_you_mean(str(batch_norm), ("global", "replica")),
        )
    if hasattr(build, "trainable_variables") or not callable(build):
        raise ModelError(
            asked=f"distribute({type(build).__name__}, strategy)",
            found="not a function that builds a model; a model that exists already was built "
            "outside the strategy's scope",
            do="write `def build(): ...; return model` and give distribute(build, strategy)",
            pitfall="A model made before the scope: an empty AssertionError",
        )
