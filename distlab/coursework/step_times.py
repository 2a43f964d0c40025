"""Lesson 02: how long a step of Keras's `fit` takes on one device, by batch size, as recorded.

    recorded_step_times()        # {8: 0.0011, 16: 0.0011, ...}, seconds

The times belong to one machine and one moment, so the lesson reads them from a file. Record them
again, on a machine that does nothing else, with

    python -m distlab.coursework.step_times
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

_FILE = Path(__file__).with_suffix(".json")
_BATCHES = (8, 16, 32, 64, 128, 256, 512)
_STEPS, _ROUNDS = 100, 7


def recorded_step_times() -> dict[int, float]:
    """Returns the seconds of one step for each global batch, as they were recorded."""
    read = json.loads(_FILE.read_text(encoding="utf-8"))
    return {int(batch): float(secs) for batch, secs in read["seconds_of_a_step"].items()}


def record() -> dict[str, Any]:
    """Trains the lesson's network with `fit`, and returns the best of several rounds a batch size.

    The best round is the one that other programs disturbed least.
    """
    import keras
    import numpy as np
    import tensorflow as tf

    draw = np.random.default_rng(0)
    images, labels = draw.random((1024, 64), "float32"), draw.integers(10, size=1024)
    layers = [keras.layers.Dense(32, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((64,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05), loss)
    digits = tf.data.Dataset.from_tensor_slices((images, labels)).cache().repeat()
    feeds = {batch: digits.batch(batch, drop_remainder=True).prefetch(2) for batch in _BATCHES}
    best = dict.fromkeys(_BATCHES, float("inf"))
    for _ in range(_ROUNDS):
        for batch, feed in feeds.items():
            began = time.perf_counter()
            model.fit(feed, steps_per_epoch=_STEPS, verbose=0)
            best[batch] = min(best[batch], (time.perf_counter() - began) / _STEPS)
    return {
        "what": "Keras fit, 64-32-10 units, SGD, one device; the best of seven rounds of 100 steps",
        "seconds_of_a_step": {str(batch): round(secs, 6) for batch, secs in best.items()},
    }


if __name__ == "__main__":
    _FILE.write_text(json.dumps(record(), indent=2) + "\n", encoding="utf-8")
