"""The variables that metrics count in, and where they must have been made.

check(model)        # raises where what several replicas or workers count cannot be put together
"""

from __future__ import annotations

from collections.abc import Iterator

import keras
import tensorflow as tf

from distlab.errors import ModelError
from distlab.strategy.describing import describe
from distlab.training.keras_private.held import metrics_of


def check(model: keras.Model) -> None:
    """Raises where a metric's variables cannot hold what one device counts."""
    strategy = model.distribute_strategy
    kind = describe(strategy).kind
    several = strategy.num_replicas_in_sync > 1 and kind != "central_storage"
    for metric in metrics_of(model):
        raw = dict(_of_tensorflow(metric))
        ours = {one.name: one.value for one in metric._variables}
        outside = [
            name
            for name, one in (raw | ours).items()
            if not isinstance(one, tf.distribute.DistributedValues)
        ]
        if raw and kind == "parameter_server":
            named = f"the metric {metric.name!r} with a tf.Variable ({', '.join(raw)})"
            found = f"{named}, which workers would write at once"
        elif several and outside:
            named = f"the metric {metric.name!r} with variables ({', '.join(outside)})"
            found = f"{named} of which the replicas do not have a copy each"
        else:
            continue
        raise ModelError(
            asked=f"train or evaluate the model {model.name!r} on several replicas or workers",
            found=found,
            do="make the variable with self.add_weight, and the metric inside build()",
        )


def _of_tensorflow(metric: keras.metrics.Metric) -> Iterator[tuple[str, tf.Variable]]:
    """The variables that Keras does not know, by the names of the attributes that hold them."""
    for name, value in vars(metric).items():
        parts = value.values() if isinstance(value, dict) else value
        for part in parts if isinstance(parts, list | tuple | type({}.values())) else [parts]:
            if isinstance(part, tf.Variable):
                yield name, part
