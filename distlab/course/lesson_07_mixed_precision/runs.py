"""Lesson 07's report: trains the learner's loop and loss scale in float16.

    runs = run_in_float16(train, scaled_update)
    draw_loss_scale(runs.losses, runs.scales, skipped=runs.skipped)

Is a digit 5 or more? A linear model of its pixels says it, by SGD on four replicas. Inputs and
targets are so small that most gradients are 0 in float16.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from distlab.course.runs.replicas import MOST_REPLICAS, mirrored

FIXED, START, GROW_EVERY, STEPS = 2.0**20, 2.0**36, 6, 32
_SIZE, _BATCH, _PIXELS = 2.0**-13, 32, 64
_RATE = 0.04 / _SIZE**2
_NO_CLIPPING = 1.0  # gradients are far below


@dataclass(frozen=True)
class Runs:
    """How one model was trained in several ways.

    Attributes:
        losses: By way, the loss of each batch before its step, in units of the first.
        scales: Of `scaled_update`: the scale in each step.
        skipped: The steps, from 1, that it skipped.
    """

    losses: dict[str, list[float]]
    scales: list[float]
    skipped: list[int]


def run_in_float16(train: Callable[..., Any], scaled_update: Callable[..., Any]) -> Runs:
    """Trains in float32, and in float16 without a scale, with a fixed one, and with one found."""
    strategy, data = mirrored(MOST_REPLICAS), _data()

    def losses(policy: str, scale: float) -> list[float]:
        return [float(loss) for loss in train(strategy, *_model(strategy, policy), data, scale)]

    by_way = {
        "float32": losses("float32", 1.0),
        "float16, no scale": losses("mixed_float16", 1.0),
        "float16, your loop": losses("mixed_float16", FIXED),
    }
    update, scales = _with_scale_found(strategy, scaled_update, data)
    by_way["float16, your scale"] = update
    used, after = [START, *scales[:-1]], scales
    return Runs(
        losses={way: [loss / _SIZE**2 for loss in each] for way, each in by_way.items()},
        scales=used,
        skipped=[n for n, (now, then) in enumerate(zip(used, after, strict=True), 1) if then < now],
    )


def _data() -> Any:
    import tensorflow as tf

    import distlab as dl

    count = STEPS * _BATCH
    (digits,) = dl.load_dataset("digits", splits=[f"train[:{count}]"], batch_size=count)
    images, labels = next(digits.as_numpy_iterator())
    x = images.reshape(count, _PIXELS) * _SIZE
    y = np.where(labels >= 5, _SIZE, -_SIZE).astype("float32")[:, None]
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(_BATCH)


def _model(strategy: Any, policy: str) -> tuple[Any, Any]:
    import keras

    from distlab.precision import mixed_precision

    with mixed_precision(policy), strategy.scope():
        dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        as_float32 = keras.layers.Activation("linear", dtype="float32")
        model = keras.Sequential([keras.Input((_PIXELS,)), dense, as_float32])
        optimizer = keras.optimizers.SGD(_RATE)
        optimizer.build(model.trainable_variables)
    return model, optimizer


def _with_scale_found(
    strategy: Any, scaled_update: Callable[..., Any], data: Any
) -> tuple[list[float], list[float]]:
    """Returns the loss before each step, and the scale after it."""
    import tensorflow as tf

    model, optimizer = _model(strategy, "mixed_float16")
    (kernel,) = model.trainable_variables

    def gradient_of(x: Any, y: Any, scale: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(x, training=True) - y) ** 2) / _BATCH
            scaled = loss * scale
        return loss, tf.reshape(tape.gradient(scaled, kernel), [-1])

    def apply(step: Any) -> None:
        # The optimizer adds up what the replicas have, and each has the whole step.
        share = tf.reshape(step, kernel.shape) / strategy.num_replicas_in_sync
        optimizer.apply([share], [kernel])

    # Compiled but for the learner's part, which may do what a graph cannot.
    gradients = tf.function(lambda *batch: strategy.run(gradient_of, args=batch))
    take = tf.function(lambda step: strategy.run(apply, args=(step,)))
    scale, good_steps = tf.constant(START), tf.constant(0)
    losses, scales = [], []
    for x, y in strategy.experimental_distribute_dataset(data):
        loss, gradient = gradients(x, y, scale)
        given = (gradient, scale, good_steps, _NO_CLIPPING, GROW_EVERY)
        step, *rest = strategy.run(scaled_update, args=given)
        take(step)
        losses.append(float(sum(strategy.experimental_local_results(loss))))
        scale, good_steps = (strategy.experimental_local_results(value)[0] for value in rest)
        scale, good_steps = tf.cast(scale, tf.float32), tf.cast(good_steps, tf.int32)
        scales.append(float(scale))
    return losses, scales
