"""Checks before the first step what parameter servers cannot train.

check_strategy(strategy)       # before a model is built
check_model(model)
"""

from __future__ import annotations

import keras
import tensorflow as tf

from distlab.errors import DeviceError, ModelError
from distlab.strategy.describing import describe
from distlab.training.keras_private import models
from distlab.training.keras_private.held import inner


def check_strategy(strategy: tf.distribute.Strategy) -> None:
    """Raises where no Keras model can be built or trained under the strategy."""
    partitioner = getattr(strategy.extended, "_variable_partitioner", None)
    if partitioner is not None:
        raise ModelError(
            asked="distribute(build, strategy) with a ParameterServerStrategy that has a "
            f"variable_partitioner, {type(partitioner).__name__}",
            found="Keras 3 trains no layer whose variables are in shards (a ShardedVariable has "
            "no handle); raw tf.Variables can be",
            do="leave variable_partitioner out, as dl.make_strategy('parameter_server') does: "
            "whole variables are spread over the servers",
            pitfall="A layer that is cut into shards: no attribute handle",
        )
    if strategy.num_replicas_in_sync > 1:
        raise DeviceError(
            asked="distribute(build, strategy) with a ParameterServerStrategy",
            found=f"workers with {strategy.num_replicas_in_sync} GPUs each",
            do="start one worker for each GPU, with CUDA_VISIBLE_DEVICES set for it",
        )


def check_model(model: keras.Model) -> None:
    """Raises where workers cannot share the model's training."""
    several = describe(model.distribute_strategy).workers > 1
    optimizer = inner(model.optimizer)
    inside = [layer for layer in models.layers(model) if layer is not model]
    tables = [layer.name for layer in inside if hasattr(layer, "lookup_table")]
    metrics = [layer.name for layer in inside if layer.metrics]
    if model.run_eagerly:
        found, do = "run_eagerly=True", "leave it out: only compiled functions can be sent"
    elif tables:
        found = f"the layer {tables[0]!r}, whose table workers cannot reach from a step"
        do = "look up in the data, before: dataset.map(lambda x, y: (layer(x), y))"
    elif optimizer.gradient_accumulation_steps:
        found = f"gradient_accumulation_steps={optimizer.gradient_accumulation_steps}"
        do = "leave it out and take a larger batch: workers apply their gradients on their own"
    elif several and optimizer.use_ema and optimizer.ema_overwrite_frequency:
        found = f"ema_overwrite_frequency={optimizer.ema_overwrite_frequency} and several workers"
        do = "leave it out: the weights become their averages when fit ends"
    elif several and metrics:
        found = f"a metric inside the layer {metrics[0]!r}, which workers would write at once"
        do = "give the metric to compile(), or take one worker"
    else:
        return
    raise ModelError(
        asked=f"train the model {model.name!r} on parameter servers", found=found, do=do
    )
