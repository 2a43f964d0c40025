"""What one check of lesson 16 trains: models that Keras's own `fit` trains otherwise, or not.

compared_model("watches", kernel)   # ends with other weights where replicas share its batches
APART["watches"]                    # the paths of these weights
"""

from __future__ import annotations

from typing import Any

import numpy as np

_RATE, _SMALL_RATE = 0.2, 1e-3  # with the small one even what is wrong ends near one device
# Which weights differ where Keras's `fit` shares, in the model's order; only a kernel is trained.
APART: dict[str, list[str]] = {
    "plain": [],
    "watches": ["model/watch/seen", "model/second_watch/seen"],
    "centres": ["model/watch/seen", "model/first/kernel"],
}


def strategy_of(kind: str, replicas: int) -> Any:
    """Returns a strategy of this kind with so many replicas."""
    from distlab.coursework.replicas import MOST_REPLICAS, mirrored
    from distlab.devices import split_devices
    from distlab.strategy.factory import make_strategy

    if kind == "mirrored":
        return mirrored(replicas)
    return make_strategy(kind, devices=split_devices(MOST_REPLICAS)[:replicas])  # type: ignore[arg-type]


def compared_model(kind: str, kernel: Any) -> Any:
    """Returns a compiled model, with or without layers that see their batch as a whole."""
    import keras

    class Watches(keras.layers.Layer):  # type: ignore[misc]
        """Remembers the least input of the last batch; no loss and no gradient knows of it."""

        def __init__(self, name: str, times: float) -> None:
            super().__init__(name=name)
            self.times = times

        def build(self, shape: Any) -> None:
            self.seen = self.add_weight((), name="seen", trainable=False, aggregation="mean")

        def call(self, inputs: Any) -> Any:
            self.seen.assign(self.times * keras.ops.min(inputs))
            return inputs

    class Centres(keras.layers.Layer):  # type: ignore[misc]
        """Subtracts the batch's mean. Each replica subtracts the mean of its own share."""

        def call(self, inputs: Any) -> Any:
            return inputs - keras.ops.mean(inputs, axis=0)

    first, last = (keras.layers.Dense(2, use_bias=False, name=name) for name in ("first", "last"))
    # Their signs make a difference below zero and one above it.
    layers = {
        "plain": [first],
        "watches": [first, Watches("watch", 1.0), last, Watches("second_watch", -10.0)],
        "centres": [Watches("watch", -1e-3), Centres(), first],
    }[kind]
    model = keras.Sequential([keras.Input((4,)), *layers], name="model")
    model.compile(keras.optimizers.SGD(_SMALL_RATE if kind == "centres" else _RATE), loss="mse")
    first.set_weights([kernel])
    if last.built:
        last.set_weights([np.eye(2)])
    return model
