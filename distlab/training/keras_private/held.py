"""What a model keeps beside its layers: optimizers, metrics, variables that Keras does not know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from distlab.errors import ModelError
from distlab.strategy.describing import describe
from distlab.training.keras_private import models


def is_variable(thing: Any) -> bool:
    """Whether something is a variable, of Keras or of TensorFlow."""
    return isinstance(thing, keras.Variable | tf.Variable)


def optimizers_of(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """Returns the optimizer that the model was compiled with, and those it keeps beside it.

    A model inside this one may have been compiled, too. Keras ignores its optimizer, unless a
    `train_step` uses it.
    """
    kind = keras.optimizers.Optimizer
    found = [model.optimizer, *(one for one in _held(model) if isinstance(one, kind))]
    return list({id(one): one for one in found if one is not None}.values())


def metrics_of(model: keras.Model) -> Iterator[keras.metrics.Metric]:
    """Yields the model's metrics, its layers' and those that these are made of."""
    waiting = [*model.metrics, *(one for layer in models.layers(model) for one in layer._metrics)]
    seen: set[int] = set()
    while waiting:
        metric = waiting.pop()
        if id(metric) not in seen:
            seen.add(id(metric))
            yield metric
            waiting += [one for one in getattr(metric, "metrics", []) if one is not None]
            waiting += getattr(metric, "_metrics", [])


def _held(model: keras.Model) -> Iterator[Any]:
    """What the model and its layers keep in attributes, lists and dictionaries of their own."""

    def parts(value: Any, depth: int) -> Iterator[Any]:
        if isinstance(value, dict):
            value = list(value.values())
        if not isinstance(value, list | tuple):
            yield value
        elif depth:
            for part in value:
                yield from parts(part, depth - 1)

    for layer in models.layers(model):
        ignored = layer.optimizer if _is_ignored(model, layer) else None
        for value in list(vars(layer).values()):
            yield from (part for part in parts(value, 3) if part is not ignored)


def _is_ignored(model: keras.Model, inside: keras.layers.Layer) -> bool:
    """Whether no step of the model uses the optimizer that a model inside was compiled with."""
    if inside is model or not isinstance(inside, keras.Model) or not inside.compiled:
        return False
    if not models.has_own(model, "train_step"):
        return True
    # A step may use it, as in a GAN. It cannot train a teacher, frozen and compiled elsewhere.
    made = getattr(inside.optimizer, "_distribution_strategy", None)
    return not inside.trainable_weights and made is not model.distribute_strategy


def inner(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Returns the optimizer that makes the step: what a `LossScaleOptimizer` holds, or itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def check_metrics(model: keras.Model) -> None:
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
