"""A net under the rule: notices replicas that have come apart, whatever the rule let through.

check_copies(model, "fit")              # raises where a variable's copies differ
first_apart([loss_of_0, loss_of_1])     # in a step: the number of the first log that differs, or -1

Replicas compute the same from the same numbers, so copies of a variable are equal, but for what
rounding does on devices that add up in another order each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from distlab.errors import ModelError
from distlab.training.keras_private import models

# Largest difference that counts as rounding, relative to a variable's largest value.
_ROUNDING, _ROUNDING_OF_16_BITS = 1e-3, 3e-2
_DO = (
    "look for something in the step that is not the same on every replica: what a layer keeps on "
    "itself, Python's or NumPy's random numbers, a state that is no variable; "
    "dl.check_parity(build, data) says in which step it begins"
)


def check_copies(model: keras.Model, method: str) -> None:
    """Raises where copies of a variable differ by more than rounding, and names the first."""
    of_model = [v for v in model.variables if tf.as_dtype(v.dtype).is_floating]
    of_model += [v for each in models.optimizers_of(model) for v in each.variables]
    named = [(v.path, _copies(v)) for v in of_model]
    named = [(path, copies) for path, copies in named if len(copies) > 1]
    if not named:
        return
    far = tf.stack([_distance(copies) for _, copies in named]).numpy()
    for (path, _), (difference, limit) in zip(named, far, strict=True):
        if not difference <= limit:
            raise came_apart(model, method, f"{path}, whose copies are {difference:.2g} apart")


def came_apart(model: keras.Model, method: str, what: str) -> ModelError:
    """The error for something that has other values on other replicas."""
    return ModelError(
        asked=f"{method} the model {model.name!r} on several replicas",
        found=f"replicas that came apart, first in {what}",
        do=_DO,
    )


def first_apart(logs: Sequence[Sequence[tf.Tensor]]) -> tf.Tensor:
    """The number of the first log that has other values on other replicas, -1 if none has."""
    apart = []
    for copies in logs:
        numbers = [tf.reduce_sum(tf.convert_to_tensor(each)) for each in copies]  # rank unknown
        difference, limit = tf.unstack(_distance(numbers))
        apart.append(~(difference <= limit))
    every = tf.stack([*apart, tf.constant(True)])
    number = tf.argmax(tf.cast(every, tf.int32), output_type=tf.int32)
    return tf.where(number == len(apart), -1, number)


def _copies(variable: keras.Variable) -> Sequence[Any]:
    value = variable.value
    if getattr(value, "aggregation", None) == tf.VariableAggregation.ONLY_FIRST_REPLICA:
        return ()
    return getattr(value, "values", ())


def _distance(copies: Sequence[Any]) -> tf.Tensor:
    """How far copies are from the first at most, and how far rounding may bring them."""
    kind, zero = copies[0].dtype, tf.zeros((), tf.float64)
    first, *others = (tf.cast(each, tf.float64) for each in copies)
    far = [tf.where(_alike(each, first), zero, tf.abs(each - first)) for each in others]
    tolerance = _ROUNDING_OF_16_BITS if kind.size <= 2 else _ROUNDING
    size = tf.reduce_max(tf.where(tf.math.is_finite(first), tf.abs(first), zero))
    most = tf.reduce_max(tf.stack(far)) if first.shape.num_elements() != 0 else zero
    return tf.stack([most, tolerance * size])


def _alike(one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Returns a mask of the values that are equal, or both not a number."""
    return (one == other) | (tf.math.is_nan(one) & tf.math.is_nan(other))
