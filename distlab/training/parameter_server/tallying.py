"""The metrics of a training whose steps run elsewhere: each step's part, added up in one place.

In the step, on a worker:         part = part_of_metrics(model, seen)
On the coordinator, for each:     tally.add(part)
There, whenever it is wanted:     tally.logs(); tally.write()

Keras's metrics add to a variable by reading, adding and writing. Two workers that do so at once
lose what one of them has seen; and a step that is run again, after a loss, counts twice.

So a metric must add up over batches, as all of Keras's do. A step counts its batch a second time on
top of the first, for each metric of the user's own, and notes whether that gave twice as much.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from distlab.errors import ModelError
from distlab.training import replica_step
from distlab.training.keras_private import own_metrics
from distlab.training.keras_private.own_metrics import RELATIVE_TOLERANCE


def part_of_metrics(model: keras.Model, seen: replica_step.Seen) -> tf.Tensor:
    """Returns what one step adds to the metrics' variables, and what is wrong, in one vector.

    Args:
        model: A compiled model.
        seen: What the step has seen.

    Returns:
        float64, of the length of `size_of_part`: the variables' values one after the other, then a
        number for each metric of the user's own, which is 1 if that metric does not add up.
    """
    variables = model.metrics_variables
    own = own_metrics.of_own_making(model)
    once = _counted(model, seen, [tf.zeros(one.shape, one.dtype) for one in variables])
    twice = _counted(model, seen, once) if own else once
    wrong = [
        tf.norm(_wide(two) - 2 * _wide(one)) > RELATIVE_TOLERANCE * tf.norm(_wide(two))
        for one, two in zip(once, twice, strict=True)
    ]
    of_variable = {id(variable): one for variable, one in zip(variables, wrong, strict=True)}
    doubts = [
        tf.reduce_any([of_variable.get(id(one), False) for one in [None, *metric.variables]])
        for metric in own
    ]
    # One tensor, because each costs a message; float64 holds every float32 and every count.
    return tf.concat([*(tf.reshape(_wide(one), [-1]) for one in [*once, *doubts])], axis=0)


def _counted(model: keras.Model, seen: replica_step.Seen, start: list[tf.Tensor]) -> list[Any]:
    """Returns the metrics' variables after a step that found them at `start`."""
    mapping = list(zip(model.metrics_variables, start, strict=True))
    with keras.StatelessScope(state_mapping=mapping) as scope:
        replica_step.update_metrics(model, seen, replicas=1)
    return [scope.get_current_value(variable) for variable in model.metrics_variables]


def _wide(value: Any) -> tf.Tensor:
    return tf.cast(value, tf.float64)


def size_of_part(model: keras.Model) -> int:
    """Returns the length of what `part_of_metrics` returns.

    Args:
        model: A compiled model.
    """
    return _size(model) + len(own_metrics.of_own_making(model))


def _size(model: keras.Model) -> int:
    return sum(int(np.prod(variable.shape)) for variable in model.metrics_variables)


class Tally:
    """What steps have seen, before it is in the metrics' variables.

    Args:
        model: A compiled model.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._written: np.ndarray | None = None  # what the variables hold, once it is known
        self._added: np.ndarray | None = None

    def add(self, part: np.ndarray) -> None:
        """Adds what steps have seen.

        Args:
            part: As `part_of_metrics` returned it.

        Raises:
            ModelError: A metric does not add up over batches.
        """
        part, doubts = np.split(part, [_size(self._model)])
        for metric, doubt in zip(own_metrics.of_own_making(self._model), doubts, strict=True):
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
