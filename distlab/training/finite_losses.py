"""Stops training at a loss that is not finite.

An assertion in the step comes before its update. XLA drops assertions: what it compiles notes the
loss in a variable, which is looked at after the step, and so after its update.
"""

from __future__ import annotations

import re

import keras
import tensorflow as tf

_BEFORE = "distlab: the loss is not finite, before the update"
_AFTER = "distlab: the loss is not finite, after the update"
_MESSAGE = re.compile(rf"\[({_BEFORE}|{_AFTER})\] \[(-?\d+)\] \[(-?\d+)\] \[(.*?)\]")


def assert_finite(loss: tf.Tensor, *, step: tf.Tensor, replica: tf.Tensor) -> tf.Operation | None:
    """Returns the operation that fails where the loss is not finite."""
    # The bare operation: tf.debugging.Assert costs a condition more.
    return tf.raw_ops.Assert(
        condition=tf.math.is_finite(loss), data=[_BEFORE, step, replica, loss], summarize=1
    )


def is_compiled_by_xla(model: keras.Model) -> bool:
    """Whether `jit_compile` lets XLA compile the steps of a model; on a TPU it always does.

    XLA cannot place variables of several logical devices; Keras leaves it off there too.
    """
    one_replica = model.distribute_strategy.num_replicas_in_sync == 1
    return bool(one_replica and model.jit_compile and not model.run_eagerly)


class NotedLoss:
    """The first loss of a step that is not finite, held for a look after the step."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        with strategy.scope():  # [the step's number from 1, or 0 for no such loss; the loss]
            self._held = tf.Variable([0.0, 0.0], dtype=tf.float64, trainable=False)

    def note(self, loss: tf.Tensor, *, step: tf.Tensor) -> tf.Tensor:
        """Notes the loss if it is not finite; returns what makes sure of it."""
        this = tf.stack([tf.cast(step, tf.float64) + 1, tf.cast(loss, tf.float64)])
        keeps = tf.math.is_finite(loss) | (self._held[0] > 0)
        return self._held.assign(tf.where(keeps, self._held, this))

    def look(self) -> None:
        """Fails if such a loss was noted, and forgets it. Call it where operations keep order."""
        number, loss = tf.unstack(tf.identity(self._held))
        with tf.control_dependencies([number]):
            forgotten = self._held.assign([0.0, 0.0])
        with tf.control_dependencies([forgotten]):
            told = [_AFTER, tf.cast(number, tf.int64) - 1, tf.constant(0), loss]
            tf.raw_ops.Assert(condition=tf.equal(number, 0), data=told, summarize=1)


def told_in(message: str) -> tuple[int, int, str, bool] | None:
    """Returns step, replica, loss, and whether its update was applied; None of another error."""
    found = _MESSAGE.search(message)
    if found is None:
        return None
    return int(found[2]), int(found[3]), found[4], found[1] == _AFTER
