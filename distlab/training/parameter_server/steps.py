"""The model's own step on a worker, and the steps that are in flight.

    step = training_step(model, check_finite=True)
    in_flight = InFlightSteps(model, coordinator)
    in_flight.send(step, batch)       # waits only where too many are in flight
    in_flight.logs()                  # the metrics as far as steps have come back
    in_flight.settle()                # all have; the metrics' variables hold what they counted

Keras's metrics add to a variable by reading, adding and writing. Two workers that do so at once
lose what one of them counted. So a step returns what its batch adds, and the coordinator adds it:
a metric must add up over batches, as all of Keras's do.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from distlab.errors import ModelError, ProcessError
from distlab.strategy.description import describe
from distlab.training.keras_private.models import Writes, metrics_of
from distlab.training.parameter_server.task_health import TaskHealth
from distlab.training.rule import gradients
from distlab.training.rule.losses import is_keras
from distlab.training.step_errors import assert_finite

# Steps in flight for each worker: it has the next one when it ends one, also while callbacks run.
# With more of them, more steps follow one that a callback would have stopped.
AHEAD = 4

# What counts as the same: rounding in float32 leaves less than a thousandth of it.
_RELATIVE_TOLERANCE = 1e-3


def training_step(model: keras.Model, *, check_finite: bool) -> Callable[[Any], tf.Tensor]:
    """The step that learns, as a function to schedule; it returns what it adds to the metrics."""
    check = None
    if check_finite and not isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer):

        def check(loss: tf.Tensor) -> list[Any]:
            number = tf.convert_to_tensor(model.optimizer.iterations)
            return [assert_finite(loss, step=number, replica=tf.constant(0))]

    def learn(batch: Any) -> None:
        with gradients.watched(check):
            model.train_step(batch)

    return _on_worker(model, learn)


def test_step(model: keras.Model) -> Callable[[Any], tf.Tensor]:
    """The step that evaluates, in the same form."""
    return _on_worker(model, lambda batch: model.test_step(batch))


def _on_worker(model: keras.Model, step: Callable[[Any], Any]) -> Callable[[Any], tf.Tensor]:
    """The model's own step, in which what is counted is returned or added by one operation."""

    def on_worker(batch: Any) -> tf.Tensor:
        metrics = model.metrics_variables
        counted = {id(variable) for variable in metrics}
        others = {id(v): v for v in [*model.variables, *model.optimizer.variables]}
        others = {key: v for key, v in others.items() if key not in counted}
        before = {key: tf.identity(v.value) for key, v in others.items() if "int" in v.dtype}
        start = [(variable, tf.zeros(variable.shape, variable.dtype)) for variable in metrics]
        start += [(others[key], value) for key, value in before.items()]
        with Writes(state_mapping=start) as scope, _counted_twice(model) as doubts:
            step(batch)
        for key, variable in others.items():
            new = scope.written(variable)
            if key in before:
                variable.value.assign_add(tf.cast(new, variable.dtype) - before[key])
            elif new is not None:  # a moving average: who comes last
                variable.value.assign(tf.cast(new, variable.dtype))
        # One tensor, because each costs a message; float64 holds every float32 and every count.
        parts = [*(scope.written(variable) for variable in metrics), *doubts]
        return tf.concat([tf.reshape(tf.cast(part, tf.float64), [-1]) for part in parts], 0)

    def run(batch: Any) -> tf.Tensor:
        return model.distribute_strategy.run(on_worker, args=(batch,))

    function: Callable[[Any], tf.Tensor] = tf.function(run, autograph=False, reduce_retracing=True)
    return function


@contextlib.contextmanager
def _counted_twice(model: keras.Model) -> Iterator[list[tf.Tensor]]:
    """Inside the block each metric that isn't Keras's counts twice, to see whether it adds up."""
    doubts: list[tf.Tensor] = []
    own = _own_metrics(model)
    seen = {id(metric): tf.constant(0.0) for metric in own}

    def counting(metric: keras.metrics.Metric) -> Callable[..., Any]:
        update = type(metric).update_state

        def counted(start: list[tf.Tensor], *args: Any, **kwargs: Any) -> list[tf.Tensor]:
            mapping = list(zip(metric.variables, start, strict=True))
            with keras.StatelessScope(state_mapping=mapping) as scope:
                update(metric, *args, **kwargs)
            return [scope.get_current_value(variable) for variable in metric.variables]

        def update_state(*args: Any, **kwargs: Any) -> None:
            zeros = [tf.zeros(v.shape, v.dtype) for v in metric.variables]
            once = counted(zeros, *args, **kwargs)
            twice = counted(once, *args, **kwargs)
            for first, second in zip(once, twice, strict=True):
                first, second = tf.cast(first, tf.float64), tf.cast(second, tf.float64)
                wrong = tf.norm(second - 2 * first) > _RELATIVE_TOLERANCE * tf.norm(second)
                seen[id(metric)] = tf.maximum(seen[id(metric)], tf.cast(wrong, tf.float32))
            for variable, value in zip(metric.variables, once, strict=True):
                variable.assign(variable + tf.cast(value, variable.dtype))

        return update_state

    for metric in own:
        metric.__dict__["update_state"] = counting(metric)
    try:
        yield doubts
    finally:
        for metric in own:
            del metric.__dict__["update_state"]
    doubts += seen.values()


def _own_metrics(model: keras.Model) -> list[keras.metrics.Metric]:
    """The model's metrics that Keras does not bring."""
    return [metric for metric in metrics_of(model) if not is_keras(metric)]


class InFlightSteps:
    """The steps of one model that workers have not answered yet, and what steps have counted.

    Between `settle` and the next `send` nothing changes the model: then it can be saved.

    Attributes:
        one_by_one: Whether each step has come back before `logs` returns.
    """

    def __init__(
        self, model: keras.Model, coordinator: tf.distribute.coordinator.ClusterCoordinator
    ) -> None:
        self.one_by_one = False
        self._model, self._coordinator = model, coordinator
        self._health = TaskHealth(model.distribute_strategy)
        self._most = AHEAD * describe(model.distribute_strategy).workers
        self._sent: deque[Any] = deque()
        self._written: np.ndarray | None = None  # what the metrics' variables hold, if known
        self._added: np.ndarray | None = None  # what steps have counted since

    def send(self, step: Callable[[Any], tf.Tensor], batch: Any) -> None:
        """Sends a batch to the worker that is free first."""
        with self._cleared_on_error():
            self._sent.append(self._coordinator.schedule(step, args=(batch,)))
            while len(self._sent) > self._most:
                self._collect()

    def settle(self) -> None:
        """Waits for all that was sent, and adds what it counted to the metrics' variables."""
        with self._cleared_on_error():
            while self._sent:
                self._collect()
        if self._added is None:
            return
        for variable, part in self._split(self._added):
            variable.value.assign_add(tf.cast(part, variable.dtype))
        if self._written is not None:
            self._written = self._written + self._added
        self._added = None

    def forget(self) -> None:
        """Waits for all that was sent; the metrics' variables will be written by others."""
        self.settle()
        self._written = None

    def logs(self) -> dict[str, Any]:
        """The metrics, with what has come back until now."""
        if self.one_by_one:
            self.settle()
        if self._written is None:
            values = [np.ravel(variable.numpy()) for variable in self._model.metrics_variables]
            self._written = np.concatenate(values)
        total = self._written if self._added is None else self._written + self._added
        mapping = [(v, tf.cast(part, v.dtype)) for v, part in self._split(total)]
        with keras.StatelessScope(state_mapping=mapping):
            return dict(type(self._model).get_metrics_result(self._model))

    def _collect(self) -> None:
        values = self._result_of(self._sent.popleft()).numpy()
        self._health.note_result()
        own = _own_metrics(self._model)
        part, doubts = np.split(values, [len(values) - len(own)])
        for metric, doubt in zip(own, doubts, strict=True):
            if doubt:
                raise ModelError(
                    asked=f"count the metric {metric.name!r} on parameter servers",
                    found="a variable of it that does not add up over batches: the same batch "
                    "counted twice did not give twice the value",
                    do="let update_state only add (assign_add), and compute the rest in result(); "
                    "or leave the metric out of compile()",
                )
        self._added = part if self._added is None else self._added + part

    def _result_of(self, scheduled: Any) -> tf.Tensor:
        while not scheduled._status_available_event.wait(1.0):
            self._health.look()
        while True:
            try:
                return scheduled.get()
            except tf.errors.OpError:
                # It had ended, and its worker was lost before the result was here: it is run
                # again by another, unless this is an error for good, which `done` raises.
                if self._coordinator.done():
                    raise
                self._health.look()
                time.sleep(0.05)

    @contextlib.contextmanager
    def _cleared_on_error(self) -> Iterator[None]:
        """On an error nothing is left in flight, and the first error is the one that is raised."""
        try:
            yield
        except Exception as error:
            self._sent.clear()
            self._written = self._added = None
            if not isinstance(error, ProcessError):  # else it could be waited for in vain
                self._coordinator.join()
            raise

    def _split(self, vector: np.ndarray) -> list[tuple[keras.Variable, np.ndarray]]:
        variables = self._model.metrics_variables
        ends = np.cumsum([int(np.prod(variable.shape)) for variable in variables])
        parts = zip(variables, np.split(vector, ends[:-1]), strict=True)
        return [(variable, part.reshape(variable.shape)) for variable, part in parts]
