"""Lesson 10: steps that a clock orders, steps that nobody orders, and a small model of digits.

train = ordered_by_clock(coordinator, step, state)           # on the coordinator
train([(0, 1), (2, 3)], 1.5)                                 # [(0, 1, 0, -0.5), (2, 3, 0, 0.25)]

cluster.run(begin, tasks="chief")                            # in the notebook
(staleness,) = cluster.run(measure_staleness, 200, tasks="chief")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import keras
    import tensorflow as tf


def make_coordinator() -> Any:
    """Returns a coordinator of the cluster that this process belongs to; a lost task is quiet."""
    import tensorflow as tf

    tf.get_logger().setLevel("CRITICAL")  # TensorFlow logs much about a lost worker
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    return tf.distribute.coordinator.ClusterCoordinator(strategy)


# --- steps that a clock orders


def wait_for(state: Any, turn: Any) -> Any:
    """Reads `state` until its clock, the last of its three numbers, shows a turn."""
    now = state.read_value()
    while now[2] < turn:
        now = state.read_value()
    return now


Step = tuple[int, int, int, float]


def ordered_by_clock(coordinator: Any, step: Any, state: Any) -> Callable[..., list[Step]]:
    """Returns a function that sends a step for each pair of turns, from a weight of 1.

    For each step it returns the turns at which the step reads and writes, the step's staleness, and
    the weight after its update.
    """
    import tensorflow as tf

    def train(
        turns: Sequence[tuple[int, int]], rate: float, limit: float = float("inf")
    ) -> list[Step]:
        state.assign([1, 0, 0])
        sent = []
        for read_at, write_at in turns:
            # As tensors, because TensorFlow would trace the step again for each Python number.
            numbers = map(tf.constant, (float(read_at), float(write_at), rate, limit))
            sent.append(coordinator.schedule(step, args=tuple(numbers)))
        coordinator.join()
        returned = coordinator.fetch(sent)
        return [
            (*turn, int(staleness), float(weight))
            for turn, (staleness, weight) in zip(turns, returned, strict=True)
        ]

    return train


# --- steps that nobody orders

_kept: dict[str, Any] = {}  # in the coordinator's process, as long as that lives


def begin() -> None:
    """Makes a coordinator, a count of updates and a step, for the two functions below."""
    import tensorflow as tf

    coordinator = make_coordinator()
    with coordinator.strategy.scope():
        updates = tf.Variable(0)

    @tf.function  # type: ignore[untyped-decorator]
    def step(products: Any) -> Any:
        # The dependencies are needed: by itself TensorFlow would not order reading and multiplying.
        before = updates.read_value()
        with tf.control_dependencies([before]):
            matrix = tf.random.uniform((200, 200))
        for _ in tf.range(products):
            matrix = tf.matmul(matrix, matrix) / 100.0
        with tf.control_dependencies([matrix]):
            staleness = updates.read_value() - before
        updates.assign_add(1)
        return staleness

    _kept.update(coordinator=coordinator, updates=updates, step=step)


def measure_staleness(steps: int) -> list[int]:
    """Returns the staleness of each step; every 20th one multiplies 40 times as much."""
    import tensorflow as tf

    coordinator, step = _kept["coordinator"], _kept["step"]
    products = [800 if number % 20 == 10 else 20 for number in range(steps)]
    sent = [coordinator.schedule(step, args=(tf.constant(each),)) for each in products]
    coordinator.join()
    return [int(staleness) for staleness in coordinator.fetch(sent)]


def count_updates() -> int:
    """Returns the count of updates that the server has now."""
    return int(_kept["updates"].read_value())


# --- a model of digits


def batches() -> tf.data.Dataset:
    """Returns 325 digits in batches of 20."""
    import tensorflow as tf

    import distlab as dl

    (digits,) = dl.load_dataset("digits", splits=["train[:325]"], batch_size=325)
    images, labels = next(digits.as_numpy_iterator())
    return tf.data.Dataset.from_tensor_slices((images, labels)).batch(20)


def build() -> keras.Model:
    """Returns a compiled model of one layer, with the same weights each time."""
    import keras

    import distlab as dl

    dl.set_seed(1)
    layers = [keras.layers.Flatten(), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.2), loss=loss)
    return model


def fit_on_one_device() -> tuple[list[float], list[Any]]:
    """Returns the losses and the weights of two epochs with Keras's own `fit`, on this process."""
    import tensorflow as tf

    tf.config.experimental.enable_tensor_float_32_execution(False)  # a GPU as exact as CPUs
    model = build()
    losses = model.fit(batches(), shuffle=False, epochs=2, verbose=0).history["loss"]
    return losses, model.get_weights()


def max_difference(weights: Sequence[Any], others: Sequence[Any]) -> float:
    """Returns the largest difference of a weight between two models."""
    pairs = zip(weights, others, strict=True)
    return max(float(np.abs(ours - theirs).max()) for ours, theirs in pairs)
