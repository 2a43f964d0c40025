"""Lesson 03: trains small models with any loss, and follows their weights.

model, path = fit_path(build(), digits(320))         # path[0] is before the first step
try_loss = train_with(make_step, strategy)
model, path, losses = try_loss(counted, digits(330), l2=0.05)
max_difference(model, reference)                     # 1.2e-07
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import keras
    import tensorflow as tf


# --- digits and a model of one layer


def digits(examples: int, *, from_files: bool = False) -> tf.data.Dataset:
    """Returns digits in batches of 20, from memory or from the data set's files."""
    import tensorflow as tf

    from distlab.datasets.loader import load_dataset

    size = 20 if from_files else examples
    (data,) = load_dataset("digits", splits=[f"train[:{examples}]"], batch_size=size)
    if from_files:
        return data
    return tf.data.Dataset.from_tensor_slices(next(iter(data))).batch(20)


def sgd() -> keras.optimizers.Optimizer:
    """Returns the optimizer of most of the lesson."""
    import keras

    return keras.optimizers.SGD(0.2)


def adam() -> keras.optimizers.Optimizer:
    """Returns the optimizer that hides a constant factor."""
    import keras

    return keras.optimizers.Adam(0.01)


def build(
    l2: float = 0.0, optimizer: Callable[[], keras.optimizers.Optimizer] = sgd
) -> keras.Model:
    """Returns a compiled model of one layer, whose first weights are always the same."""
    import keras

    from distlab.seeding import set_seed

    set_seed(1)
    penalty = keras.regularizers.L2(l2)
    layers = [keras.layers.Flatten(), keras.layers.Dense(10, kernel_regularizer=penalty)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer(), loss=loss)
    return model


def train_with(
    make_step: Callable[[keras.Model, Any], Callable[[Any], Any]], strategy: Any
) -> Callable[..., tuple[keras.Model, list[Any], list[float]]]:
    """Returns a function that trains a new model for one epoch with a loss.

    It takes the loss, the data and the options of `build`, and returns the model, the path of its
    last layer's weights, and the loss that each step reported.
    """

    def try_loss(loss_of: Any, data: Any, **options: Any) -> tuple[Any, list[Any], list[float]]:
        with strategy.scope():
            model = build(**options)
        step, path, losses = make_step(model, loss_of), [kernel(model)], []
        iterator = iter(strategy.experimental_distribute_dataset(data))
        for _ in range(len(data)):
            losses.append(float(step(iterator)))
            path.append(kernel(model))
        return model, path, losses

    return try_loss


def make_replica_step(loss_of: Any, strategy: Any) -> Callable[[Any, Any], None]:
    """Returns the step of a new model for a compiled loop: its optimizer is already built."""
    import tensorflow as tf

    with strategy.scope():
        model = build()
        model.optimizer.build(model.trainable_variables)

    def replica_step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(model, x, y)
        weights = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, weights), weights)

    return replica_step


# --- lines of text and a small transformer


def build_small() -> keras.Model:
    """Returns a compiled transformer whose loss is a mean over tokens."""
    import keras

    from distlab.course.tiny_transformer import build_transformer
    from distlab.seeding import set_seed

    set_seed(1)
    model = build_transformer(width=32, layers=1)
    loss = keras.losses.SparseCategoricalCrossentropy(True, reduction="mean_with_sample_weight")
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss)
    return model


def train_on_lines(loss_of: Callable[[Any, Any], Any], strategy: Any, lines: Any) -> keras.Model:
    """Trains `build_small` with a loss of each token's loss and its weight, 1 or 0."""
    import keras
    import tensorflow as tf

    each_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    with strategy.scope():
        model = build_small()
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


def typical_ratio(lines: tf.data.Dataset, replicas: int) -> float:
    """Returns how many times more tokens the fullest replica has than the emptiest.

    That is the median over the batches of `lines`.
    """
    import tensorflow as tf

    ratios = []
    for _, _, weights in lines:
        tokens = tf.reduce_sum(tf.reshape(weights, (replicas, -1)), axis=1)
        ratios.append(float(tf.reduce_max(tokens) / tf.reduce_min(tokens)))
    return sorted(ratios)[len(ratios) // 2]


# --- weights and how they move


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


def length(change: Any) -> float:
    """Returns the length of a change of weights."""
    return float(np.linalg.norm(change))


def first_step(path: list[Any]) -> float:
    """Returns the length of the first step of a path."""
    return length(path[1] - path[0])


def last_step(path: list[Any]) -> float:
    """Returns the length of the last step of a path."""
    return length(path[-1] - path[-2])


def largest_change(path: list[Any]) -> float:
    """Returns the largest change of a weight in one step of a path."""
    return float(np.abs(np.diff(path, axis=0)).max())


def max_difference(model: keras.Model, reference: keras.Model) -> float:
    """Returns the largest difference of a weight between two models."""
    pairs = zip(model.get_weights(), reference.get_weights(), strict=True)
    return max(float(np.abs(weight - exact).max()) for weight, exact in pairs)
