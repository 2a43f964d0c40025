"""A model whose `fit` sends its steps to workers, with the variables on parameter servers.

fitting = ServerFitting(model)
model.fit = within(fitting.around_fit)(model.fit)      # as training/overrides.py does
model.fit(train, epochs=3)                             # Keras's, in the process that coordinates
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import keras
import tensorflow as tf

from distlab.errors import DatasetError
from distlab.training.fitting import Fitting
from distlab.training.keras_private import held, models, servers
from distlab.training.keras_private.epochs import end_data
from distlab.training.parameter_server import stepping, task_health
from distlab.training.parameter_server.feeding import ChiefFeed, WorkerFeed, feed_of
from distlab.training.parameter_server.flight import Flight
from distlab.training.parameter_server.remote import HandedOut, Reading
from distlab.training.parameter_server.server_requirements import check_model
from distlab.training.pending_steps import on_settle
from distlab.training.step_errors import explained
from distlab.training.steps_per_execution import listens


class ServerFitting(Fitting):
    """Keras's `fit` of one model, whose steps workers run."""

    def __init__(self, model: keras.Model) -> None:
        super().__init__(model)
        self._strategy = model.distribute_strategy
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self._strategy)
        self._flight = Flight(model, self._coordinator)
        self._feeds: WeakKeyDictionary[tf.data.Dataset, WorkerFeed] = WeakKeyDictionary()
        on_settle(model, self._flight.settle)

    def make_train_function(self, model: keras.Model) -> Callable[[Any], dict[str, Any]]:
        """Returns what `fit` calls to train."""
        check_model(model)  # here too: a later compile may have brought another optimizer
        held.check_metrics(model)
        on_batch = stepping.training(model, check_finite=self.check_finite)
        return self._function(on_batch, self.train_steps, trains=True)

    def make_test_function(self, model: keras.Model) -> Callable[[Any], dict[str, Any]]:
        """Returns what `evaluate`, and validation in `fit`, call."""
        return self._function(stepping.evaluating(model), lambda: self.test_steps, trains=False)

    def make_predict_function(self, model: keras.Model) -> Callable[[list[Any]], Any]:
        """Returns what `predict` calls."""
        return models.make_predict_function(model, lambda batch: batch, strategy=self._strategy)

    def _function(
        self, on_batch: stepping.OnBatch, how_many: Callable[[], int], *, trains: bool
    ) -> Callable[[Any], dict[str, Any]]:
        model, flight = self._model, self._flight
        steps = stepping.Steps(model, on_batch)

        @self._explained()
        def execute(iterator: Any) -> dict[str, Any]:
            ours = isinstance(iterator, Reading)  # train_on_batch and test_on_batch: a generator
            reading = iterator if ours else HandedOut(iterator)
            asked = how_many() if ours else 1
            works = reading.take(asked, at_once=model.steps_per_execution)
            if not works:
                raise StopIteration
            for work in works:
                flight.send(steps, work, trains=trains)
            if not ours:
                flight.settle()
            taken = sum(work.count for work in works)
            if taken < asked and model.steps_per_execution == 1:  # Keras knows of one step only
                end_data(model, taken=taken)
            return flight.logs()

        return execute

    def _choose_iteration(self, iterator: Any) -> None:
        self._flight.settle()
        if isinstance(servers.iterated(iterator), WorkerFeed | ChiefFeed):
            return  # validation data, once more
        data = models.undistributed(iterator)
        assert data is not None  # `_around` refuses what is distributed already
        if iterator.num_batches is None and data.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise DatasetError(
                asked="fit or evaluate a model on parameter servers",
                found="a data set without an end, and no number of steps",
                do="give fit steps_per_epoch=..., and evaluate steps=...",
            )
        models.iterate(iterator, self._feed_of(data, warns=servers.given_as_dataset(iterator)))

    def _feed_of(self, data: tf.data.Dataset, *, warns: bool) -> WorkerFeed | ChiefFeed:
        feed = self._feeds.get(data) or feed_of(data, self._coordinator)
        if isinstance(feed, WorkerFeed):
            self._feeds[data] = feed
        elif warns:
            warnings.warn(
                "the coordinator reads this data set and sends every batch to a worker, which "
                f"is slower than workers that read for themselves: {'; '.join(feed.reasons)}",
                UserWarning,
                stacklevel=2,
            )
        return feed

    @contextlib.contextmanager
    def around(self, method: str, arguments: dict[str, Any]) -> Iterator[None]:
        """What `evaluate` and `predict` run in, and `fit`, too."""
        flight = self._flight
        if isinstance(arguments.get("x"), tf.distribute.DistributedDataset):
            raise DatasetError(
                asked=f"{method} on parameter servers",
                found="a data set that was distributed already",
                do="give the data set itself: it is spread over the workers here",
            )
        if self._pace is None:  # else a `fit` goes on, whose callbacks were looked at
            flight.one_by_one = any(listens(one) for one in _callbacks(arguments))
        with self._explained():
            flight.settle()
            try:
                # This process predicts, with the weights of the servers: each batch once, in order.
                alone = method == "predict"
                with servers.without_strategy(self._model) if alone else contextlib.nullcontext():
                    yield
            finally:
                flight.settle()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        with task_health.explained(self._strategy), explained(self._model):
            yield

    def results(self, results: Callable[[], Any]) -> Callable[[], dict[str, Any]]:
        """Returns a `get_metrics_result` that waits for all steps."""
        read = models.as_tensors(results)

        def get_metrics_result() -> dict[str, Any]:
            if not tf.inside_function():  # there Keras asks for what nobody reads
                self._flight.settle()
            return read()

        return get_metrics_result

    def reset(self, reset: Callable[[], None]) -> Callable[[], None]:
        """Returns a `reset_metrics` that forgets what steps under way bring."""

        def reset_metrics() -> None:
            self._flight.forget()
            reset()

        return reset_metrics


def _callbacks(arguments: dict[str, Any]) -> list[keras.callbacks.Callback]:
    given = arguments.get("callbacks")
    given = given.callbacks if isinstance(given, keras.callbacks.CallbackList) else given
    return keras.tree.flatten(given or [])  # type: ignore[no-any-return]
