"""Keras's own step: data, losses, layers, and optimizers."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.training.cases.case import (
    BATCH,
    NUMBERS,
    ONE_LEFT,
    ROWS,
    SGD,
    TOKENS,
    WEIGHTS,
    Adam,
    CrossEntropy,
    X,
    Y,
    batches,
    case,
    compile_model,
    network,
)

L2 = keras.regularizers.L2(1e-2)


# Data


@case(lambda: X, y=Y, sample_weight=WEIGHTS, batch_size=BATCH, validation_split=0.2)
def arrays_with_weights():
    return network(layers.Dense(4), optimizer=Adam(1e-2), weighted_metrics=["accuracy"])


@case((X[ONE_LEFT], NUMBERS[ONE_LEFT, 0], WEIGHTS[ONE_LEFT]))
def outputs_without_a_second_axis():
    inputs = keras.Input((8,))
    model = keras.Model(inputs, ops.squeeze(layers.Dense(1)(inputs), -1))
    return compile_model(model, loss="mse", metrics=["mae"])


def by_name():
    return batches({"title": X[:, :2], "body": X[:, 2:]}, Y)


@case(by_name)
def inputs_by_name_of_a_model_that_lists_them_and_an_ignored_class():
    inputs = keras.Input((2,), name="title"), keras.Input((6,), name="body")
    model = keras.Model(inputs, layers.Dense(4)(layers.Concatenate()(inputs)))
    return compile_model(model, loss=CrossEntropy(ignore_class=1))


class ScalarBeside(keras.Model):
    def __init__(self):
        super().__init__()
        self.head = layers.Dense(4)

    def call(self, x):
        return {"logits": self.head(x), "scale": ops.mean(x)}


@case((X, {"logits": Y, "scale": Y}))
def one_number_among_the_outputs_of_a_model_that_clears_the_session():
    keras.backend.clear_session()
    return compile_model(ScalarBeside(), loss={"logits": CrossEntropy(), "scale": None})


# Losses


@case((X[ONE_LEFT], Y[ONE_LEFT], WEIGHTS[ONE_LEFT]))
def mean_by_sample_weights():
    return network(layers.Dense(4), loss=CrossEntropy(reduction="mean_with_sample_weight"))


def mean_over_all(y_true, y_pred):
    """A mean over examples and steps, which does not look at a mask."""
    return ops.mean(ops.square(ops.cast(y_true, "float32") - y_pred))


NO_PADDING_AT_FIRST = np.where(np.arange(ROWS)[:, None] < BATCH, TOKENS + 1, TOKENS)


@case((NO_PADDING_AT_FIRST, X[:, :6, None]))
def own_mean_over_masked_outputs():
    body = layers.Embedding(6, 4, mask_zero=True), layers.Dense(1)
    return network(*body, shape=(6,), loss=mean_over_all)


def squares(y_true, y_pred):
    return (ops.one_hot(y_true, 4) - y_pred) ** 2


def own_mean(y_true, y_pred):
    return ops.mean(squares(y_true, y_pred))


def own_sum(y_true, y_pred):
    return ops.sum(squares(y_true, y_pred)) / 100


def calls_keras(y_true, y_pred):
    return CrossEntropy()(y_true, y_pred) + keras.losses.MeanSquaredError()(
        ops.one_hot(y_true, 4), y_pred
    )


class OwnCall(keras.losses.Loss):
    def __call__(self, y_true, y_pred, sample_weight=None):
        return own_mean(y_true, y_pred)


KINDS_OF_LOSSES = ("mean", "sum", "keras", "call", "summed", "rows")


@case((X[ONE_LEFT], dict.fromkeys(KINDS_OF_LOSSES, Y[ONE_LEFT])))
def means_and_sums_beside_each_other():
    inputs = keras.Input((8,))
    outputs = {name: layers.Dense(4, name=name)(inputs) for name in KINDS_OF_LOSSES}
    losses = own_mean, own_sum, calls_keras, OwnCall(), CrossEntropy(reduction="sum"), squares
    return compile_model(
        keras.Model(inputs, outputs),
        optimizer=SGD(0.02),
        loss=dict(zip(KINDS_OF_LOSSES, losses, strict=True)),
        loss_weights=dict.fromkeys(KINDS_OF_LOSSES, 0.5),
    )


class AddsLosses(layers.Layer):
    """Adds a mean times a weight, a sum, and a vector, which Keras sums."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")
        self.normalize = layers.BatchNormalization(synchronized=True)
        self.normalize.build(shape)

    def call(self, x, training=False):
        self.add_loss(0.1 * self.scale * ops.mean(x**2))
        self.add_loss(0.001 * ops.sum(x**2))
        self.add_loss(0.01 * ops.mean(x**2, axis=-1))
        return self.normalize(x, training=training)


@case()
def losses_of_layers_and_regularisers():
    hidden = layers.Dense(6, activity_regularizer=L2, kernel_regularizer=L2, use_bias=False)
    return network(hidden, AddsLosses(), layers.Dense(4))


# Layers


@case((X[ONE_LEFT], Y[ONE_LEFT]), validates=True)
def convolutions_and_batch_normalisation():
    """Pooling cannot take a replica's empty share, and statistics may not count what fills it."""
    return network(
        layers.Reshape((4, 2, 1)),
        layers.Conv2D(3, 2, padding="same"),
        layers.BatchNormalization(synchronized=True, momentum=0.8),
        layers.MaxPooling2D(2),
        layers.Flatten(),
        layers.ActivityRegularization(l2=1e-2),
        layers.Dense(4),
        metrics=["accuracy"],
    )


class NormalizesRows(layers.Layer):
    """A normalisation inside, of rows that are not the examples."""

    def build(self, shape):
        self.normalize = layers.BatchNormalization(synchronized=True, momentum=0.8)
        self.normalize.build((None, 4))

    def call(self, x, training=False):
        rows = self.normalize(ops.reshape(x, (-1, 4)), training=training)
        return ops.reshape(rows, ops.shape(x))


@case((X[ONE_LEFT], Y[ONE_LEFT]))
def batch_normalisation_inside_a_layer():
    return network(layers.Dense(8), NormalizesRows(), layers.Dense(4))


class KeepsItsParts(layers.Layer):
    """Keeps tensors on itself over a normalisation, in which replicas meet."""

    def build(self, shape):
        self.hidden, self.normalize = layers.Dense(4), layers.BatchNormalization(momentum=0.8)
        self.hidden.build(shape)
        self.normalize.build((None, 4))

    def call(self, x, training=False):
        self.first = self.hidden(x)
        self.parts = [self.first]
        self.parts.append(self.normalize(self.first, training=training))
        return ops.concatenate([self.first, *self.parts], axis=-1)


@case()
def a_layer_that_keeps_tensors_on_itself():
    return network(KeepsItsParts(), layers.Dense(4))


@case()
def nothing_to_train():
    return network(layers.Dense(4, trainable=False))


# Rows of embeddings, whose gradients are sparse


def regression(features, width=6):
    inputs = keras.Input((width,), dtype="int64")
    model = keras.Model(inputs, layers.Dense(1)(features(inputs)))
    return compile_model(model, optimizer=Adam(1e-2), loss="mse")


class Bag(layers.Layer):
    """The mean of the rows that an example names, looked up from a sparse tensor."""

    def build(self, shape):
        self.table = self.add_weight(shape=(7, 4), name="table")

    def call(self, tokens):
        table, sparse = tf.convert_to_tensor(self.table), tf.sparse.from_dense(tokens)
        return tf.nn.safe_embedding_lookup_sparse(table, sparse, combiner="mean")


# The shares of the first batch look up as many rows, those of the others do not.
LOOKED_UP = np.where(np.arange(ROWS)[:, None] < BATCH, np.arange(1, 7), TOKENS)


@case((LOOKED_UP, NUMBERS))
def table_that_is_looked_into_twice():
    def features(inputs):
        bag = Bag()
        return bag(inputs) + 2 * bag(ops.flip(inputs[:, :4], axis=1))

    return regression(features)


@case((TOKENS, NUMBERS))
def table_beside_a_layer_in_half_precision():
    """Gradients begin smaller where a layer may overflow; descent shows whether they grow again."""
    tokens = keras.Input((6,))
    rows = layers.Flatten()(layers.Embedding(5, 4)(tokens))
    exact = layers.Rescaling(0.5, dtype="mixed_float16")(tokens)
    model = keras.Model(tokens, layers.Dense(1)(layers.Concatenate()([rows, exact])))
    return compile_model(model, optimizer=SGD(0.02), loss="mse")


class Counting(layers.Layer):
    """Assigns in a condition, for which Keras's symbolic calls have no place."""

    def build(self, shape):
        self.count = self.add_weight(shape=(), trainable=False, initializer="zeros")

    def compute_output_shape(self, shape):
        return shape

    def call(self, inputs):
        ops.cond(
            self.count < 2, lambda: self.count.assign_add(1.0), lambda: self.count.assign_add(0.0)
        )
        return inputs * (1 + self.count / 10)


@case()
def a_layer_that_assigns_in_a_condition():
    model = keras.Sequential([Counting(), layers.Dense(4)])
    model.build((None, 8))
    return compile_model(model)


def sparse_rows():
    return batches(tf.sparse.from_dense(np.where(X > 0.5, X, 0)), Y)


class OnSparseRows(keras.Model):
    """Takes sparse rows, for which no `keras.Input` says so."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(8, 4), name="kernel")

    def call(self, rows):
        return tf.sparse.sparse_dense_matmul(rows, tf.convert_to_tensor(self.kernel))


@case(sparse_rows)
def a_model_of_ones_own_on_sparse_rows():
    model = OnSparseRows()
    model.build((None, 8))
    return compile_model(model, metrics=["accuracy"])


@case((TOKENS, NUMBERS))
def several_hot_rows():
    lookup = {"vocabulary": list(range(5)), "output_mode": "multi_hot", "sparse": True}
    return regression(lambda inputs: layers.Dense(4)(layers.IntegerLookup(**lookup)(inputs)))


class Trimmed(layers.Layer):
    """Embeds tokens, their positions and their distances, up to the longest example's end."""

    def build(self, shape):
        sizes = {"tokens": 5, "positions": 6, "distances": 11}
        for name, rows in sizes.items():
            setattr(self, name, layers.Embedding(rows, 4))
            getattr(self, name).build(None)

    def call(self, tokens):
        longest = tf.reduce_max(tf.math.count_nonzero(tokens, axis=1))
        counts = tf.cast(tokens[:, :longest] != 0, tf.float32)
        counts = counts / tf.maximum(tf.reduce_sum(counts, 1, keepdims=True), 1.0)
        places = tf.range(longest)
        embedded = self.tokens(tokens[:, :longest]) + self.positions(places)
        pairs = self.distances(places[:, None] - places + 5)
        apart = tf.einsum("bi,bj,ijk->bk", counts, counts, pairs)
        return tf.reduce_sum(embedded * counts[..., None], 1) * apart


@case((TOKENS, NUMBERS))
def positions_up_to_the_longest_example():
    return regression(lambda inputs: Trimmed()(inputs))


# Optimizers


def two_layers(optimizer):
    hidden = layers.Dense(6, activation="tanh", kernel_constraint="unit_norm", name="hidden")
    body = hidden, layers.Dense(4)
    return network(*body, optimizer=optimizer)


@case(epochs=3)
def accumulation_clipping_averages_a_schedule_and_weights_that_do_not_decay():
    optimizer = keras.optimizers.AdamW(
        keras.optimizers.schedules.CosineDecay(0.1, 6),
        weight_decay=0.1,
        gradient_accumulation_steps=2,
        clipnorm=0.1,
        use_ema=True,
        ema_momentum=0.5,
        ema_overwrite_frequency=2,
    )
    optimizer.exclude_from_weight_decay(var_names=["hidden"])
    return two_layers(optimizer)


@case()
def loss_scale_and_accumulation():
    inner = SGD(0.1, gradient_accumulation_steps=2)
    return two_layers(keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0))


@case()
def loss_scale_that_skips_every_step():
    """No average of the weights may take their place either."""
    inner = SGD(0.1, use_ema=True, ema_overwrite_frequency=1)
    return two_layers(keras.optimizers.LossScaleOptimizer(inner, initial_scale=float("inf")))


class InTwoParts(keras.optimizers.Optimizer):
    """Gives the first layer to one optimizer, and the last one to a second."""

    def __init__(self):
        super().__init__(learning_rate=0.1, name="in_two_parts")
        self.parts = [SGD(0.3), SGD(0.1)]

    def build(self, variables):
        super().build(variables)
        self.parts[0].build(variables[:2])
        self.parts[1].build(variables[2:])

    def apply_gradients(self, grads_and_vars):
        pairs = list(grads_and_vars)
        self.parts[0].apply_gradients(pairs[:2])
        self.parts[1].apply_gradients(pairs[2:])
        self.iterations.assign_add(1)

    def update_step(self, gradient, variable, learning_rate):
        raise AssertionError("its parts take the step")


@case()
def optimizers_inside_an_optimizer():
    return network(layers.Dense(6), layers.Dense(4), optimizer=InTwoParts())
