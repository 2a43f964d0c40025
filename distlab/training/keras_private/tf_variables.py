"""Metrics that count in a `tf.Variable`, of which Keras knows nothing.

check(model)        # raises where what several replicas count there cannot be put together
of(metric)          # {"seen": <tf.Variable ...>}
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from distlab.errors import ModelError
from distlab.strategy.describing import describe
from distlab.training.keras_private import results


def of(metric: keras.metrics.Metric) -> dict[str, tf.Variable]:
    """Returns the variables of TensorFlow that a metric has, by the names of its attributes.

    Args:
        metric: A metric. Of several variables in one list or dict, the last is returned.
    """
    return {name: one for name, value in vars(metric).items() for one in _within(value)}


def _within(value: Any) -> Iterator[tf.Variable]:
    if isinstance(value, tf.Variable):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _within(part)


def are_combined(metric: keras.metrics.Metric) -> bool:
    """Whether a variable of the metric says itself how TensorFlow combines replicas' numbers.

    Args:
        metric: A metric.
    """
    return any(one.aggregation.value for one in of(metric).values())  # that of NONE is 0


def check(model: keras.Model) -> None:
    """Raises where a metric's variables of TensorFlow cannot hold what one device counts.

    Args:
        model: A built model.

    Raises:
        ModelError: Workers of parameter servers would write to one, or replicas that do not have
            a copy each: it was made outside of the scope, or is CentralStorageStrategy's.
    """
    strategy = model.distribute_strategy
    on_servers = describe(strategy).kind == "parameter_server"
    for metric in results.metrics_of(model):
        if not (variables := of(metric)) or are_combined(metric):
            continue
        copied = all(isinstance(v, tf.distribute.DistributedValues) for v in variables.values())
        named = f"the metric {metric.name!r} with a tf.Variable ({', '.join(variables)})"
        if on_servers:
            found = f"{named}, which workers would write at once"
        elif strategy.num_replicas_in_sync > 1 and not copied:
            found = f"{named}, of which the replicas do not have a copy each"
        else:
            continue
        raise ModelError(
            asked=f"train or evaluate the model {model.name!r} on several replicas or workers",
            found=found,
            do="make the variable with self.add_weight, and the metric inside build()",
        )
