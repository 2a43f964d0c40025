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
from distlab.training.parameter_server.checking import check_strategy
from distlab.training.parameter_server.fitting import fit_on_servers
from distlab.training.predicting import make_predict_function
from distlab.training.splitting import split
from distlab.training.workers.ending import ended_together
from distlab.training.workers.exchanging import workers_of
from distlab.training.workers.logs import read_logs_together
from distlab.training.workers.writing import write_as_chief

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
    as many steps in one execution as fit into 0.2 s, unless a callback listens to batches.

    Several workers (MultiWorkerMirroredStrategy) run the same script. Each reads the whole data set
    and takes its part of every batch, so all must read it in one order: a shuffle without a seed is
    refused. (An auto-shard policy named in the data's options is kept: FILE reads less, and changes
    which examples form a batch.) Logs are those of all workers, the same on each, and what stops
    one stops all in that step. `predict` gives every worker all predictions. What `save` and
    Keras's callbacks write, the chief writes, and all can read once the call returns. An exception
    of one worker ends the others with its text, and one that is lost is named.

    With parameter servers (ParameterServerStrategy) the coordinator calls `fit`, which sends each
    step to the worker that is free first; workers wait for nobody. One worker takes the steps of
    one device. With several a step may start from weights that are a few steps old; each batch of
    an epoch is trained on once, and logs are exact for what was run. Workers read the data
    themselves where all would read the same, from files that all can see; else the coordinator
    reads, and warns. A few steps are under way while callbacks run, unless one listens to batches:
    it sees one step at a time. With `steps_per_execution` so many steps are sent at once. The step
    of a lost worker is run by another, so it may be applied twice; a lost server ends `fit`.
    Moving statistics, and optimizer slots that are assigned (momentum), may lose one of two
    updates that come at once; weights lose none. The coordinator itself computes `predict`.

    What is exact is what adds up over examples. A loss, or a metric, of the batch as a whole (dice,
    contrastive pairs, a maximum) is each replica's own, and so is a mask in a BatchNormalization. A
    single number that a layer gives to `add_loss` counts as a mean over its examples. Whole numbers
    that a layer counts stay each replica's. Where a batch has fewer examples than replicas, a
    replica works on one that does not count (or, beside a synchronised layer, on none).

    Under TPUStrategy the same functions are used, and none of it was run: the check for a finite
    loss is dropped by XLA, and partial batches need `drop_remainder=True`.

    Args:
        build: Takes nothing, returns a new compiled `keras.Model`, as for one device.
        strategy: Any that `make_strategy` makes.

    Returns:
        The model.

    Raises:
        InvalidArgument: `strategy` is none.
        ModelError: `build` does not make a new compiled model, the model has its own
            `train_step`, `test_step` or `compute_loss`, or its optimizer cannot train there.
            `fit` raises it for a loss that is not finite, with the step and the replica.
        DeviceError: Workers beside parameter servers have several GPUs each.
        ProcessError: Another worker has failed or was lost, or a parameter server was. `fit`,
            `evaluate`, `predict` and `save` raise it too.
    """
    if not isinstance(strategy, tf.distribute.Strategy):
        raise InvalidArgument(
            asked=f"distribute(build, {strategy!r})",
            found=f"a {type(strategy).__name__} where a strategy should be",
            do='make one: distribute(build, distlab.make_strategy("mirrored"))',
        )
    kind = describe(strategy).kind
    if kind == "parameter_server":
        check_strategy(strategy)
    model = _build(build, strategy)
    if is_legacy(model):
        return distribute_legacy(model, strategy)
    check_scope(model, strategy)
    check_methods(model, base=keras.Model, methods=_CUSTOM)
    check_optimizer(model)
    models.compile_in_scope(model)
    if kind == "parameter_server":
        return fit_on_servers(model)
    workers = workers_of(strategy)
    read_logs_together(model, workers)
    write_as_chief(model, workers)
    fitting = Fitting(model)
    models.build_without_drawing(model, fitting.on_data, targets_explained)
    models.replace_function_makers(
        model,
        {
            "train": lambda model: make_train_function(
                model,
                steps=fitting.train_steps,
                check_finite=fitting.check_finite,
                see=fitting.see if workers.count > 1 else None,
            ),
            "test": lambda model: make_test_function(model, steps=lambda: fitting.test_steps),
            "predict": lambda model: (
                make_predict_function(model)
                if workers.count > 1
                else models.make_predict_function(model, lambda batch: split(strategy, batch)[0])
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
    with ended_together(workers_of(strategy), "build"), strategy.scope():
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
