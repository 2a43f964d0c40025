"""What looks at the batch as a whole, draws, or decides in the middle of a step."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.training.cases.case import (
    BATCH,
    NUMBERS,
    ONE_HOT,
    ONE_LEFT,
    SGD,
    Adam,
    CrossEntropy,
    X,
    Y,
    batches,
    case,
    compile_model,
    network,
)
from tests.training.cases.steps import Net, net, step

# Layers


@case(lambda: batches(X, Y, batch=9), epochs=1)
def state_for_each_place_in_the_batch():
    inputs = keras.Input((8,), batch_size=9)
    steps = layers.Reshape((4, 2))(inputs)
    return compile_model(keras.Model(inputs, layers.LSTM(4, stateful=True)(steps)))


# Draws


@case((X[ONE_LEFT], Y[ONE_LEFT]), validates=True)
def dropout_and_noise():
    hidden = layers.Dense(6), layers.Dropout(0.4, seed=2), layers.GaussianNoise(0.1, seed=3)
    return network(*hidden, layers.Dense(4))


class Noise(layers.Layer):
    def call(self, x):
        return x + keras.random.normal((8,))


@case()
def draws_without_a_seed():
    return network(Noise(), layers.Dense(4))


class StatelessDraws(layers.Layer):
    def call(self, x):
        drawn = tf.random.stateless_uniform(tf.shape(x), seed=(1, 2))
        odd = tf.random.stateless_normal((tf.shape(x)[0], 3), seed=(3, 4), dtype=tf.float64)
        near = tf.random.stateless_truncated_normal(tf.shape(x), seed=(5, 6))
        count = tf.random.stateless_uniform(tf.shape(x), (7, 8), 0, 9, tf.int32)
        count -= tf.random.stateless_uniform(tf.shape(x), (9, 10), None, None, tf.int32) % 9
        return tf.concat([x * drawn + near * tf.cast(count, x.dtype), tf.cast(odd, x.dtype)], 1)


@case((X[ONE_LEFT], Y[ONE_LEFT]))
def draws_of_tensorflow_by_a_state():
    return network(StatelessDraws(), layers.Dense(4))


class Kinds(layers.Layer):
    """Draws that cannot be made for some rows alone."""

    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(4)

    def call(self, x):
        gamma = keras.random.gamma(ops.shape(x), 2.0, seed=self.seeds)
        gamma += keras.random.beta(ops.shape(x), 2.0, 3.0, seed=self.seeds)
        gamma -= keras.random.binomial(ops.shape(x), 3.0, 0.5, seed=self.seeds)
        classes = keras.random.categorical(x, 2, seed=self.seeds)
        return keras.random.shuffle(x * gamma, seed=self.seeds) + ops.cast(classes[:, :1], x.dtype)


@case()
def draws_of_the_whole_batch():
    return network(Kinds(), layers.Dense(4))


# Losses, logs and decisions of a step


@case()
def loss_that_is_not_one_number():
    return network(layers.Dense(4), optimizer=SGD(0.01), loss=CrossEntropy(reduction="none"))


@step()
class Conditional(Net):
    def learn(self, tape, loss):
        weights = self.trainable_variables
        gradients = tape.gradient(loss, weights)
        even = tf.equal(self.optimizer.iterations % 2, 0)
        skip = lambda: self.optimizer.iterations.assign_add(1)  # noqa: E731
        tf.cond(even, lambda: self.optimizer.apply(gradients, weights), lambda: (skip(), None)[1])


@case()
def accumulation_in_a_step_of_ones_own():
    return net(Net, optimizer=SGD(0.1, gradient_accumulation_steps=2))


class ByIndex(Net):
    """Learns from one-hot labels, by their indices; its outputs have a mask."""

    def begin(self):
        self.masking = layers.Masking()

    def call(self, x):
        return super().call(self.masking(x))

    def train_step(self, data):
        x, y = data[0], tf.argmax(data[1], axis=-1)
        return super().train_step((x, y)) | self.compute_metrics(x, y, self(x))


SOME_ZEROS = np.where(np.arange(len(X))[:, None] % 3 > 0, X, 0)


@case((SOME_ZEROS, ONE_HOT))
def accuracy_that_keras_chooses_by_the_labels_of_a_step():
    return net(ByIndex, metrics=["accuracy"])


class DividedByWeights(keras.losses.Loss):
    """A loss of Keras's without a reduction, divided by the number of large targets."""

    def __init__(self):
        super().__init__()
        self.each = keras.losses.MeanAbsoluteError(reduction=None)

    def call(self, y, y_pred):
        large = ops.cast(ops.abs(y[:, 0]) > 1, y_pred.dtype)
        return ops.sum(self.each(y, y_pred) * large) / (ops.sum(large) + 1e-6)


@case((X, NUMBERS))
def loss_of_kerass_inside_a_loss_of_ones_own():
    return network(layers.Dense(1), loss=DividedByWeights(), optimizer=Adam(0.01))


# What looks at other rows, each in a layer: all are found while they are traced


def len_of(x):
    return ops.shape(x)[0]


MIXING = {
    "products_of_all_pairs": lambda x: x @ ops.transpose(x) @ x / 50,
    "products_of_columns": lambda x: x @ (ops.transpose(x) @ x) / 50,
    "ranks": lambda x: ops.cast(ops.argsort(x, axis=0), "float32") / 10,
    "sums_so_far": lambda x: ops.cumsum(x, axis=0) / 10,
    "next_row": lambda x: x - ops.roll(x, 1, axis=0),
    "softmax_over_rows": lambda x: ops.softmax(x, axis=0) * 10,
    "mean_by_a_sum": lambda x: x - ops.sum(x, 0) / ops.cast(ops.shape(x)[0], "float32"),
    "a_row_of_all": lambda x: x - x[:1],
    "rows_backwards": lambda x: x - x[::-1],
    "positions_in_the_batch": lambda x: x * ops.cast(ops.arange(len_of(x))[:, None], "float32"),
    "by_einsum": lambda x: ops.einsum("ij,kj->ik", x, x) @ x / 50,
    "flattened_the_other_way": lambda x: ops.reshape(ops.transpose(x), ops.shape(x)),
    "a_loop_over_rows": lambda x: tf.scan(lambda before, row: 0.5 * before + row, x),
    "twelve_rows": lambda x: x + tf.reduce_sum(x) * tf.ones((BATCH, 1))[: tf.shape(x)[0]] / 50,
}
KEEPING = {
    "flattened_and_back": lambda x: ops.reshape(ops.reshape(x, (-1, 2)) ** 2, (-1, 8)),
    "by_their_size": lambda x: ops.concatenate([x, ops.zeros((ops.shape(x)[0], 2))], 1)[:, :8],
    "pairs_inside_a_row": lambda x: ops.einsum("bi,bj->bij", x, x)[:, 0],
    "transposed_inside": lambda x: ops.transpose(ops.reshape(x, (-1, 2, 4)), (0, 2, 1))[..., 0],
    "looked_up": lambda x: ops.take(tf.eye(4), ops.argmax(x[:, :4], -1), axis=0),
    "padded_inside": lambda x: ops.pad(x, [[0, 0], [1, 1]]),
    "tiled_and_cut": lambda x: tf.slice(tf.tile(x, (1, 2)), (0, 4), (-1, 8)),
    "spread": lambda x: tf.broadcast_to(x[:, None], (tf.shape(x)[0], 3, 8))[:, 1],
    "pooled": lambda x: tf.nn.max_pool2d(tf.reshape(x, (-1, 2, 4, 1)), 2, 1, "VALID"),
    "normalized_by_given_numbers": lambda x: tf.compat.v1.nn.fused_batch_norm(
        tf.reshape(x, (-1, 2, 4, 1)), [2.0], [0.1], [0.3], [1.5], is_training=False
    )[0],
    "with_a_gradient_of_its_own": lambda x: tf.nn.silu(x),
    "sorted_inside": lambda x: ops.sort(x, axis=-1) - ops.max(x, axis=-1, keepdims=True),
    "drawn_by_a_state": lambda x: x * tf.random.stateless_uniform(tf.shape(x), seed=(1, 2)),
    "drawn_for_odd_rows": lambda x: (
        x[:, :3] + tf.random.stateless_normal((tf.shape(x)[0], 3), seed=(3, 4))
    ),
}
MIXES = {name: name in MIXING for name in (*MIXING, *KEEPING)}


def all_of(functions):
    inputs = keras.Input((8,))
    outputs = [layers.Lambda(each, name=name)(inputs) for name, each in functions.items()]
    outputs = [layers.Flatten()(output) for output in outputs]
    model = keras.Model(inputs, layers.Dense(4)(layers.Concatenate()(outputs)))
    return compile_model(model, optimizer=SGD(0.01))


@case((X[ONE_LEFT], Y[ONE_LEFT]), atol=3e-6, epochs=1)
def functions_that_mix_rows():
    return all_of(MIXING)


@case((X[ONE_LEFT], Y[ONE_LEFT]), atol=3e-6, epochs=1)
def functions_that_keep_rows_apart():
    return all_of(KEEPING)
