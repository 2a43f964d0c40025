"""The network of lesson 04 without Keras, the same on a single device and in Keras, and its test.

scores(weights, images)                   # [examples, 10], from four arrays
weights, path = train_alone(step)         # a step of the lesson on a single device
loss_and_accuracy(weights)                          # {"loss": 0.29, "accuracy": 0.92}
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

EPOCHS = 2


@functools.cache
def _digits() -> tuple[Any, Any]:
    """The digits for training in batches of 32, and all digits of the test in one."""
    import distlab as dl

    train, test = dl.load_dataset("digits", batch_size=32)
    return train, next(iter(test.unbatch().batch(360)))


def start() -> list[Any]:
    """Returns the first weights of 64, 32 and 10 units: two kernels and two biases."""
    draw = np.random.default_rng(4)
    shapes = [(64, 32), (32,), (32, 10), (10,)]
    return [draw.normal(0, 0.2, shape).astype("float32") for shape in shapes]


def scores(weights: Sequence[Any], images: Any) -> Any:
    """Returns ten scores for each image."""
    import tensorflow as tf

    kernel, bias, last_kernel, last_bias = weights
    hidden = tf.nn.relu(tf.reshape(images, [-1, 64]) @ kernel + bias)
    return hidden @ last_kernel + last_bias


def copies(variable: Any) -> list[Any]:
    """Returns the copy of each replica."""
    return [copy.numpy() for copy in variable.values]


def train_alone(step: Callable[..., None], **settings: float) -> tuple[list[Any], Any]:
    """Trains on a single device; returns the weights, and the last bias after each step."""
    import tensorflow as tf

    weights = [tf.Variable(values) for values in start()]
    compiled = tf.function(lambda images, labels: step(weights, images, labels, **settings))
    path = [weights[-1].numpy()]
    for _ in range(EPOCHS):
        for images, labels in _digits()[0]:
            compiled(images, labels)
            path.append(weights[-1].numpy())
    return [weight.numpy() for weight in weights], np.array(path)


def train_with_keras(optimizer: Any) -> list[Any]:
    """Returns the weights after Keras's `fit` of the same network on a single device."""
    import keras

    layers = [keras.layers.Flatten(), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    model.set_weights(start())
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(_digits()[0], epochs=EPOCHS, shuffle=False, verbose=0)
    return list(model.get_weights())


def largest_difference(weights: Sequence[Any], others: Sequence[Any]) -> float:
    """Returns the largest difference between two lists of weights."""
    pairs = zip(weights, others, strict=True)
    return float(max(np.abs(np.asarray(a) - np.asarray(b)).max() for a, b in pairs))


def loss_and_accuracy(weights: Sequence[Any]) -> dict[str, float]:
    """Returns the mean loss and the accuracy on the test digits."""
    import tensorflow as tf

    images, labels = _digits()[1]
    found = scores(weights, images)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, found)
    right = np.argmax(found, -1) == labels.numpy()
    return {"loss": float(losses.numpy().mean()), "accuracy": float(right.mean())}


def own_gradients(
    strategy: Any, gradients_of: Callable[..., Any], batch: Any, *, digit: int
) -> Any:
    """Returns each replica's mean gradient of its own digits in a full batch.

    Args:
        strategy: A strategy of four replicas, each of which has 8 of the 32 digits.
        gradients_of: Returns a replica's part of the gradients, as in the lesson.
        batch: A batch that the strategy has cut into shares.
        digit: Whose last bias the gradient is of.
    """
    import tensorflow as tf

    with strategy.scope():
        weights = [tf.Variable(values) for values in start()]
    parts = strategy.run(lambda *batch: gradients_of(weights, *batch)[-1][digit], args=batch)
    return 4 * np.array(strategy.experimental_local_results(parts))
