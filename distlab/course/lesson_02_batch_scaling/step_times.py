"""Lesson 02: how long a training step takes on one device, by batch size, as it was recorded.

    recorded_step_times()        # {8: 0.0001, 16: 0.0001, ...}, seconds

The times belong to one machine and one moment, so the lesson reads them from a file. Record them
again with

    python -m distlab.course.lesson_02_batch_scaling.step_times
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from distlab.course.lesson_02_batch_scaling.runs import (
    TRAINING,
    compiled_training,
    digit_orders,
    first_weights,
)

_FILE = Path(__file__).with_suffix(".json")
BATCHES = (8, 16, 32, 64, 128, 256)
_STEPS, _ROUNDS = 256, 40


def recorded_step_times() -> dict[int, float]:
    """Returns the seconds of one step for each global batch, as they were recorded."""
    read = json.loads(_FILE.read_text(encoding="utf-8"))
    return {int(batch): float(secs) for batch, secs in read["seconds_of_a_step"].items()}


def record() -> dict[str, Any]:
    """Trains one network in the compiled loop on one core, and returns the best of many rounds.

    It counts the processor's time, which does not pass while other programs have the core. Batch
    sizes take turns, so a busy minute slows all of them.
    """
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    train = compiled_training()
    weights = [tf.constant(each[None]) for each in first_weights(1)]
    rates, adam = tf.fill([_STEPS, 1], 0.05), tf.constant(False)
    end = tf.constant(_STEPS)  # one look at the accuracy, at the end
    epochs = {batch: _STEPS * batch // TRAINING for batch in BATCHES}
    orders = {batch: tf.constant(digit_orders(batch, epochs[batch], 1)) for batch in BATCHES}
    best = dict.fromkeys(BATCHES, float("inf"))
    for _ in range(_ROUNDS):
        for batch in BATCHES:
            began = time.process_time()
            train(weights, orders[batch], rates, end, end, adam)[0].numpy()
            best[batch] = min(best[batch], (time.process_time() - began) / _STEPS)
    return {
        "what": f"train_many's loop, one network, one CPU core; best of {_ROUNDS} rounds",
        "seconds_of_a_step": {str(batch): round(secs, 7) for batch, secs in best.items()},
    }


if __name__ == "__main__":
    _FILE.write_text(json.dumps(record(), indent=2) + "\n", encoding="utf-8")
