"""Trains models that a seed draws, on replicas and on one device, in float64, and compares them.

    python tools/random_models.py                           # 200 models
    python tools/random_models.py --models 20 --first 400   # others
    python tools/random_models.py --models 1 --first 17     # one again, to look at

In float64 rounding is far below any fault: a weight or a log that is 1e-8 away is one.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

import distlab as dl
from tests.support.parity import Run, differences

ALLOWED = 1e-8
CLASSES = 4

HANG_SECS = 900

Build = Callable[[], keras.Model]
Result = TypeVar("Result")


class Centred(layers.Layer):  # type: ignore[misc]
    def call(self, inputs: Any) -> Any:
        return inputs - ops.mean(inputs, axis=0, keepdims=True)


class Penalised(layers.Layer):  # type: ignore[misc]
    def call(self, inputs: Any) -> Any:
        self.add_loss(1e-3 * ops.mean(ops.square(inputs)))
        return inputs


class Noisy(layers.Layer):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.seeds = keras.random.SeedGenerator(5)

    def call(self, inputs: Any) -> Any:
        return inputs + keras.random.normal(ops.shape(inputs), 0, 0.1, inputs.dtype, self.seeds)


# Layers on [rows, numbers], on [rows, steps, numbers] and on [rows, height, width, channels].
ON_VECTORS = (
    lambda: layers.Dense(5, "relu"),
    lambda: layers.Dense(8, "gelu"),
    lambda: layers.Dense(6, kernel_regularizer="l2", bias_regularizer="l2"),
    lambda: layers.Dense(6, activity_regularizer=keras.regularizers.L2(1e-3)),
    lambda: layers.BatchNormalization(momentum=0.8),
    layers.LayerNormalization,
    layers.UnitNormalization,
    lambda: layers.Dropout(0.3),
    lambda: layers.GaussianDropout(0.2),
    lambda: layers.GaussianNoise(0.1),
    lambda: layers.AlphaDropout(0.2),
    lambda: layers.ActivityRegularization(1e-3, 1e-3),
    lambda: layers.Lambda(lambda x: x * 2),
    lambda: layers.Lambda(lambda x: x - tf.reduce_max(x, 0)),
    lambda: layers.Lambda(lambda x: x + 0.01 * tf.cumsum(x)),
    lambda: layers.SpectralNormalization(layers.Dense(5)),
    Centred,
    Penalised,
    Noisy,
)
ON_SEQUENCES = (
    lambda: layers.LSTM(5, return_sequences=True),
    lambda: layers.GRU(5, return_sequences=True, recurrent_dropout=0.2),
    lambda: layers.Bidirectional(layers.SimpleRNN(4, return_sequences=True, dropout=0.2)),
    lambda: layers.Conv1D(5, 3, padding="causal", activation="relu"),
    lambda: layers.SpatialDropout1D(0.3),
    lambda: layers.TimeDistributed(layers.Dense(5)),
    layers.BatchNormalization,
    layers.LayerNormalization,
)
ON_IMAGES = (
    lambda: layers.Conv2D(4, 3, padding="same", activation="relu"),
    lambda: layers.SeparableConv2D(4, 3, padding="same"),
    lambda: layers.DepthwiseConv2D(3, padding="same"),
    lambda: layers.GroupNormalization(groups=-1),
    layers.BatchNormalization,
    lambda: layers.SpatialDropout2D(0.3),
    lambda: layers.MaxPooling2D(2, padding="same"),
    layers.RandomFlip,
    lambda: layers.RandomTranslation(0.2, 0.2),
    lambda: layers.RandomContrast(0.3),
)


def _encoder(draw: random.Random) -> tuple[Any, Any]:
    """The input, and what it becomes: [rows, numbers]."""

    def stack(x: Any, kinds: tuple[Any, ...], most: int) -> Any:
        for _ in range(draw.randint(1, most)):
            x = draw.choice(kinds)()(x)
        return x

    kind = draw.choice(["vectors", "words", "sequences", "images"])
    if kind == "vectors":
        inputs = x = keras.Input((7,))
    elif kind == "images":
        inputs = keras.Input((6, 6, 2))
        x = stack(inputs, ON_IMAGES, 3)
        x = draw.choice([layers.GlobalAveragePooling2D, layers.Flatten])()(x)
    else:
        inputs = x = keras.Input((5,), dtype="int32") if kind == "words" else keras.Input((5, 3))
        if kind == "words":
            x = layers.Embedding(9, 6, mask_zero=draw.random() < 0.5)(x)
        x = stack(x, ON_SEQUENCES, 2)
        if draw.random() < 0.3:
            x = layers.MultiHeadAttention(2, 3, dropout=0.1)(x, x)
        x = draw.choice([layers.GlobalAveragePooling1D, lambda: layers.LSTM(5)])()(x)
    return inputs, stack(x, ON_VECTORS, 4)


def _one_hot(y: Any, outputs: Any) -> Any:
    return ops.one_hot(ops.cast(ops.reshape(y, (-1,)), "int32"), CLASSES, dtype=outputs.dtype)


def _hinge_of_pairs(y: Any, outputs: Any) -> Any:
    apart = ops.sum(ops.square(outputs[:, None] - outputs[None]), -1)
    same = ops.cast(ops.equal(ops.reshape(y, (-1, 1)), ops.reshape(y, (1, -1))), outputs.dtype)
    return ops.mean(same * apart + (1 - same) * ops.maximum(1 - apart, 0))


def _ratio_of_sums(y: Any, outputs: Any) -> Any:
    return ops.sum(ops.square(outputs - _one_hot(y, outputs))) / (1 + ops.sum(ops.abs(outputs)))


def _mean_of_rows(y: Any, outputs: Any) -> Any:
    return ops.mean(ops.square(outputs - _one_hot(y, outputs)))


def _value_of_rows(y: Any, outputs: Any) -> Any:
    return ops.logsumexp(outputs, axis=-1) - ops.sum(_one_hot(y, outputs) * outputs, axis=-1)


_cross_entropy = functools.partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True)
LOSSES = (
    _cross_entropy,
    lambda: _cross_entropy(reduction="sum"),
    lambda: _cross_entropy(reduction="mean_with_sample_weight"),
    lambda: _cross_entropy(ignore_class=1),
    lambda: _hinge_of_pairs,
    lambda: _ratio_of_sums,
    lambda: _mean_of_rows,
    lambda: _value_of_rows,
)
METRICS = (
    lambda: "accuracy",
    lambda: keras.metrics.SparseCategoricalCrossentropy(from_logits=True),
    lambda: _value_of_rows,
    # Those that give a number for the batch can't be weighted by example.
    lambda: _ratio_of_sums,
    lambda: _mean_of_rows,
)
# They don't divide by gradients that may be nothing but rounding.
OPTIMIZERS = (
    functools.partial(keras.optimizers.SGD, 0.05),
    functools.partial(keras.optimizers.SGD, 0.05, momentum=0.9, nesterov=True),
    functools.partial(keras.optimizers.Adagrad, 0.05, epsilon=1e-2),
    functools.partial(keras.optimizers.Adam, 0.01, epsilon=1e-2),
    functools.partial(keras.optimizers.RMSprop, 0.01, epsilon=1e-2),
)


def draw_metrics(draw: random.Random, kinds: tuple[Any, ...]) -> list[Any]:
    """Returns none, one or two of these kinds."""
    return [make() for make in draw.sample(kinds, draw.randint(0, 2))]


def draw_optimizer(draw: random.Random) -> keras.optimizers.Optimizer:
    """Returns an optimizer with options."""
    options: dict[str, Any] = draw.choice(
        [{}, {"clipnorm": 0.5}, {"global_clipnorm": 0.5}, {"clipvalue": 0.1}]
    )
    options |= draw.choice([{}, {}, {"weight_decay": 1e-2}, {"gradient_accumulation_steps": 2}])
    options |= draw.choice([{}, {}, {"use_ema": True, "ema_overwrite_frequency": 2}])
    return draw.choice(OPTIMIZERS)(**options)


class OwnStep(keras.Model):  # type: ignore[misc]
    """Keras's loss, by hand, and the norm of its gradient logged."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            outputs = self(x, training=True)
            value = self.compute_loss(x, y, outputs, weights)
            value += 1e-3 * tf.math.reduce_std(outputs)
        gradients = tape.gradient(value, self.trainable_variables)
        gradients = [ops.where(ops.isnan(each), 0.0, each) for each in gradients]
        self.optimizer.apply(gradients, self.trainable_variables)
        logs = self.compute_metrics(x, y, outputs, weights)
        return {**logs, "loss": value, "norm": tf.linalg.global_norm(gradients)}


class OwnLoss(keras.Model):  # type: ignore[misc]
    """A loss of its own over what Keras gives."""

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return ops.log1p(ops.abs(super().compute_loss(*args, **kwargs)))


def build_model(seed: int) -> keras.Model:
    """Builds the model of a seed; each time the same."""
    draw = random.Random(seed)
    keras.utils.set_random_seed(seed)
    inputs, x = _encoder(draw)
    kind = draw.choices([keras.Model, OwnStep, OwnLoss], [6, 2, 1])[0]
    # Rounding would choose among equal outputs, as of a batch of one row less its mean.
    apart = keras.initializers.RandomNormal(stddev=1.0)
    model = kind(inputs, layers.Dense(CLASSES, bias_initializer=apart)(x))
    model.compile(
        draw_optimizer(draw),
        draw.choice(LOSSES)(),
        metrics=draw_metrics(draw, METRICS),
        weighted_metrics=draw_metrics(draw, METRICS[:3]),
        steps_per_execution=draw.choice([1, 1, 3]),
    )
    return model


def _data(seed: int, model: keras.Model) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """Batches to train on, the last a partial one, and to validate on."""
    draw, numbers = random.Random(seed + 1), np.random.default_rng(seed)
    examples, batch = draw.choice([(22, 8), (19, 6), (25, 12), (13, 6)])
    shape = (examples, *model.input_shape[1:])
    words = model.inputs[0].dtype == "int32"
    x = numbers.integers(0, 9, shape) if words else numbers.normal(size=shape)
    parts = [x, numbers.integers(0, CLASSES, examples)]
    if draw.random() < 0.4:
        parts.append(numbers.choice([0.0, 0.5, 2.0], examples))
    rows = tf.data.Dataset.from_tensor_slices(tuple(parts))
    return rows.batch(batch), rows.take(11).batch(batch)


def _train(model: keras.Model, seed: int) -> Run:
    """Returns the logs and weights that a training ends with."""
    data, validation = _data(seed, model)
    logs = model.fit(data, validation_data=validation, epochs=2, verbose=0).history
    return logs, model.weights


def compare(seed: int) -> tuple[int, float, str]:
    """Returns the largest difference from one device, and where."""
    replicas = 2 + seed % 2
    keras.backend.clear_session()
    try:
        build = functools.partial(build_model, seed)
        expected = _train(build(), seed)
        strategy = dl.make_strategy("mirrored", devices=replicas)
        trained = _train(dl.distribute(build, strategy), seed)
    except Exception as error:
        return seed, np.inf, f"on {replicas} replicas: {type(error).__name__}: {str(error)[:300]}"
    far, where = farthest(expected, trained)
    return seed, far, f"{where} on {replicas} replicas"


def farthest(expected: Run, trained: Run) -> tuple[float, str]:
    """Returns the largest difference of two runs, and where it is."""
    far = differences(expected, trained, equal_nan=True)
    where = max(far, key=lambda name: far[name])
    return far[where], where


def start() -> None:
    """Prepares a process for trainings that are compared."""
    dl.split_devices(3)
    keras.config.set_floatx("float64")
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def in_another_process(judge: Callable[[int], Result], seeds: range) -> Iterator[Result | None]:
    """Yields what a function returns for each seed, None where it hangs or ends the process."""
    pool = None
    for done, seed in enumerate(seeds, start=1):
        # TensorFlow keeps what it has traced, so now and then another process takes over.
        pool = pool or multiprocessing.get_context("spawn").Pool(1, start, maxtasksperchild=25)
        try:
            yield pool.apply_async(judge, (seed,)).get(HANG_SECS)
        except multiprocessing.TimeoutError:
            pool.terminate()
            pool = None
            yield None
        if done % 20 == 0:
            print(f"{done} of {len(seeds)}", file=sys.stderr, flush=True)
    if pool is not None:
        pool.close()
        pool.join()


def main() -> int:
    """Reads the command line, and prints a line for each model that differs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    asked = parser.parse_args()
    seeds = range(asked.first, asked.first + asked.models)
    right, worst = 0, 0.0
    for seed, result in zip(seeds, in_another_process(compare, seeds), strict=True):
        _, far, where = result or (seed, np.inf, "it hangs, or the process ended")
        if far > ALLOWED:
            print(f"model {seed}: {far:.1e} away, {where}", flush=True)
        else:
            right, worst = right + 1, max(worst, far)
    print(f"{right} of {asked.models} models as on one device, at most {worst:.0e} away")
    return 0 if right == asked.models else 1


if __name__ == "__main__":
    sys.exit(main())
