"""Lesson 06: says what a seed repeats, and how far apart two lists of arrays are.

what_repeats(tf.random.set_seed)        # {"weights": "new", "tf.data": "same", ...}
on_replicas(strategy, draw_mask)        # what it returns on each replica, as arrays
compare(model.get_weights(), other)     # "identical", "closer than 1e-6" or "different"
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from distlab.process_state import kept_state

_ROUNDING = 1e-6


def what_repeats(seeding: Callable[[int], Any]) -> dict[str, str]:
    """Seeds, draws, seeds again and draws again, and says what came out the same."""
    with kept_state():
        seeding(1)
        first = _draw()
        seeding(1)
        again = _draw()
    return {name: "same" if np.array_equal(first[name], again[name]) else "new" for name in first}


def _draw() -> dict[str, Any]:
    import keras
    import tensorflow as tf

    layer = keras.layers.Dense(3)
    layer.build((None, 4))
    mask = keras.layers.Dropout(0.5)(np.ones((4, 8)), training=True)
    order = tf.data.Dataset.range(20).shuffle(20)
    return {
        "weights": layer.kernel.numpy(),
        "dropout": mask.numpy(),
        "np.random": np.random.permutation(20),
        "tf.data": list(order.as_numpy_iterator()),
    }


def on_replicas(strategy: Any, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Compiles a function, runs it on each replica and returns their results as NumPy arrays."""
    import tensorflow as tf

    values = strategy.run(tf.function(function), args=args)
    return [value.numpy() for value in strategy.experimental_local_results(values)]


def compare(one: Sequence[Any], other: Sequence[Any]) -> str:
    """Says how far the most different numbers of two lists of arrays are apart."""
    pairs = list(zip(one, other, strict=True))
    if all(np.array_equal(a, b) for a, b in pairs):
        return "identical"
    apart = max(float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) for a, b in pairs)
    return "closer than 1e-6" if apart < _ROUNDING else "different"
