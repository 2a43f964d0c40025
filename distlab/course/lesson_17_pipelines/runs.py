"""The pipeline of lesson 17: eight dense layers that classify 480 digits.

pipeline = digits_pipeline(devices=4, micro_batches=8)
pipeline.run(schedule)
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from distlab.course.lesson_17_pipelines.engine import Pipeline
from distlab.devices import split_devices

EXAMPLES = 480
_UNITS = 48


def digits_pipeline(devices: int, micro_batches: int) -> Pipeline:
    """Returns the layers on these devices, always with the same weights and digits."""
    from sklearn.datasets import load_digits

    split_devices(4)
    pixels, labels = load_digits(return_X_y=True)
    x = tf.constant(pixels[:EXAMPLES] / 16, tf.float32)
    draw = keras.initializers.HeNormal
    layers = [keras.layers.Dense(_UNITS, "relu", kernel_initializer=draw(seed=n)) for n in range(7)]
    layers.append(keras.layers.Dense(10, kernel_initializer=draw(seed=7)))
    keras.Sequential(layers)(x)
    measure = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")

    def loss(outputs: Any, y: Any) -> Any:
        return measure(y, outputs) / EXAMPLES

    options = {"devices": devices, "micro_batches": micro_batches}
    return Pipeline(layers, x, tf.constant(labels[:EXAMPLES]), loss, **options)
