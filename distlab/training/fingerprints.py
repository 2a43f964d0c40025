"""A number that tells whether two workers read the same batch.

mark = mark_of(batch)          # in a function that TensorFlow traces
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


def mark_of(batch: Any) -> tf.Tensor:
    """Returns 8 bytes that follow from a batch's targets; where there are none, from its inputs.

    Inputs may differ in a harmless way: augmentation that each worker draws for itself.
    """
    x, y, _ = keras.utils.unpack_x_y_sample_weight(batch)
    parts = tf.nest.flatten(x if y is None else y, expand_composites=True)
    marks = [_fingerprint(part) for part in parts if part is not None]
    return tf.reshape(_fingerprint(tf.concat(marks, 0)), [8])


def no_mark() -> tf.Tensor:
    """Returns the mark of no batch."""
    return tf.zeros([8], tf.uint8)


def _fingerprint(part: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.Fingerprint(data=tf.reshape(part, [1, -1]), method=tf.constant("farmhash64"))
