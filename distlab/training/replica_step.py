"""What one replica does in one step, so that N replicas take the step of one device.

Each replica weighs the mean loss of its examples by its share of the global batch, which is
counted, not assumed: a partial batch, or a replica without examples, is then exact. Gradients
are summed over the replicas, and only then does the optimizer see them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from distlab.training import keras_private

# What a replica saw: "y", "y_pred", "sample_weight" (where there is one), the mean "loss" of its
# examples and how many "examples" these were.
Seen = dict[str, Any]


def train_step(model: keras.Model) -> Callable[[Any], Seen]:
    """Returns the function that trains on one replica's part of a batch.

    Run it by `strategy.run` inside `keras_private.gradients_already_reduced`.

    Args:
        model: A compiled model, built in the strategy's scope.
    """

    def step(data: Any) -> Seen:
        context = tf.distribute.get_replica_context()
        with tf.GradientTape() as tape:
            seen, in_batch = _forward(model, data, training=True)
            loss = seen["loss"]
            scaled = model.optimizer.scale_loss(
                loss * tf.cast(seen["examples"] / in_batch, loss.dtype)
            )
        variables = model.trainable_variables
        gradients = _sum_over_replicas(context, tape.gradient(scaled, variables))
        model.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return seen

    return step


def test_step(model: keras.Model) -> Callable[[Any], Seen]:
    """Returns the function that evaluates one replica's part of a batch.

    Args:
        model: A compiled model, built in the strategy's scope.
    """
    return lambda data: _forward(model, data, training=False)[0]


def update_metrics(model: keras.Model, seen: Seen) -> None:
    """Adds what was seen to the model's metrics.

    Args:
        model: A compiled model.
        seen: What a step returned on this replica, or on all of them together.
    """
    keras_private.track_loss(model, seen["loss"], seen["examples"])
    model.compute_metrics(None, seen["y"], seen["y_pred"], seen.get("sample_weight"))


def join(parts: list[Seen]) -> Seen:
    """Returns what all replicas saw together.

    Args:
        parts: What each replica saw, in replica order.
    """
    shares = tf.stack([part["examples"] for part in parts])
    losses = tf.stack([part["loss"] for part in parts])
    examples = tf.reduce_sum(shares)
    joined = {
        name: tf.nest.map_structure(lambda *arrays: tf.concat(arrays, 0), *[p[name] for p in parts])
        for name in parts[0]
        if name not in ("loss", "examples")
    }
    loss = tf.reduce_sum(losses * tf.cast(shares, losses.dtype)) / tf.cast(examples, losses.dtype)
    return joined | {"loss": loss, "examples": examples}


def _forward(model: keras.Model, data: Any, *, training: bool) -> tuple[Seen, tf.Tensor]:
    """Returns what this replica saw, and the number of examples in the global batch."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    examples = _count_examples(x)
    context = tf.distribute.get_replica_context()
    in_batch = context.all_reduce(tf.distribute.ReduceOp.SUM, examples)
    y_pred = model(x, training=training)
    loss = keras_private.compiled_loss(model, y, y_pred, sample_weight)
    if keras_private.reduces_by_sum(model):
        # As the mean over this replica's examples that has the same sum over the replicas.
        loss = tf.math.divide_no_nan(
            loss * tf.cast(in_batch, loss.dtype), tf.cast(examples, loss.dtype)
        )
    for extra in model.losses:
        loss += tf.cast(tf.reduce_sum(extra), loss.dtype)
    seen = {"y": y, "y_pred": y_pred, "loss": loss, "examples": examples}
    if sample_weight is not None:
        seen["sample_weight"] = sample_weight
    return seen, in_batch


def _count_examples(x: Any) -> tf.Tensor:
    first = next(part for part in tf.nest.flatten(x) if part is not None)
    return tf.cast(tf.shape(first)[0], tf.float32)


def _sum_over_replicas(context: Any, gradients: list[Any]) -> list[Any]:
    """One all-reduce for all gradients; where a variable has none, it stays None."""
    there = [gradient for gradient in gradients if gradient is not None]
    summed = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, there))
    return [None if gradient is None else next(summed) for gradient in gradients]
