"""A small model of lesson 21, a loop that trains it by hand, and what the devices then hold.

model = dl.distribute(build, strategy)
bytes_on_devices(strategy, model)               # {"CPU:0": 11784, "CPU:1": 11784}
train_by_hand(strategy, scale, data)            # scale: from losses and replicas to a number
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import distlab as dl


def build(optimizer: Any = None) -> Any:
    """Returns a compiled network of the digits, always with the same weights."""
    dl.set_seed(1)
    layers = [keras.layers.Flatten(), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer or keras.optimizers.SGD(0.1), loss=loss)
    return model


def train_by_hand(strategy: Any, scale: Callable[[Any, int], Any], data: Any) -> Any:
    """Trains the network for one epoch, where each replica takes the gradient of its `scale`."""
    each_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    with strategy.scope():
        model = build()

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = scale(each_loss(y, model(x)), strategy.num_replicas_in_sync)
        weights = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, weights), weights)

    for batch in strategy.experimental_distribute_dataset(data):
        strategy.run(step, args=batch)
    return model


def max_difference(model: Any, other: Any) -> float:
    """Returns the largest difference between two models' weights."""
    pairs = zip(model.get_weights(), other.get_weights(), strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)


def bytes_on_devices(strategy: Any, model: Any) -> dict[str, int]:
    """Returns how many bytes of weights and optimizer state each device holds."""
    held: Counter[str] = Counter()
    for variable in (*model.weights, *model.optimizer.variables):
        for copy in strategy.experimental_local_results(variable.value):
            held[copy.device.rpartition("device:")[2]] += copy.numpy().nbytes
    return dict(sorted(held.items()))
