"""What happens once for a batch, what leaves a layer by another way, and what looks at all rows.

Each was wrong without a word once: an operation that every replica repeated, own rows in the place
of all rows, a function or a way back that nobody looked at.
"""

import dataclasses
import itertools
import random
import types

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.training.cases.case import BATCH, SGD, X, Y, batches, case, compile_model, network
from tests.training.cases.steps import Net, step

ONE = np.array([1])


def counting_table():
    return tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)


# Operations with an effect or a hidden state


@step()
class ReadsASecondDataSet(Net):
    def begin(self):
        self.more = iter(tf.data.Dataset.range(1, 100))

    def loss_of(self, x, y):
        return super().loss_of(x, y) / tf.cast(next(self.more), tf.float32)


@step()
class CountsInATable(Net):
    """Rarer classes weigh more, by what a table has counted so far."""

    def begin(self):
        self.table = counting_table()

    def loss_of(self, x, y):
        self.table.insert(y[:1], self.table.lookup(y[:1]) + 1)
        weights = 1 / (1 + tf.cast(self.table.lookup(y), tf.float32))
        return tf.reduce_mean(weights * self.losses_of(y, self(x, training=True)))


class CountsItsRows(layers.Layer):
    def __init__(self):
        super().__init__()
        self.table = counting_table()

    def call(self, x):
        self.table.insert(ONE, self.table.lookup(ONE) + tf.shape(x, tf.int64)[:1])
        return x / tf.reshape(tf.cast(self.table.lookup(ONE), tf.float32), ())

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, x.dtype)


@case()
def a_table_of_a_layer():
    return network(CountsItsRows(), layers.Dense(4))


@step()
class KeepsLossesInAQueue(Net):
    def begin(self):
        self.queue = tf.queue.FIFOQueue(100, [tf.float32], [()])

    def log(self, x, y, loss):
        self.queue.enqueue(loss)
        return {"kept": tf.cast(self.queue.size(), tf.float32)}


@step()
class CollectsRowsByPython(Net):
    def begin(self):
        self.rows = []

    def log(self, x, y, loss):
        def collect(rows):
            self.rows.extend(rows)
            return np.float32(len(self.rows))

        return {"rows": tf.numpy_function(collect, [x], tf.float32)}


@step(compiled=lambda: {"optimizer": SGD(0.1), "run_eagerly": True})
class CountsByPythonEagerly(Net):
    """Every second step counts twice, and a list has the losses of all steps."""

    def begin(self):
        self.count, self.kept, self.others = 0, [], itertools.count(1)

    def loss_of(self, x, y):
        self.count += next(self.others) + round(9 * random.random())
        loss = super().loss_of(x, y)
        self.kept.append(loss)
        rate = float(self.optimizer.learning_rate) * int(self.optimizer.iterations)
        return loss * (1 + self.count % 2 + rate) + 0 * tf.add_n(self.kept)


@step()
class ChecksItsNumbers(Net):
    def loss_of(self, x, y):
        outputs = tf.debugging.check_numerics(self(x), "outputs")
        tf.debugging.Assert(tf.size(outputs) > 0, [outputs])
        return self.mean_loss(y, outputs)


# Other ways out of a layer


class Attention(layers.Layer):
    def build(self, shape):
        self.score = layers.Dense(shape[-1])

    def call(self, x):
        self.kept = ops.softmax(self.score(x))
        return x * self.kept


@step()
class AddsTheEntropyOfWhatALayerKept(Net):
    def begin(self):
        self.attention = Attention()

    def build(self, shape):
        self.attention.build(shape)
        self.attention.score.build(shape)
        super().build(shape)

    def loss_of(self, x, y):
        loss = super().loss_of(self.attention(x), y)
        kept = self.attention.kept
        spread = tf.reduce_mean(kept, 0)  # of the batch: no sum over rows of own ones
        return loss + 0.1 * tf.reduce_sum(spread * tf.math.log(spread))


@step()
class CollectsFeaturesInAList(Net):
    def begin(self):
        self.features = []

    def call(self, x):
        hidden = self.hidden(x)
        self.features.append(hidden)
        return self.head(hidden)

    def loss_of(self, x, y):
        self.features = []
        loss = super().loss_of(x, y)
        return loss + tf.math.reduce_std(tf.concat(self.features, 0))


class KeepsEverywhere(Attention):
    """Keeps tensors in what it made before, and on the tensor that it returns."""

    def __init__(self):
        super().__init__()
        self.list, self.by_name, self.box = [], {}, types.SimpleNamespace()

    def call(self, x):
        result = super().call(x)
        self.list.append(self.kept + 1)
        self.by_name["kept"] = self.kept + 2
        self.box.kept = self.kept + 3
        result.kept = self.kept + 4
        return result


@step()
class TakesWhatALayerKeepsEverywhere(AddsTheEntropyOfWhatALayerKept):
    def begin(self):
        self.attention = KeepsEverywhere()

    def loss_of(self, x, y):
        layer = self.attention
        result = layer(x)
        loss = Net.loss_of(self, result, y)  # the other replicas have called the layer, too
        kept = (layer.list[-1], layer.by_name["kept"], layer.box.kept, result.kept)
        squares = [tf.reduce_sum(tf.reduce_mean(each, 0) ** 2) for each in kept]
        return loss + 0.1 * tf.add_n(squares)


@dataclasses.dataclass
class Output:
    logits: object
    hidden: object


class ReturnsAnObject(layers.Layer):
    def build(self, shape):
        self.hidden, self.head = layers.Dense(6, "tanh"), layers.Dense(4)
        self.hidden.build(shape), self.head.build((None, 6))

    def call(self, x):
        hidden = self.hidden(x)
        return Output(self.head(hidden), hidden)


@step()
class TakesAnObjectApart(Net):
    def begin(self):
        self.both = ReturnsAnObject()

    def build(self, shape):
        self.both.build(shape)
        super().build(shape)

    def loss_of(self, x, y):
        output = self.both(x)
        return self.mean_loss(y, output.logits) + tf.math.reduce_variance(output.hidden)


class KeepsItsValues(keras.losses.Loss):
    def call(self, y, outputs):
        self.values = keras.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True)
        return self.values


@step()
class AddsTheHardestRowOfItsLoss(Net):
    def begin(self):
        self.kept = KeepsItsValues()

    def loss_of(self, x, y):
        loss = self.kept(y, self(x))
        return loss + tf.reduce_max(self.kept.values)


# Functions of the user's in layers of Keras


def by_the_mean_of_the_batch(x):
    return x / (1 + ops.mean(ops.abs(x)))


@case(validates=True)
def an_activation_that_looks_at_the_batch():
    return network(layers.Dense(6, activation=by_the_mean_of_the_batch), layers.Dense(4))


@case()
def an_activation_in_a_recurrent_layer():
    recurrent = layers.SimpleRNN(3, activation=by_the_mean_of_the_batch)
    return network(layers.Reshape((4, 2)), recurrent, layers.Dense(4))


@case()
def a_function_within_a_layer_for_each_time():
    each = layers.TimeDistributed(layers.Lambda(by_the_mean_of_the_batch))
    return network(layers.Reshape((4, 2)), each, layers.Flatten(), layers.Dense(4))


class NormalizedCell(layers.SimpleRNNCell):
    def build(self, shape):
        super().build(shape)
        self.normalization = layers.BatchNormalization()
        self.normalization.build(shape)

    def call(self, x, states, training=False):
        return super().call(self.normalization(x, training=training), states, training=training)


@case()
def batch_normalization_in_a_cell():
    return network(layers.Reshape((4, 2)), layers.RNN(NormalizedCell(3)), layers.Dense(4))


# The way back


@tf.custom_gradient
def clipped(x):
    return tf.identity(x), lambda asked: tf.clip_by_value(asked, -0.02, 0.02)


@tf.custom_gradient
def of_norm_one(x):
    return tf.identity(x), lambda asked: asked / (1e-6 + tf.norm(asked))


@tf.custom_gradient
def reversed_with_a_cap(x):
    return tf.identity(x), lambda asked: -tf.minimum(asked, 0.01)


class Back(layers.Layer):
    def __init__(self, function, mixes=False):
        super().__init__()
        self.function, self.mixes = function, mixes

    def call(self, x):
        return self.function(x - ops.mean(x, 0) if self.mixes else x)


@case()
def gradients_that_are_clipped_on_the_way():
    return network(
        layers.Dense(6), Back(clipped), layers.Dense(6), Back(of_norm_one), layers.Dense(4)
    )


@case()
def gradients_that_are_reversed_in_a_layer_that_sees_all_rows():
    return network(layers.Dense(6), Back(reversed_with_a_cap, mixes=True), layers.Dense(4))


class Binary(layers.Layer):
    """Its weights' own gradient is clipped, as in nets of binary weights."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 6))

    def call(self, x):
        return ops.matmul(x, clipped(tf.convert_to_tensor(self.kernel)))


@case()
def gradients_of_weights_that_are_clipped():
    return network(Binary(), layers.Dense(4))


class Filter(layers.Layer):
    """Complex numbers between layers, as a Fourier filter has them."""

    def call(self, x):
        return tf.signal.fft(tf.complex(x, 0.5 * x))


@step()
class FiltersByFourier(Net):
    def begin(self):
        self.filter = Filter()

    def loss_of(self, x, y):
        return super().loss_of(x, y) + tf.reduce_mean(tf.abs(self.filter(self(x))) ** 2) / 10


class Slope(layers.Layer):
    def call(self, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.tanh(x)
        return y + tf.linalg.diag_part(tape.batch_jacobian(y, x))


@case()
def a_jacobian_in_a_layer():
    return network(layers.Dense(6), Slope(), layers.Dense(4))


# Steps that were written for replicas


class NumbersItsReplica(layers.Layer):
    def call(self, x):
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        return x * (1 + tf.cast(replica, x.dtype))


@case()
def a_layer_that_asks_for_its_replica():
    """It isn't built yet, so Keras calls it once where no replica is."""
    return compile_model(keras.Sequential([NumbersItsReplica(), layers.Dense(4)]))


class BuildsItsHeadLate(layers.Layer):
    def __init__(self):
        super().__init__()
        self.head = layers.Dense(2)

    def build(self, shape):  # the layer inside is built at its first call
        self.built = True

    def call(self, x):
        return self.head(x)


class LossThatCallsALayer(keras.Model):
    """The layer has weights only once the loss is computed in training."""

    def __init__(self):
        super().__init__()
        self.dense, self.late = layers.Dense(4), BuildsItsHeadLate()

    def call(self, x):
        return self.dense(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss + tf.reduce_mean(self.late(y_pred) ** 2) if training else loss


@case()
def a_layer_that_only_a_loss_calls():
    return compile_model(LossThatCallsALayer(), optimizer=keras.optimizers.SGD(0.1, momentum=0.5))


@step(compiled=lambda: {"optimizer": keras.optimizers.RMSprop(1e-2)})  # whose slots are made first
class SumsOverReplicasByItself(Net):
    def learn(self, tape, loss):
        weights = self.trainable_variables
        context = tf.distribute.get_replica_context()
        gradients = context.all_reduce("sum", tape.gradient(loss, weights))
        gradients = [each / tf.distribute.get_strategy().num_replicas_in_sync for each in gradients]
        self.optimizer.apply(gradients, weights)

    def log(self, x, y, loss):
        context = tf.distribute.get_replica_context()
        replicas = tf.shape(context.all_gather(tf.zeros([1]), 0))[0]
        return {
            "replica": tf.cast(context.replica_id_in_sync_group, tf.float32),
            "replicas": tf.cast(replicas, tf.float32),
        }


# Sizes


class OfItsBatch(layers.Layer):
    """Takes the number of rows from a shape that is known before the step runs."""

    def call(self, x):
        return x + tf.zeros(x.shape)

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, x.dtype)


@case(lambda: batches(X[:24], Y[:24], batch=12).map(lambda x, y: (tf.ensure_shape(x, (12, 8)), y)))
def a_shape_that_is_known():
    return network(OfItsBatch(), layers.Dense(4))


@step(lambda: batches(X[:24], Y[:24], batch=BATCH + 1))
class MasksByATriangleAsLongAsTheBatch(Net):
    def begin(self):
        self.attention = layers.MultiHeadAttention(1, 4)

    def build(self, shape):
        self.attention.build((None, BATCH + 1, 8), (None, BATCH + 1, 8))
        super().build(shape)

    def loss_of(self, x, y):
        texts = tf.ensure_shape(tf.stack([x] * (BATCH + 1), 1), (BATCH + 1, BATCH + 1, 8))
        mask = tf.linalg.band_part(tf.ones((BATCH + 1, BATCH + 1), tf.bool), -1, 0)
        seen = self.attention(texts, texts, attention_mask=mask)
        return super().loss_of(x, y) + tf.reduce_mean(seen**2)


@step(lambda: batches(X, Y % 2))
class FiltersOutEveryRow(Net):
    def loss_of(self, x, y):
        keep = y > 1
        kept = self.losses_of(tf.boolean_mask(y, keep), self(tf.boolean_mask(x, keep)))
        return super().loss_of(x, y) + tf.reduce_sum(kept)


class TakesItsSizeFromTheBatch(keras.Model):
    """As only an eager step can, so Keras can't call it before."""

    def __init__(self):
        super().__init__()
        self.head = layers.Dense(4)

    def call(self, x):
        return self.head(x + np.ones(tuple(x.shape), "float32"))


@case()
def an_eager_model_that_is_not_built():
    return compile_model(TakesItsSizeFromTheBatch(), run_eagerly=True)


@step()
class ScattersIntoAQueueOfKeys(Net):
    def begin(self):
        self.queue = tf.Variable(tf.zeros((16, 8)), trainable=False)

    def loss_of(self, x, y):
        self.queue.scatter_nd_update(tf.range(tf.shape(x)[0])[:, None], x)
        return super().loss_of(x + tf.reduce_mean(self.queue, 0), y)
