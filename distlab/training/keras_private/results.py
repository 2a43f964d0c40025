"""Which of the logs that a step returns are results of metrics.

    wrap(model)                                   # once
    with noted_results() as results:              # in the replica's thread
        logs = model.train_step(data)
    metrics, numbers = split_logs(logs, results)

A metric's result is read after the step, where its state of all replicas is added up. If the step
updates or resets the metric after it has asked for the result, the state of then is added up.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from distlab.training.keras_private import models
from distlab.training.keras_private.batch import current
from distlab.training.keras_private.held import is_variable
from distlab.training.keras_private.hooks import using
from distlab.training.reducing import sum_over_replicas

_NOW = threading.local()

# What a step gets for a metric's result: of the metric and the result.
Change = Callable[[keras.metrics.Metric, Any], Any]


class Asked:
    """One call of a metric's `result` in a step.

    Args:
        metric: The metric.
        found: What the step gets.
        keeps_state: Whether `found` is what this replica alone has counted.

    Attributes:
        has_changed: Whether the step has updated or reset the metric since.
    """

    def __init__(self, metric: keras.metrics.Metric, found: Any, *, keeps_state: bool) -> None:
        self.has_changed = False
        self._metric = metric
        self._found = found
        self._variables = {id(one) for one in metric.variables}
        self._state = _state_of(metric) if keeps_state else None

    def note_change(self, variable: Any) -> None:
        """Called before a variable is assigned to.

        Args:
            variable: A variable of any metric.
        """
        self.has_changed = self.has_changed or id(variable) in self._variables

    def now(self) -> Any:
        """Returns the result of what is counted now."""
        return type(self._metric).result(self._metric)

    def then(self) -> Any:
        """Returns the result of what all replicas had counted at the call, on each replica."""
        if self._state is not None:
            self._found = _of_all_replicas(self._metric, self._found, self._state)
            self._state = None
        return self._found


# What a step got, from which call, and its name in it if that returned a dictionary.
Result = tuple[Any, Asked, str]


def wrap(model: keras.Model) -> None:
    """Lets the model's metrics tell which results are theirs; any number of times.

    Args:
        model: A compiled model.
    """
    for metric in metrics_of(model):
        if not isinstance(vars(metric).get("result"), _Result):
            metric.__dict__["result"] = _Result(metric)
            metric.__dict__["reset_state"] = _Reset(metric)


def as_tensors(own: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """Returns a `get_metrics_result` that gives what all replicas have counted.

    A metric may return its variable. Keras before 3.12 keeps that in its history, where it would
    have later values.

    Args:
        own: Keras's.
    """

    def get_metrics_result() -> dict[str, Any]:
        found = own()
        in_replica = tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()
        if in_replica or current() is not None:
            return found  # a step's own
        return {name: tf.nest.map_structure(_value, one) for name, one in found.items()}

    return get_metrics_result


def _value(result: Any) -> Any:
    """Returns a result as a tensor, and a number as it is: Keras 3.12 makes numbers here."""
    return result if isinstance(result, int | float) else tf.convert_to_tensor(result)


@contextlib.contextmanager
def noted_results(change: Change | None = None) -> Iterator[list[Result]]:
    """Inside the block, results that are asked for in this thread are kept in mind.

    Args:
        change: What the step gets for a result; None lets it have the result.

    Yields:
        The results; filled as they are asked for.
    """
    before = getattr(_NOW, "noted", None)
    results: list[Result] = []
    _NOW.noted = results, change
    try:
        yield results
    finally:
        _NOW.noted = before


def of_all_replicas(metric: keras.metrics.Metric, found: Any) -> Any:
    """Returns a metric's result from what all replicas have counted, in a replica's function.

    Args:
        metric: The metric.
        found: Its result from what this replica has counted.
    """
    return _of_all_replicas(metric, found, _state_of(metric))


def _of_all_replicas(metric: keras.metrics.Metric, found: Any, state: list[tf.Tensor]) -> Any:
    if any(one.synchronization != "on_read" for one in metric.variables):
        return found
    if not any(isinstance(one.value, tf.distribute.DistributedValues) for one in metric.variables):
        return found  # there is one copy, which has what all have counted
    return metric.stateless_result(sum_over_replicas(state))


def _state_of(metric: keras.metrics.Metric) -> list[tf.Tensor]:
    return [tf.convert_to_tensor(one.value) for one in metric.variables]


def note_change(variable: Any) -> None:
    """Called before a metric's variable is assigned to, in a replica's thread.

    Args:
        variable: A Keras variable.
    """
    noted = getattr(_NOW, "noted", None)
    for _, asked, _ in noted[0] if noted is not None else ():
        asked.note_change(variable)


def nudged(metric: keras.metrics.Metric, found: Any) -> Any:
    """Returns another result than the metric's, to see what depends on it.

    Args:
        metric: The metric.
        found: Its result.
    """
    return tf.nest.map_structure(lambda value: value + tf.ones_like(value), found)


def split_logs(
    logs: Any, results: list[Result]
) -> tuple[dict[str, Callable[[], Any]], dict[str, tf.Tensor]]:
    """Returns the logs that are metrics' results, as functions, and those that are numbers.

    A result of a metric that the step has changed since is a number.

    Args:
        logs: What a step returned.
        results: What `noted_results` gave.
    """
    metrics: dict[str, Callable[[], Any]] = {}
    numbers: dict[str, tf.Tensor] = {}
    for name, value in flat(logs).items():
        asked, part = next((found[1:] for found in results if found[0] is value), (None, ""))
        # A variable is not what it was: one device, too, logs what it holds after the step.
        if asked is not None and (not asked.has_changed or is_variable(value)):
            metrics[name] = _part_of(asked.now, part)
        elif value is not None:
            value = value if asked is None else _part_of(asked.then, part)()
            numbers[name] = tf.cast(value, tf.float32)
    return metrics, numbers


def _part_of(result: Callable[[], Any], name: str) -> Callable[[], Any]:
    return lambda: flat({"": result()})[name]


def flat(logs: Any) -> dict[str, Any]:
    """Returns logs of which one may be a dictionary of others, as Keras shows them.

    Args:
        logs: What a step returned.
    """
    found: dict[str, Any] = {}
    for name, value in (logs or {}).items():
        found |= flat(value) if isinstance(value, dict) else {name: value}
    return found


def metrics_of(model: keras.Model) -> Iterator[keras.metrics.Metric]:
    """Yields the model's metrics, its layers' and those that these are made of.

    Args:
        model: A compiled model.
    """
    waiting = [*model.metrics, *(one for layer in models.layers(model) for one in layer._metrics)]
    seen: set[int] = set()
    while waiting:
        metric = waiting.pop()
        if id(metric) not in seen:
            seen.add(id(metric))
            yield metric
            waiting += [one for one in getattr(metric, "metrics", []) if one is not None]
            waiting += getattr(metric, "_metrics", [])


class _Result:
    """A metric's `result` that is kept in mind."""

    def __init__(self, metric: keras.metrics.Metric) -> None:
        self.metric = metric

    def __call__(self) -> Any:
        noted = getattr(_NOW, "noted", None)
        _NOW.noted = None  # a metric may be made of others
        try:
            found = type(self.metric).result(self.metric)
            if noted is None:
                return found
            results, change = noted
            if change is not None:
                found = change(self.metric, found)
        finally:
            _NOW.noted = noted
        context = tf.distribute.get_replica_context()
        alone = context is None or context.num_replicas_in_sync == 1
        asked = Asked(self.metric, found, keeps_state=not alone and change is None)
        results += [(value, asked, name) for name, value in flat({"": found}).items()]
        return found


class _Reset:
    """A metric's `reset_state`, which a replica without an example does, too."""

    def __init__(self, metric: keras.metrics.Metric) -> None:
        self.metric = metric

    def __call__(self) -> None:
        batch = current()
        trial = batch is not None and batch.is_trial  # nothing is written in one
        for variable in () if trial else self.metric.variables:
            note_change(variable)
        with contextlib.nullcontext() if trial else using(None):
            type(self.metric).reset_state(self.metric)
