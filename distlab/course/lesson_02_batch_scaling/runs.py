"""Trains one small network many times at once: the same batch size, several rates and seeds.

    runs = train_many(32, rates=(0.05, 0.1, 0.2), epochs=8)
    runs.steps_to(0.95)          # [rates, seeds]: steps until 95 % of the validation digits
    runs.accuracy_after(8)       # [rates, seeds]: accuracy on the test digits

The weights of all networks are in the same tensors, with a dimension for the rate and one for the
seed, so one matrix product does a layer of all of them. The networks do not influence each other.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from distlab.batching import BatchPlan

TRAINING, HIDDEN, CLASSES, PIXELS = 1024, 32, 10, 64
_LOOKS_PER_EPOCH = 8
# Adam's usual constants; Keras has the same.
_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-7


@dataclass(frozen=True, kw_only=True)
class Runs:
    """How the networks of one batch size were trained.

    Attributes:
        batch: Digits in one step, the global batch.
        rates: The learning rates.
        steps: The steps after which all networks met the validation digits, in order.
        validation: Accuracies on the 413 validation digits then, [steps, rates, seeds].
        test: Accuracies on the 360 test digits after each epoch, [epochs, rates, seeds].
    """

    batch: int
    rates: tuple[float, ...]
    steps: Any
    validation: Any
    test: Any

    def steps_to(self, accuracy: float) -> Any:
        """Returns the steps until the validation accuracy is reached; NaN if it never is."""
        reached = self.validation >= accuracy
        return np.where(reached.any(axis=0), self.steps[reached.argmax(axis=0)], np.nan)

    def accuracy_after(self, epochs: int, *, on: Literal["test", "validation"] = "test") -> Any:
        """Returns the accuracies after that many epochs."""
        if on == "test":
            return self.test[epochs - 1]
        return self.validation[np.searchsorted(self.steps, epochs * TRAINING // self.batch)]


def train_many(
    batch: int,
    *,
    rates: tuple[float, ...],
    epochs: int,
    seeds: int = 5,
    warmup_epochs: int = 0,
    warmup_from: float = 0.0,
    start_scale: float = 1.0,
    optimizer: Literal["sgd", "adam"] = "sgd",
) -> Runs:
    """Trains a network of 64, 32 and 10 units on 1,024 digits, for each rate and each seed.

    A seed decides the first weights and the order of the digits. Networks of different rates and
    the same seed start equal and see the same batches.
    """
    import tensorflow as tf

    per_epoch = TRAINING // batch
    steps, every = epochs * per_epoch, max(1, per_epoch // _LOOKS_PER_EPOCH)
    climb = np.ones((steps, 1))
    if warmup_epochs:
        climb[:, 0] = np.minimum(1.0, np.arange(steps) / (warmup_epochs * per_epoch))
    first = [np.repeat(each[None], len(rates), axis=0) for each in first_weights(seeds)]
    validation, test = compiled_training()(
        [tf.constant(start_scale * each) for each in first],
        tf.constant(digit_orders(batch, epochs, seeds)),
        tf.constant(warmup_from + (np.array(rates) - warmup_from) * climb, tf.float32),
        tf.constant(every),
        tf.constant(per_epoch),
        tf.constant(optimizer == "adam"),
    )
    return Runs(
        batch=batch,
        rates=tuple(rates),
        steps=np.arange(every, steps + 1, every),
        validation=validation.numpy(),
        test=test.numpy(),
    )


def compare_warm_ups(plan: BatchPlan, *, start_scale: float) -> dict[str, Any]:
    """Returns the test accuracies (%) of 20 seeds: no warm-up, two epochs of it, and a control.

    The control takes as many steps as the others at one constant rate, which is the mean rate of
    the run with a warm-up.
    """
    low, full, per_epoch = plan.base_learning_rate, plan.learning_rate, plan.steps(TRAINING)
    epochs, warmup_epochs = 8, 2
    climbing = warmup_epochs * per_epoch
    climb = low + (full - low) * np.arange(climbing) / climbing
    mean_rate = float(climb.sum() + (epochs * per_epoch - climbing) * full) / (epochs * per_epoch)
    kinds: dict[str, dict[str, Any]] = {
        "no warm-up": {"rates": (full,)},
        "2 epochs of warm-up": {
            "rates": (full,),
            "warmup_epochs": warmup_epochs,
            "warmup_from": low,
        },
        "control, constant rate": {"rates": (mean_rate,)},
    }
    accuracies = {}
    for kind, how in kinds.items():
        runs = train_many(
            plan.global_batch, epochs=epochs, seeds=20, start_scale=start_scale, **how
        )
        accuracies[kind] = 100 * runs.accuracy_after(epochs)[0]
    return accuracies


@functools.cache
def compiled_training() -> Any:
    """The training loop of all networks: one graph for all batch sizes, rates and seeds."""
    import tensorflow as tf

    (images, labels), validation, test = (tuple(map(tf.constant, part)) for part in split_digits())

    def scores(weights: Any, x: Any) -> Any:
        first, bias_1, second, bias_2 = weights
        return tf.nn.relu(x @ first + bias_1) @ second + bias_2

    def accuracy(weights: Any, x: Any, y: Any) -> Any:
        right = tf.argmax(scores(weights, x), axis=-1, output_type=tf.int32) == y
        return tf.reduce_mean(tf.cast(right, tf.float32), axis=-1)

    def gradients(weights: Any, chosen: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(weights)
            logits = scores(weights, tf.gather(images, chosen))  # [rates, seeds, batch, 10]
            wanted = tf.broadcast_to(tf.gather(labels, chosen), tf.shape(logits)[:-1])
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(wanted, logits)
            # Each network's mean depends on its own weights only, so their sum has its gradient.
            loss = tf.reduce_sum(tf.reduce_mean(losses, axis=-1))
        return tape.gradient(loss, weights)

    def train(weights: Any, orders: Any, rates: Any, every: Any, per_epoch: Any, adam: Any) -> Any:
        steps = tf.shape(orders)[0]
        looks = tf.TensorArray(tf.float32, size=steps // every)
        ends = tf.TensorArray(tf.float32, size=steps // per_epoch)
        mean = [tf.zeros_like(each) for each in weights]
        square = [tf.zeros_like(each) for each in weights]
        for step in tf.range(steps):
            moves = gradients(weights, orders[step])
            if adam:
                mean = [_BETA_1 * m + (1 - _BETA_1) * g for m, g in zip(mean, moves, strict=True)]
                square = [
                    _BETA_2 * s + (1 - _BETA_2) * g * g for s, g in zip(square, moves, strict=True)
                ]
                count = tf.cast(step + 1, tf.float32)
                # Keras corrects the start of both averages in the same way.
                start = tf.sqrt(1 - _BETA_2**count) / (1 - _BETA_1**count)
                moves = [
                    start * m / (tf.sqrt(s) + _EPSILON) for m, s in zip(mean, square, strict=True)
                ]
            rate = rates[step][:, None, None, None]
            weights = [w - rate * move for w, move in zip(weights, moves, strict=True)]
            if (step + 1) % every == 0:
                looks = looks.write((step + 1) // every - 1, accuracy(weights, *validation))
            if (step + 1) % per_epoch == 0:
                ends = ends.write((step + 1) // per_epoch - 1, accuracy(weights, *test))
        return looks.stack(), ends.stack()

    return tf.function(
        train,
        input_signature=[
            [tf.TensorSpec([None, None, *shape]) for shape in _SHAPES],
            tf.TensorSpec([None, None, None], tf.int32),
            tf.TensorSpec([None, None]),
            tf.TensorSpec([], tf.int32),
            tf.TensorSpec([], tf.int32),
            tf.TensorSpec([], tf.bool),
        ],
    )


_SHAPES = ((PIXELS, HIDDEN), (1, HIDDEN), (HIDDEN, CLASSES), (1, CLASSES))


def first_weights(seeds: int) -> list[Any]:
    """Glorot's uniform weights and zero biases, [seeds, ...] each."""

    def draw(seed: int, part: int) -> Any:
        shape = _SHAPES[part]
        limit = np.sqrt(6 / sum(shape)) if shape[0] > 1 else 0
        return np.random.default_rng([seed, part]).uniform(-limit, limit, shape)

    parts = range(len(_SHAPES))
    return [np.array([draw(seed, part) for seed in range(seeds)], "float32") for part in parts]


def digit_orders(batch: int, epochs: int, seeds: int) -> Any:
    """Which digits are in which batch, [steps, seeds, batch]."""

    def order(seed: int) -> Any:
        draw = np.random.default_rng([seed, 99])
        epochs_of_seed = [draw.permutation(TRAINING) for _ in range(epochs)]
        return np.concatenate(epochs_of_seed).reshape(-1, batch)

    return np.stack([order(seed) for seed in range(seeds)], axis=1).astype("int32")


@functools.cache
def split_digits() -> tuple[Any, ...]:
    """Training, validation and test digits: images of 64 numbers from 0 to 1, and labels."""
    from distlab.datasets.loader import load_dataset

    splits = [f"train[:{TRAINING}]", f"train[{TRAINING}:]", "test"]
    parts = load_dataset("digits", splits=splits, batch_size=TRAINING)
    (training,), (validation,), (test,) = (tuple(each.as_numpy_iterator()) for each in parts)

    def flat(part: Any) -> Any:
        images, labels = part
        return np.float32(images).reshape(-1, PIXELS), np.int32(labels)

    return flat(training), flat(validation), flat(test)
