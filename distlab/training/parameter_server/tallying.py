"""The metrics of a training whose steps run elsewhere: each step's part, added up in one place.

On the coordinator, for each:     tally.add(part)
There, whenever it is wanted:     tally.logs(); tally.write()

Keras's metrics add to a variable by reading, adding and writing. Two workers that do so at once
lose what one of them has seen; and a step that is run again, after a loss, counts twice.

So a metric must add up over batches, as all of Keras's do. A step counts its batch a second time on
top of the first, for each metric of the user's own, and notes whether that gave twice as much.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from distlab.errors import ModelError
from distlab.training.keras_private.held import metrics_of
from distlab.training.rule.losses import is_keras

# What counts as the same: rounding in float32 leaves less than a thousandth of it.
_RELATIVE_TOLERANCE = 1e-3


@contextlib.contextmanager
def noted_doubts(model: keras.Model) -> Iterator[list[tf.Tensor]]:
    """Inside the block each metric that isn't Keras's counts twice, to see whether it adds up."""
    doubts: list[tf.Tensor] = []
    seen = {id(one): tf.constant(0.0) for one in _own_metrics(model)}

    def counting(metric: keras.metrics.Metric) -> Callable[..., Any]:
        update = type(metric).update_state

        def counted(start: list[tf.Tensor], *args: Any, **kwargs: Any) -> list[tf.Tensor]:
            mapping = list(zip(metric.variables, start, strict=True))
            with keras.StatelessScope(state_mapping=mapping) as scope:
                update(metric, *args, **kwargs)
            return [scope.get_current_value(one) for one in metric.variables]

        def update_state(*args: Any, **kwargs: Any) -> None:
            once = counted([tf.zeros(v.shape, v.dtype) for v in metric.variables], *args, **kwargs)
            twice = counted(once, *args, **kwargs)
            for one, two in zip(once, twice, strict=True):
                far = tf.norm(_wide(two) - 2 * _wide(one))
                wrong = far > _RELATIVE_TOLERANCE * tf.norm(_wide(two))
                seen[id(metric)] = tf.maximum(seen[id(metric)], tf.cast(wrong, tf.float32))
            for variable, one in zip(metric.variables, once, strict=True):
                variable.assign(variable + tf.cast(one, variable.dtype))

        return update_state

    own = _own_metrics(model)
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
    return [one for one in metrics_of(model) if not is_keras(one)]


def _wide(value: Any) -> tf.Tensor:
    return tf.cast(value, tf.float64)


def size_of_part(model: keras.Model) -> int:
    """Returns the length of what a step returns."""
    return _size(model) + len(_own_metrics(model))


def _size(model: keras.Model) -> int:
    return sum(int(np.prod(variable.shape)) for variable in model.metrics_variables)


class Tally:
    """What steps have seen, before it is in the metrics' variables."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._written: np.ndarray | None = None  # what the variables hold, once it is known
        self._added: np.ndarray | None = None

    def add(self, part: np.ndarray) -> None:
        """Adds what steps have seen."""
        part, doubts = np.split(part, [_size(self._model)])
        for metric, doubt in zip(_own_metrics(self._model), doubts, strict=True):
            if doubt:
                raise ModelError(
                    asked=f"count the metric {metric.name!r} on parameter servers",
                    found="a variable of it that does not add up over batches: the same batch "
                    "counted twice did not give twice the value",
                    do="let update_state only add (assign_add), and compute the rest in result(); "
                    "or leave the metric out of compile()",
                )
        self._added = part if self._added is None else self._added + part

    def forget(self) -> None:
        """Notes that the variables were, or will be, written by others; what was added goes."""
        self._written = self._added = None

    def logs(self) -> dict[str, Any]:
        """Returns the metrics as they are with what was added."""
        variables = self._model.metrics_variables
        if self._written is None:
            self._written = np.concatenate([np.ravel(variable.numpy()) for variable in variables])
        total = self._written if self._added is None else self._written + self._added
        values = [(v, tf.cast(part, v.dtype)) for v, part in self._split(total)]
        with keras.StatelessScope(state_mapping=values):
            return dict(type(self._model).get_metrics_result(self._model))

    def write(self) -> None:
        """Adds to the metrics' variables what was added here."""
        if self._added is None:
            return
        for variable, part in self._split(self._added):
            variable.value.assign_add(tf.cast(part, variable.dtype))
        if self._written is not None:
            self._written = self._written + self._added
        self._added = None

    def _split(self, vector: np.ndarray) -> list[tuple[keras.Variable, np.ndarray]]:
        variables = self._model.metrics_variables
        ends = np.cumsum([int(np.prod(variable.shape)) for variable in variables])
        parts = np.split(vector, ends[:-1])
        return [
            (variable, part.reshape(variable.shape))
            for variable, part in zip(variables, parts, strict=True)
        ]
