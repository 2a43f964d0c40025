"""Families with parts of their own: outputs, losses and metrics of layers, ways to give data."""

from __future__ import annotations

import itertools

import keras
import numpy as np
from keras import layers, ops

from tests.zoo.family import BATCH, ROWS, batches, family, labels, vectors

CLASSES, WIDTH = 4, 6


def classified():
    return batches(vectors(WIDTH), labels(CLASSES))


def network(*between, **options):
    """Returns a classifier, compiled, with further layers in its middle."""
    first = layers.Dense(8, activation="tanh")
    model = keras.Sequential([keras.Input((WIDTH,)), first, *between, layers.Dense(CLASSES)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(**{"optimizer": keras.optimizers.SGD(0.05), "loss": loss, **options})
    return model


@family("Multi-task: two outputs, each with its own loss, weight and metrics")
def two_tasks():
    def build():
        keras.utils.set_random_seed(71)
        x = keras.Input((WIDTH,), name="features")
        y = layers.Dense(8, activation="relu")(x)
        kind = layers.Dense(CLASSES, activation="softmax", name="kind")(y)
        size = layers.Dense(1, name="size")(y)
        model = keras.Model(x, {"kind": kind, "size": size})
        model.compile(
            optimizer=keras.optimizers.RMSprop(1e-2, momentum=0.5, centered=True),
            loss={"kind": keras.losses.SparseCategoricalCrossentropy(), "size": "log_cosh"},
            loss_weights={"kind": 1.0, "size": 0.3},
            metrics={
                "kind": ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(k=2)],
                "size": [keras.metrics.MeanAbsoluteError(name="mae"), "cosine_similarity"],
            },
        )
        return model

    x = vectors(WIDTH)
    return build, batches(x, {"kind": labels(CLASSES), "size": x[:, :1] * 2 + 1})


class Endpoint(layers.Layer):
    """Takes scores and targets, adds the loss and a metric, and gives back probabilities."""

    def __init__(self):
        super().__init__()
        self.loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.right = keras.metrics.SparseCategoricalAccuracy(name="right")

    def call(self, scores, targets, weights=None):
        self.add_loss(self.loss_of(targets, scores, weights))
        self.right.update_state(targets, scores)
        return ops.softmax(scores)


@family("An endpoint layer with the loss and a metric", core=True)
def loss_in_an_endpoint_layer():
    def build():
        keras.utils.set_random_seed(72)
        x = keras.Input((WIDTH,), name="features")
        targets = keras.Input((), dtype="int32", name="targets")
        scores = layers.Dense(CLASSES)(layers.Dense(8, activation="relu")(x))
        model = keras.Model({"features": x, "targets": targets}, Endpoint()(scores, targets))
        model.compile(optimizer=keras.optimizers.Adam(1e-2))
        return model

    # A tuple of one: inputs without targets beside them.
    data = batches({"features": vectors(WIDTH), "targets": labels(CLASSES)})
    return build, data.map(lambda inputs: (inputs,))


@family("Regularisers of kernels, biases and activations", core=True)
def regularized_in_all_ways():
    def build():
        keras.utils.set_random_seed(73)
        dense = layers.Dense(
            8,
            activation="tanh",
            kernel_regularizer=keras.regularizers.L1L2(1e-3, 1e-2),
            bias_regularizer=keras.regularizers.L2(1e-2),
            activity_regularizer=keras.regularizers.L2(1e-2),
        )
        orthogonal = layers.Dense(
            8, kernel_regularizer=keras.regularizers.OrthogonalRegularizer(0.01)
        )
        return network(dense, layers.ActivityRegularization(l2=1e-2), orthogonal)

    return build, classified()


@family("Models inside models, one of them frozen", core=True)
def nested_models():
    def build():
        keras.utils.set_random_seed(74)
        x = keras.Input((8,))
        parts = []
        for name in ("frozen", "free"):
            y = layers.Dense(6, use_bias=False)(x)
            parts.append(keras.Model(x, layers.ReLU()(layers.BatchNormalization()(y)), name=name))
        parts[0].trainable = False
        both = keras.Model(x, layers.concatenate([parts[0](x, training=False), parts[1](x)]))
        end = keras.Sequential([layers.Dense(8, activation="gelu")])
        return network(both, layers.Rescaling(0.5), end, metrics=["accuracy"])

    return build, classified()


@family(
    "Mixed precision",
    in_16_bits=True,
    core=True,
)
def half_the_bits():
    def build():
        keras.utils.set_random_seed(75)
        policy = keras.DTypePolicy("mixed_bfloat16")
        model = keras.Sequential(
            [
                keras.Input((WIDTH,)),
                layers.Dense(12, activation="relu", dtype=policy),
                layers.Dense(8, use_bias=False, dtype=policy),
                layers.BatchNormalization(dtype=policy),
                layers.Dense(CLASSES, dtype=policy),
                layers.Activation("softmax", dtype="float32"),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy()
        # Not the accuracy: in 16 bits two classes tie, and rounding decides which one is counted.
        likelihood = keras.metrics.SparseCategoricalCrossentropy()
        model.compile(keras.optimizers.Adam(1e-2), loss, metrics=[likelihood])
        return model

    return build, classified()


QUANTILES = (0.1, 0.5, 0.9)


def pinball(y_true, y_pred):
    """A loss for each example: each output is low or high at its own price."""
    error = y_true - y_pred
    price = ops.convert_to_tensor(QUANTILES, dtype=y_pred.dtype)
    return ops.mean(ops.maximum(price * error, (price - 1) * error), axis=-1)


@family("Quantile regression with a custom loss function", core=True)
def quantiles_of_a_number():
    def build():
        keras.utils.set_random_seed(69)
        layers_of_it = [layers.Dense(8, activation="tanh"), layers.Dense(len(QUANTILES))]
        model = keras.Sequential([keras.Input((4,)), *layers_of_it])
        model.compile(keras.optimizers.AdamW(1e-2), loss=pinball, metrics=[pinball])
        return model

    x = vectors(4)
    return build, batches(x, np.abs(x[:, :1]) + vectors(1, seed=6))


class RightByClass(keras.metrics.Metric):
    """Adds up what is right of each class, and what there is of it."""

    def __init__(self, classes, **options):
        super().__init__(**options)
        self.right = self.add_weight(shape=(classes,), initializer="zeros", name="right")
        self.seen = self.add_weight(shape=(classes,), initializer="zeros", name="seen")

    def update_state(self, y_true, y_pred, sample_weight=None):
        true = ops.one_hot(ops.cast(ops.reshape(y_true, (-1,)), "int32"), self.seen.shape[0])
        found = ops.one_hot(ops.argmax(y_pred, axis=-1), self.seen.shape[0])
        if sample_weight is not None:
            true = true * ops.reshape(sample_weight, (-1, 1))
        self.right.assign(self.right + ops.sum(true * found, axis=0))
        self.seen.assign_add(ops.sum(true, axis=0))

    def result(self):
        return ops.mean(self.right / ops.maximum(self.seen, 1.0))


class Squares(keras.metrics.Metric):
    """Adds up the squares of all outputs; its result is its variable itself."""

    def __init__(self, name="squares"):
        super().__init__(name=name)
        self.total = self.add_weight(initializer="zeros", name="total")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(ops.sum(ops.square(y_pred)))

    def result(self):
        return self.total

    def reset_state(self):
        self.total.assign(0.0)


@family("Custom metrics")
def metrics_of_their_own():
    def build():
        keras.utils.set_random_seed(76)
        own = [RightByClass(CLASSES, name="by_class"), Squares()]
        weighted = [RightByClass(CLASSES, name="by_class_weighted")]
        return network(metrics=own, weighted_metrics=weighted)

    weights = np.linspace(0.5, 2.0, ROWS, dtype="float32")
    return build, batches(vectors(WIDTH), labels(CLASSES), weights)


class Table(keras.utils.PyDataset):
    """Batches by their number."""

    def __init__(self, **options):
        super().__init__(**options)
        self.x, self.y = vectors(WIDTH), labels(CLASSES)

    def __len__(self):
        return -(-ROWS // BATCH)

    def __getitem__(self, number):
        there = slice(number * BATCH, (number + 1) * BATCH)
        return self.x[there], self.y[there]


@family("Data by a PyDataset", fit=lambda: {"validation_data": Table()})
def data_by_number_of_batch():
    def build():
        keras.utils.set_random_seed(77)
        return network(metrics=["accuracy"])

    return build, Table(workers=1, use_multiprocessing=False)


@family("Data by a generator", fit=lambda: {"steps_per_epoch": 3}, core=True)
def data_by_generator():
    """A generator that has begun goes on where it is: each `fit` needs one of its own."""

    def build():
        keras.utils.set_random_seed(78)
        return network(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), metrics=["accuracy"])

    table = Table()
    return build, (table[number % len(table)] for number in itertools.count())
