"""Trains a Keras model, compares weights, and finds how much each example weighs in a gradient.

weight_of_each(gradient, batch, of=combined)    # a weight for each example
model, losses = fitted(build, data, strategy)   # built in the scope, from a fixed seed
largest_difference(model, reference)            # over all weights of two Keras models
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np

from distlab.seeding import set_seed


def weight_of_each(gradient: Callable[[Any, Any], Any], batch: tuple[Any, Any], of: Any) -> Any:
    """How much the gradient of each single example counts in a gradient made of all of them."""
    images, labels = batch
    examples = range(len(labels))
    alone = np.stack([gradient(images[n : n + 1], labels[n : n + 1]) for n in examples])
    return np.linalg.lstsq(alone.T, np.asarray(of), rcond=None)[0]


def fitted(
    build: Callable[[], Any], data: Any, strategy: Any = None, *, epochs: int = 1
) -> tuple[Any, list[float]]:
    """A model after Keras's `fit`, built in the scope of a strategy if given, and its losses."""
    set_seed(1)
    with strategy.scope() if strategy else nullcontext():
        model = build()
    history = model.fit(data, epochs=epochs, shuffle=False, verbose=0)
    return model, history.history["loss"]


def largest_difference(model: Any, reference: Any) -> float:
    """The largest difference of any weight or statistic between two Keras models."""
    pairs = zip(model.get_weights(), reference.get_weights(), strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)
