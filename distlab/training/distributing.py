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

import keras
import tensorflow as tf

from distlab.errors import InvalidArgument, ModelError
from distlab.strategy.describing import describe
from distlab.training.checks import check_methods, check_optimizer, check_scope
from distlab.training.explaining import targets_explained
from distlab.training.fitting import Fitting
from distlab.training.functions import make_test_function, make_train_function
from distlab.training.keras_private import models
from distlab.training.legacy import distribute_legacy, is_legacy
from distlab.training.splitting import split

# Strategies of one process; those of a cluster need more than a train function.
SUPPORTED_KINDS = ("default", "one_device", "mirrored", "central_storage", "tpu")

# What a model's class may override that our train function would pass over in silence.
_CUSTOM = ("train_step", "test_step", "compute_loss")


def distribute(build: Callable[[], keras.Model], strategy: tf.distribute.Strategy) -> keras.Model:
    """Builds a model under a strategy, so that its own `fit` takes the steps of one device.

    `build` runs inside the strategy's scope. The model that comes back is the one it made, with
    Keras's own `fit`, `evaluate`, `predict` and `save`; what `fit` and `evaluate` run for a
    batch is ours. Each example has the same weight, also in a partial last batch, under masks and
    sample weights; clipping, accumulation and loss scaling see the gradient of the global batch;
    regularisers count once. The batch size that a data set or `fit` is given is the GLOBAL one.

    Layers: what a BatchNormalization (or any layer) writes is averaged over the replicas by their
    shares; the statistics themselves are those of one device with `synchronized=True`. Dropout
    and other seeded layers draw by (seed, `optimizer.iterations`, replica): differently on each
    replica, the same in a second run, and not what one device draws.

    `steps_per_execution` is honoured. Where it is left at 1, the second epoch and later ones take
    as many steps in one execution as fit into 0.2 s, unless a callback listens to batches. Data
    that workers share are sharded by example (DATA), unless their options name a policy; FILE
    reads less and changes which examples form a global batch.

    What is exact is what adds up over examples. A loss, or a metric, of the batch as a whole (dice,
    contrastive pairs, a maximum) is each replica's own, and so is a mask in a BatchNormalization. A
    single number that a layer gives to `add_loss` counts as a mean over its examples. Whole numbers
    that a layer counts stay each replica's. Where a batch has fewer examples than replicas, a
    replica works on one that does not count (or, beside a synchronised layer, on none).

    Under TPUStrategy the same functions are used, and none of it was run: the check for a finite
    loss is dropped by XLA, and partial batches need `drop_remainder=True`.

    Args:
        build: Takes nothing, returns a new compiled `keras.Model`, as for one device.
        strategy: Of kind "default", "one_device", "mirrored", "central_storage" or "tpu".

    Returns:
        The model.

    Raises:
        InvalidArgument: `strategy` is none, or of another kind.
        ModelError: `build` does not make a new compiled model, the model has its own
            `train_step`, `test_step` or `compute_loss`, or its optimizer cannot train there.
            `fit` raises it for a loss that is not finite, with the step and the replica.
    """
    if not isinstance(strategy, tf.distribute.Strategy):
        raise InvalidArgument(
            asked=f"distribute(build, {strategy!r})",
            found=f"a {type(strategy).__name__} where a strategy should be",
            do='make one: distribute(build, distlab.make_strategy("mirrored"))',
        )
    kind = describe(strategy).kind
    if kind not in SUPPORTED_KINDS:
        raise InvalidArgument(
            asked=f"distribute(build, strategy) with a strategy of kind {kind!r}",
            found="a strategy that spans more than this process",
            do="take one of " + ", ".join(map(repr, SUPPORTED_KINDS)) + ", or write the loop "
            "by hand, as lesson 03 does",
        )
    model = _build(build, strategy)
    if is_legacy(model):
        return distribute_legacy(model, strategy)
    check_scope(model, strategy)
    check_methods(model, base=keras.Model, methods=_CUSTOM)
    check_optimizer(model)
    models.compile_in_scope(model)
    fitting = Fitting(model)
    models.build_without_drawing(model, fitting.on_data, targets_explained)
    models.replace_function_makers(
        model,
        {
            "train": lambda model: make_train_function(
                model, steps=fitting.train_steps, check_finite=fitting.check_finite
            ),
            "test": lambda model: make_test_function(model, steps=lambda: fitting.test_steps),
            "predict": lambda model: models.make_predict_function(
                model, lambda batch: split(strategy, batch)[0]
            ),
        },
    )
    return model


def _build(build: Callable[[], keras.Model], strategy: tf.distribute.Strategy) -> keras.Model:
    if isinstance(build, keras.Model) or is_legacy(build) or not callable(build):
        raise ModelError(
            asked=f"distribute({type(build).__name__}, strategy)",
            found="not a function that builds a model; a model that exists already was built "
            "outside the strategy's scope",
            do="write `def build(): ...; return model` and give distribute(build, strategy)",
        )
    with strategy.scope():
        model = build()
    if is_legacy(model):
        return model
    if not isinstance(model, keras.Model) or not model.compiled or model.optimizer is None:
        found = (
            "a model that was not compiled"
            if isinstance(model, keras.Model)
            else f"build() returned {type(model).__name__}, not a keras.Model"
        )
        raise ModelError(
            asked="distribute(build, strategy)",
            found=found,
            do="let build() call model.compile(optimizer=..., loss=...) and return the model",
        )
    return model
