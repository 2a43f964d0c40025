"""Families of tables: columns of numbers, whole numbers and text, prepared in many ways."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.zoo.family import ROWS, batches, draw, family, labels, vectors

PLACES = ("north", "south", "east", "west")


def table(seed=21, examples=ROWS):
    """Returns columns of people: two of numbers, one of codes, one of text."""
    drawn = draw(seed)
    return {
        "age": drawn.uniform(18, 80, examples).astype("float32"),
        "hours": drawn.normal(38, 6, examples).astype("float32"),
        "code": drawn.integers(100, 105, examples),
        "place": drawn.choice(PLACES, examples),
    }


def incomes(**more):
    return batches(table(**more), labels(2).astype("float32"))


@family("Structured data classification with FeatureSpace")
def table_by_feature_space():
    space = keras.utils.FeatureSpace(
        features={
            "age": keras.utils.FeatureSpace.float_discretized(num_bins=5),
            "hours": keras.utils.FeatureSpace.float_normalized(),
            "code": keras.utils.FeatureSpace.integer_categorical(num_oov_indices=0),
            "place": keras.utils.FeatureSpace.string_categorical(num_oov_indices=1),
        },
        crosses=[keras.utils.FeatureSpace.cross(("code", "place"), crossing_dim=8)],
        output_mode="concat",
    )
    space.adapt(batches(table()))
    width = space(tf.nest.map_structure(lambda column: column[:1], table())).shape[-1]

    def build():
        keras.utils.set_random_seed(61)
        x = keras.Input((width,))
        y = layers.Dense(8, activation="relu")(x)
        y = layers.Dense(1, activation="sigmoid")(layers.Dropout(0.5)(y))
        model = keras.Model(x, y)
        model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
        return model

    return build, incomes().map(lambda x, y: (space(x), y))


@family("Classify structured data using Keras preprocessing layers")
def table_prepared_in_the_pipeline():
    columns = table()
    scale = layers.Normalization(axis=None)
    scale.adapt(columns["age"])
    place = layers.StringLookup(vocabulary=PLACES, output_mode="one_hot")
    code = layers.IntegerLookup(vocabulary=[100, 101, 102, 103], num_oov_indices=1)
    one_hot = layers.CategoryEncoding(num_tokens=5, output_mode="one_hot")
    hashed = layers.Hashing(num_bins=6)

    def prepare(x, y):
        kinds = place(x["place"]), one_hot(code(x["code"]))
        return {
            "numbers": tf.stack([scale(x["age"]), x["hours"] / 40.0], axis=-1),
            "kinds": tf.concat([tf.cast(kind, tf.float32) for kind in kinds], axis=-1),
            "hashed": hashed(x["place"]),
        }, y

    def build():
        keras.utils.set_random_seed(62)
        x = {
            "numbers": keras.Input((2,), name="numbers"),
            "kinds": keras.Input((len(PLACES) + 6,), name="kinds"),
            "hashed": keras.Input((), dtype="int64", name="hashed"),
        }
        parts = [x["numbers"], x["kinds"], layers.Embedding(6, 3)(x["hashed"])]
        y = layers.Dense(8, activation="relu")(layers.concatenate(parts))
        model = keras.Model(x, layers.Dense(1)(y))
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        accuracy = keras.metrics.BinaryAccuracy(threshold=0.0)
        model.compile(keras.optimizers.SGD(0.05), loss, metrics=[accuracy])
        return model

    return build, incomes().map(prepare)


@family("Structured data classification from scratch")
def table_prepared_in_the_model():
    def build():
        keras.utils.set_random_seed(63)
        columns, x, parts = table(), {}, []
        for name in ("age", "hours"):
            x[name] = keras.Input((1,), name=name)
            scale = layers.Normalization()
            scale.adapt(columns[name][:, None])
            parts.append(scale(x[name]))
        x["code"] = keras.Input((1,), name="code", dtype="int64")
        code = layers.IntegerLookup(output_mode="int")
        code.adapt(columns["code"][:, None])
        width = code.vocabulary_size()
        parts.append(layers.CategoryEncoding(width, output_mode="multi_hot")(code(x["code"])))
        x["place"] = keras.Input((1,), name="place", dtype="string")
        place = layers.StringLookup(vocabulary=PLACES, num_oov_indices=1)(x["place"])
        parts.append(layers.Flatten()(layers.Embedding(len(PLACES) + 1, 3)(place)))
        hashed = layers.Hashing(5, output_mode="one_hot", sparse=False)(x["place"])
        parts.append(ops.cast(hashed, "float32"))
        y = layers.Dense(8, activation="relu")(layers.concatenate(parts))
        model = keras.Model(x, layers.Dense(1, activation="sigmoid")(layers.Dropout(0.5)(y)))
        model.compile("rmsprop", "binary_crossentropy", metrics=["accuracy"])
        return model

    columns = {name: column[:, None] for name, column in table().items()}
    return build, batches(columns, labels(2))


def two_kinds_of_columns():
    return batches({"wide": table()["code"][:, None] % 5, "deep": vectors(4)}, labels(3))


def wide_and_deep(cross=False):
    x = {
        "wide": keras.Input((1,), dtype="int64", name="wide"),
        "deep": keras.Input((4,), name="deep"),
    }
    wide = layers.CategoryEncoding(5, output_mode="one_hot")(x["wide"])
    wide = layers.BatchNormalization()(wide)
    start = layers.concatenate([wide, x["deep"]])
    deep = layers.Dense(8, use_bias=False)(start)
    deep = layers.Dropout(0.1)(layers.ReLU()(layers.BatchNormalization()(deep)))
    if cross:
        wide = start * layers.Dense(start.shape[-1])(start) + start
    return keras.Model(x, layers.Dense(3, activation="softmax")(layers.concatenate([wide, deep])))


@family("Structured data learning with Wide and Deep networks", core=True)
def table_by_wide_and_deep():
    def build():
        keras.utils.set_random_seed(64)
        model = wide_and_deep()
        model.compile(
            optimizer=keras.optimizers.SGD(0.05),
            loss=keras.losses.SparseCategoricalCrossentropy(),
            metrics=[keras.metrics.SparseCategoricalAccuracy()],
        )
        return model

    return build, two_kinds_of_columns()


@family("Structured data learning with Deep and Cross networks")
def table_by_crosses():
    def build():
        keras.utils.set_random_seed(65)
        model = wide_and_deep(cross=True)
        rate = keras.optimizers.schedules.CosineDecay(
            0.001, 10, warmup_target=0.004, warmup_steps=2
        )
        loss = keras.losses.SparseCategoricalCrossentropy()
        model.compile(keras.optimizers.AdamW(rate, global_clipnorm=1.0), loss)
        return model

    return build, two_kinds_of_columns()


class GatedResidual(layers.Layer):
    """Adds to its input what a gate lets through."""

    def __init__(self, units, rate=0.1):
        super().__init__()
        self.first, self.value = layers.Dense(units, activation="elu"), layers.Dense(units)
        self.gate = layers.Dense(units, activation="sigmoid")
        self.norm, self.dropout = layers.LayerNormalization(), layers.Dropout(rate)

    def call(self, x, training=False):
        y = self.dropout(self.first(x), training=training)
        return self.norm(x + self.value(y) * self.gate(y))


class Selection(layers.Layer):
    """A weighted mean of what each column becomes; the weights depend on all columns."""

    def __init__(self, columns, units):
        super().__init__()
        self.each = [GatedResidual(units) for _ in range(columns)]
        self.weigh = layers.Dense(columns, activation="softmax")

    def call(self, columns, training=False):
        weights = self.weigh(ops.concatenate(columns, axis=-1))
        parts = [part(x, training=training) for part, x in zip(self.each, columns, strict=True)]
        return ops.sum(weights[..., None] * ops.stack(parts, axis=1), axis=1)


@family("Classification with Gated Residual and Variable Selection Networks", core=True)
def table_by_gated_residuals():
    def build():
        keras.utils.set_random_seed(66)
        x = {
            "size": keras.Input((1,), name="size"),
            "kind": keras.Input((1,), name="kind", dtype="int64"),
        }
        kind = layers.Flatten()(layers.Embedding(5, 4)(x["kind"]))
        parts = [layers.Dense(4)(x["size"]), kind]
        y = Selection(len(parts), 4)(parts)
        model = keras.Model(x, layers.Dense(1, activation="sigmoid")(y))
        model.compile(
            optimizer=keras.optimizers.SGD(0.05),
            loss=keras.losses.BinaryCrossentropy(),
            metrics=[keras.metrics.BinaryAccuracy(name="accuracy")],
        )
        return model

    x = {"size": vectors(1), "kind": table()["code"][:, None] % 5}
    weights = draw(22).uniform(0.1, 3.0, ROWS).astype("float32")
    return build, batches(x, labels(2), weights)


def few_frauds():
    return {
        "class_weight": {0: 0.2, 1: 5.0},
        "validation_data": (vectors(8, 13, seed=5), np.arange(13) % 4 == 0),
    }


@family("Imbalanced classification: credit card fraud detection", fit=few_frauds)
def table_with_few_of_one_class():
    def build():
        keras.utils.set_random_seed(67)
        model = keras.Sequential(
            [
                keras.Input((8,)),
                layers.Dense(12, activation="relu"),
                layers.Dropout(0.3),
                layers.Dense(1, activation="sigmoid"),
            ]
        )
        metrics = [
            keras.metrics.TruePositives(name="frauds"),
            keras.metrics.Precision(name="precision"),
            keras.metrics.AUC(num_thresholds=30, curve="PR", name="prc"),
        ]
        model.compile(keras.optimizers.SGD(0.05), "binary_crossentropy", metrics=metrics)
        return model

    return build, batches(vectors(8), (np.arange(ROWS) % 5 == 0).astype("float32"))


@family("Basic regression: predict fuel efficiency")
def regression_with_weights():
    def build():
        keras.utils.set_random_seed(68)
        scale = layers.Normalization()
        scale.adapt(vectors(5) * 3 + 1)
        steps = [scale, layers.Dense(8, activation="relu"), layers.Dense(1)]
        model = keras.Sequential([keras.Input((5,)), *steps])
        model.compile(
            optimizer=keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True),
            loss=keras.losses.MeanAbsoluteError(),
            metrics=["mae", keras.metrics.RootMeanSquaredError(), keras.metrics.R2Score()],
            weighted_metrics=["mse", keras.metrics.MeanAbsolutePercentageError()],
        )
        return model

    x = vectors(5) * 3 + 1
    weights = draw(23).uniform(0.1, 3.0, ROWS).astype("float32")
    return build, batches(x, (x.sum(axis=1, keepdims=True) + 20).astype("float32"), weights)
