"""Families of graphs: one that all examples share, one for each example, or walks on one."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.zoo.family import ROWS, batches, draw, family, labels, vectors
from tests.zoo.series import waves

NODES, FEATURES, CLASSES = 14, 5, 3


def neighbours(nodes=NODES, seed=12):
    """Returns which nodes are joined, itself and a next one always among them."""
    joined = draw(seed).uniform(size=(nodes, nodes)) < 0.2
    joined |= np.roll(np.eye(nodes, dtype=bool), 1, axis=1) | np.eye(nodes, dtype=bool)
    return (joined | joined.T).astype("float32")


def shares(joined):
    return joined / joined.sum(axis=-1, keepdims=True)


class GraphConvolution(layers.Layer):
    """The mean over a node's neighbours, of a dense layer of what they have."""

    def __init__(self, units, joined, **options):
        super().__init__(**options)
        self.shares = shares(joined)
        self.dense = layers.Dense(units, use_bias=False)
        self.norm = layers.BatchNormalization()

    def call(self, nodes, training=False):
        found = ops.matmul(ops.convert_to_tensor(self.shares), self.dense(nodes))
        return ops.relu(self.norm(found, training=training))


class NodeClassifier(keras.Model):
    """Works on all nodes of one graph, then takes those that a batch asks for."""

    def __init__(self, features, joined):
        super().__init__()
        self.features = ops.convert_to_tensor(features)
        self.step = GraphConvolution(6, joined)
        self.answer = layers.Dense(CLASSES)

    def call(self, ids, training=False):
        nodes = self.step(self.features, training=training)
        return self.answer(ops.take(nodes, ids, axis=0))


@family("Node Classification with Graph Neural Networks", core=True)
def nodes_by_convolution():
    def build():
        keras.utils.set_random_seed(81)
        model = NodeClassifier(vectors(FEATURES, NODES), neighbours())
        model.compile(
            keras.optimizers.SGD(0.05),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[keras.metrics.SparseCategoricalAccuracy(name="acc")],
        )
        return model

    return build, batches(draw(13).integers(0, NODES, ROWS), labels(CLASSES))


class GraphAttention(layers.Layer):
    """Weighs a node's neighbours by what both have."""

    def __init__(self, units, joined):
        super().__init__()
        self.units, self.joined = units, joined

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], self.units), name="kernel")
        self.pair = self.add_weight(shape=(self.units, 2), name="pair")

    def call(self, nodes):
        nodes = ops.matmul(nodes, self.kernel)
        mine, others = ops.split(ops.matmul(nodes, self.pair), 2, axis=-1)
        scores = ops.leaky_relu(mine + ops.transpose(others))
        scores = scores - 1e9 * (1 - ops.convert_to_tensor(self.joined))
        return ops.matmul(ops.softmax(scores, axis=-1), nodes)


class AttentionClassifier(keras.Model):
    """A step of its own: the loss of the asked nodes alone."""

    def __init__(self, features, joined):
        super().__init__()
        self.features = ops.convert_to_tensor(features)
        self.first = layers.Dense(6, activation="relu")
        self.step = GraphAttention(6, joined)
        self.answer = layers.Dense(CLASSES)

    def call(self, nodes):
        nodes = self.first(nodes)
        return self.answer(nodes + self.step(nodes))

    def asked(self, ids):
        return ops.take(self(self.features), ids, axis=0)

    def train_step(self, data):
        ids, kinds = data
        with tf.GradientTape() as tape:
            scores = self.asked(ids)
            loss = self.compiled_loss_of(kinds, scores)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return self.logs(kinds, scores, loss)

    def test_step(self, data):
        ids, kinds = data
        scores = self.asked(ids)
        return self.logs(kinds, scores, self.compiled_loss_of(kinds, scores))

    def compiled_loss_of(self, kinds, scores):
        return self.compute_loss(y=kinds, y_pred=scores)

    def logs(self, kinds, scores, loss):
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss, sample_weight=ops.shape(kinds)[0])
            else:
                metric.update_state(kinds, scores)
        return {metric.name: metric.result() for metric in self.metrics}


def asked_nodes(seed):
    return batches(draw(seed).integers(0, NODES, ROWS), labels(CLASSES))


@family(
    "Graph attention network (GAT) for node classification",
    fit=lambda: {"validation_data": asked_nodes(15)},
)
def nodes_by_attention():
    def build():
        keras.utils.set_random_seed(82)
        model = AttentionClassifier(vectors(FEATURES, NODES), neighbours())
        model.compile(
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            optimizer=keras.optimizers.SGD(0.1, momentum=0.9),
            metrics=[keras.metrics.SparseCategoricalAccuracy(name="acc")],
        )
        return model

    return build, asked_nodes(14)


class Messages(layers.Layer):
    """What atoms tell their neighbours along each bond, and what they remember of it."""

    def __init__(self, units, rounds):
        super().__init__()
        self.units, self.rounds = units, rounds
        self.memory = layers.GRUCell(units)

    def build(self, shapes):
        atoms, bonds = shapes[:2]
        self.kernel = self.add_weight(
            shape=(bonds[-1], self.units, self.units), initializer="glorot_uniform", name="kernel"
        )
        self.memory.build((None, self.units))
        self.first = self.add_weight(shape=(atoms[-1], self.units), name="first")

    def call(self, inputs):
        atoms, bonds, there = inputs
        state = ops.matmul(atoms, self.first) * there[..., None]
        shape = ops.shape(state)
        for _ in range(self.rounds):
            told = ops.einsum("bijk,kdu,bjd->biu", bonds, self.kernel, state)
            flat = (ops.reshape(part, (-1, self.units)) for part in (told, state))
            told, before = flat
            after, _ = self.memory(told, [before])
            state = ops.reshape(after, shape) * there[..., None]
        return state


@family(
    "Message-passing neural network (MPNN) for molecular property prediction",
    fit=lambda: {"class_weight": {0: 2.0, 1: 0.5}},
    core=True,
)
def molecules_by_messages():
    atoms, kinds = 5, 2

    def build():
        keras.utils.set_random_seed(83)
        x = keras.Input((atoms, FEATURES), name="atoms")
        bonds = keras.Input((atoms, atoms, kinds), name="bonds")
        there = keras.Input((atoms,), name="there")
        state = Messages(6, rounds=2)([x, bonds, there])
        mean = ops.sum(state, axis=1) / ops.sum(there, axis=1, keepdims=True)
        model = keras.Model([x, bonds, there], layers.Dense(1, activation="sigmoid")(mean))
        model.compile(
            loss=keras.losses.BinaryCrossentropy(),
            optimizer=keras.optimizers.SGD(0.1),
            metrics=[keras.metrics.AUC(num_thresholds=20, name="AUC")],
        )
        return model

    drawn = draw(16)
    there = (np.arange(atoms) < drawn.integers(2, atoms + 1, ROWS)[:, None]).astype("float32")
    both = there[:, :, None, None] * there[:, None, :, None]
    bonds = (drawn.uniform(size=(ROWS, atoms, atoms, kinds)) < 0.4) * both
    features = vectors(atoms * FEATURES).reshape(ROWS, atoms, FEATURES) * there[..., None]
    return build, batches((features, bonds.astype("float32"), there), labels(2))


@family("Graph representation learning with node2vec", core=True)
def nodes_by_walks():
    def build():
        keras.utils.set_random_seed(84)
        target, context = (keras.Input((), dtype="int32", name=n) for n in ("target", "context"))
        embed = layers.Embedding(NODES, 6, embeddings_initializer="he_normal", name="nodes")
        score = layers.Dot(axes=1, normalize=False)([embed(target), embed(context)])
        model = keras.Model({"target": target, "context": context}, score)
        model.compile(
            optimizer=keras.optimizers.SGD(0.05),
            loss=keras.losses.BinaryCrossentropy(from_logits=True),
        )
        return model

    pairs = draw(17).integers(0, NODES, (2, ROWS)).astype("int32")
    weights = draw(18).uniform(0.2, 2.0, ROWS).astype("float32")
    inputs = {"target": pairs[0], "context": pairs[1]}
    return build, batches(inputs, labels(2).astype("float32"), weights)


class ConvolutionOverTime(layers.Layer):
    """Mixes what neighbouring roads have at each time, then follows each road by an LSTM."""

    def __init__(self, units, joined):
        super().__init__()
        self.shares = shares(joined)
        self.mix, self.memory = layers.Dense(units, activation="relu"), layers.LSTM(units)

    def call(self, x):
        batch, times, roads = (ops.shape(x)[axis] for axis in range(3))
        x = ops.einsum("rq,btqf->brtf", ops.convert_to_tensor(self.shares), x)
        found = self.memory(ops.reshape(self.mix(x), (batch * roads, times, self.mix.units)))
        return ops.reshape(found, (batch, roads, self.memory.units))


@family("Traffic forecasting using graph neural networks and LSTM", core=True)
def roads_by_convolution_and_lstm():
    roads = 4

    def build():
        keras.utils.set_random_seed(85)
        x = keras.Input((11, roads, 1))
        y = layers.Dense(1)(ConvolutionOverTime(5, neighbours(roads))(x))
        model = keras.Model(x, layers.Reshape((roads,))(y))
        model.compile(keras.optimizers.RMSprop(2e-3), keras.losses.MeanSquaredError())
        return model

    values = waves(features=roads)
    return build, batches(values[:, :-1, :, None], values[:, -1])
