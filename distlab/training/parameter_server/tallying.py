"""The metrics of a training whose steps run elsewhere: each step's part, added up in one place.

In the step, on a worker:         part = part_of_metrics(model, seen)
On the coordinator, for each:     tally.add(part)
There, whenever it is wanted:     tally.logs(); tally.write()

Keras's metrics add to a variable by reading, adding and writing. Two workers that do so at once
lose what one of them has seen; and a step that is run again, after a loss, counts twice.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from distlab.training import replica_step


def part_of_metrics(model: keras.Model, seen: replica_step.Seen) -> tf.Tensor:
    """Returns what one step adds to the metrics' variables, all in one vector.

    Args:
        model: A compiled model.
        seen: What the step has seen.
    """
    variables = model.metrics_variables
    nothing = [(variable, tf.zeros(variable.shape, variable.dtype)) for variable in variables]
    with keras.StatelessScope(state_mapping=nothing) as scope:
        replica_step.update_metrics(model, seen, replicas=1)
    # One tensor, because each costs a message; float64 holds every float32 and every count.
    parts = [tf.cast(scope.get_current_value(variable), tf.float64) for variable in variables]
    return tf.concat([tf.reshape(part, [-1]) for part in parts], axis=0)


def size_of_part(model: keras.Model) -> int:
    """Returns the length of what `part_of_metrics` returns.

    Args:
        model: A compiled model.
    """
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
        """
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
