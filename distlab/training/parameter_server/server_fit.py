"""A model whose `fit` sends its steps to workers, with the variables on parameter servers.

session = ServerFitSession(model)
model.fit = _within(session.fit_context)(model.fit)    # as distribute.py does
model.fit(train, epochs=3)                              # Keras's, in the process that coordinates
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from distlab.errors import DatasetError, DeviceError, ModelError
from distlab.strategy.description import describe
from distlab.training.fit_session import FitSession, callbacks_in, listens
from distlab.training.keras_private import models, runs, strategies
from distlab.training.keras_private.models import inner
from distlab.training.keras_private.runs import end_data
from distlab.training.model_requirements import check_metrics
from distlab.training.parameter_server.steps import (
    InFlightSteps,
    lost_server_explained,
    test_step,
    training_step,
)
from distlab.training.replica_steps import make_predict_function
from distlab.training.step_errors import explained
from distlab.training.variables import on_settle


class ServerFitSession(FitSession):
    """Keras's `fit` of one model, whose steps workers run."""

    def __init__(self, model: keras.Model) -> None:
        super().__init__(model)
        self._strategy = model.distribute_strategy
        coordinator = tf.distribute.coordinator.ClusterCoordinator(self._strategy)
        self._in_flight = InFlightSteps(model, coordinator)
        on_settle(model, self._in_flight.settle)

    def make_train_function(self, model: keras.Model) -> Callable[[Any], dict[str, Any]]:
        """Returns the function that trains in `fit`."""
        check_model(model)  # here too: a later compile may have brought another optimizer
        check_metrics(model)
        step = training_step(model, check_finite=self.check_finite)
        return self._function(step)

    def make_test_function(self, model: keras.Model) -> Callable[[Any], dict[str, Any]]:
        """Returns the function that evaluates, also for the validation in `fit`."""
        return self._function(test_step(model))

    def make_predict_function(self, model: keras.Model) -> Callable[[list[Any]], Any]:
        """Returns the function that predicts, in this process, with variables on the servers."""
        return make_predict_function(model, scope=self._strategy)

    def _function(self, step: Callable[[Any], tf.Tensor]) -> Callable[[Any], dict[str, Any]]:
        model, in_flight = self._model, self._in_flight

        @self._explained()
        def execute(iterator: Any) -> dict[str, Any]:
            epochs = self.iterator()
            if isinstance(iterator, tf.data.Iterator) and epochs is not None:
                asked = epochs.steps_per_execution
            else:  # train_on_batch gives a generator
                asked, epochs = 1, None
            taken = 0
            while taken < asked and (batch := next(iterator, None)) is not None:
                in_flight.send(step, batch)
                taken += 1
            if not taken:
                raise StopIteration
            if epochs is None:
                in_flight.settle()
            elif taken < asked and model.steps_per_execution == 1:  # Keras knows of one step only
                end_data(epochs, taken=taken)
            return in_flight.logs()

        return execute

    def _choose_iteration(self, iterator: Any) -> None:
        self._in_flight.settle()
        data = runs.undistributed(iterator)
        assert data is not None  # `method_context` refuses what is distributed already
        if iterator.num_batches is None and data.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise DatasetError(
                asked="fit or evaluate a model on parameter servers",
                found="a data set without an end, and no number of steps",
                do="set steps_per_epoch=... for fit, and steps=... for evaluate",
            )
        runs.iterate(iterator, data.prefetch(2))

    @contextlib.contextmanager
    def method_context(self, method: str, arguments: dict[str, Any]) -> Iterator[None]:
        """The context of `fit`, `evaluate` and `predict`."""
        in_flight = self._in_flight
        if isinstance(arguments.get("x"), tf.distribute.DistributedDataset):
            raise DatasetError(
                asked=f"{method} on parameter servers",
                found="a data set that was distributed already",
                do="pass the data set itself: it is spread over the workers here",
            )
        if self._agreement is None:  # else a `fit` goes on, whose callbacks were looked at
            in_flight.one_by_one = any(map(listens, callbacks_in(arguments)))
        outer = self._iterator
        with self._explained():
            in_flight.settle()
            try:
                # This process predicts, with the weights of the servers: each batch once, in order.
                alone = method == "predict"
                with models.without_strategy(self._model) if alone else contextlib.nullcontext():
                    yield
            finally:
                self._iterator = outer
                in_flight.settle()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        with lost_server_explained(self._strategy), explained(self._model):
            yield

    def results(self, results: Callable[[], Any]) -> Callable[[], dict[str, Any]]:
        """A `get_metrics_result` that waits for all steps."""
        read = models.as_tensors(results)

        def get_metrics_result() -> dict[str, Any]:
            if not tf.inside_function():  # there Keras asks for what nobody reads
                self._in_flight.settle()
            return read()

        return get_metrics_result

    def reset(self, reset: Callable[[], None]) -> Callable[[], None]:
        """A `reset_metrics` that forgets what steps in flight bring."""

        def reset_metrics() -> None:
            self._in_flight.forget()
            reset()

        return reset_metrics


def check_strategy(strategy: tf.distribute.Strategy) -> None:
    """Raises where no Keras model can be built or trained under the strategy."""
    partitioner = strategies.partitioner_of(strategy)
    if partitioner is not None:
        raise ModelError(
            asked="distribute(build, strategy) with a ParameterServerStrategy that has a "
            f"variable_partitioner, {type(partitioner).__name__}",
            found="Keras 3 trains no layer whose variables are in shards (a ShardedVariable has "
            "no handle); raw tf.Variables can be",
            do="leave variable_partitioner out, as dl.make_strategy('parameter_server') does: "
            "whole variables are spread over the servers",
            pitfall="A layer that is cut into shards: no attribute handle",
        )
    if strategy.num_replicas_in_sync > 1:
        raise DeviceError(
            asked="distribute(build, strategy) with a ParameterServerStrategy",
            found=f"workers with {strategy.num_replicas_in_sync} GPUs each",
            do="start one worker for each GPU, with CUDA_VISIBLE_DEVICES set for it",
        )


def check_model(model: keras.Model) -> None:
    """Raises where workers cannot share the model's training."""
    several = describe(model.distribute_strategy).workers > 1
    optimizer = inner(model.optimizer)
    inside = [layer for layer in models.layers(model) if layer is not model]
    tables = [layer.name for layer in inside if hasattr(layer, "lookup_table")]
    metrics = [layer.name for layer in inside if layer.metrics]
    if model.run_eagerly:
        found, do = "run_eagerly=True", "leave it out: only compiled functions can be sent"
    elif tables:
        found = f"the layer {tables[0]!r}, whose table workers cannot reach from a step"
        do = "look up in the data, before: dataset.map(lambda x, y: (layer(x), y))"
    elif optimizer.gradient_accumulation_steps:
        found = f"gradient_accumulation_steps={optimizer.gradient_accumulation_steps}"
        do = "leave it out and take a larger batch: workers apply their gradients on their own"
    elif several and optimizer.use_ema and optimizer.ema_overwrite_frequency:
        found = f"ema_overwrite_frequency={optimizer.ema_overwrite_frequency} and several workers"
        do = "leave it out: the weights become their averages when fit ends"
    elif several and metrics:
        found = f"a metric inside the layer {metrics[0]!r}, which workers would write at once"
        do = "give the metric to compile(), or take one worker"
    else:
        return
    raise ModelError(
        asked=f"train the model {model.name!r} on parameter servers", found=found, do=do
    )
