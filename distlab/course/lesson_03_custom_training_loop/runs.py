"""Lesson 03: follows the weights of a model through training, and compares two models.

model, path = fit_path(build(), data)        # path[0] is before the first step
model = train_on_lines(build, count_tokens, strategy, lines)
apart(model, reference)                      # 1.2e-07
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import keras


def kernel(model: keras.Model) -> Any:
    """Returns the weight matrix of a model's last layer, as a NumPy array."""
    return model.layers[-1].kernel.numpy()


def fit_path(model: keras.Model, data: Any) -> tuple[keras.Model, list[Any]]:
    """Trains a model for one epoch with Keras's `fit`, and keeps the last layer's weights."""
    import keras

    path = [kernel(model)]
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: path.append(kernel(model))
    )
    model.fit(data, verbose=0, shuffle=False, callbacks=[note])
    return model, path


def train_on_lines(
    build: Callable[[], keras.Model],
    loss_of: Callable[[Any, Any], Any],
    strategy: Any,
    lines: Any,
) -> keras.Model:
    """Trains a model on lines of text, with a loss of each token's loss and its weight, 1 or 0."""
    import keras
    import tensorflow as tf

    each_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    with strategy.scope():
        model = build()
        model.optimizer.build(model.trainable_variables)

    def replica_step(tokens: Any, following: Any, weights: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(each_loss(following, model(tokens, training=True)), weights)
        model.optimizer.apply(tape.gradient(loss, model.trainable_variables))

    @tf.function  # type: ignore[untyped-decorator]
    def step(iterator: Any) -> None:
        strategy.run(replica_step, args=next(iterator))

    iterator = iter(strategy.experimental_distribute_dataset(lines))
    for _ in range(len(lines)):
        step(iterator)
    return model


def apart(model: keras.Model, reference: keras.Model) -> float:
    """Returns the largest difference of a weight between two models."""
    pairs = zip(model.get_weights(), reference.get_weights(), strict=True)
    return max(float(np.abs(path - exact).max()) for path, exact in pairs)
