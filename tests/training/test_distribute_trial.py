"""What `distribute` finds out by trying the first batch, and what it does not make exact.

Losses, statistics and draws of the whole batch: each is warned of, can be gathered, or is alike
on all replicas at least. And models of the legacy tf_keras.
"""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import distlab as dl
from distlab.errors import InvalidArgument, ModelError
from tests.support.distribution import alone, strategy_of
from tests.training.cases.case import (
    ONE_LEFT,
    X,
    Y,
    batches,
    network,
)
from tests.training.cases.everyday import pairs_of_examples
from tests.training.cases.steps import Codebook, Net, net


def distribute(build, replicas=3, **options):
    return dl.distribute(build, strategy_of("mirrored", replicas), **options)


def fit(model, data=None, **options):
    data = batches(X, Y) if data is None else data
    return model.fit(data, **{"epochs": 2, "verbose": 0, "shuffle": False, **options}).history


# Warnings


class AddsLargest(layers.Layer):
    def call(self, x):
        self.add_loss(keras.ops.max(x**2))
        return x


class Contrast(Net):
    def begin(self):
        self.tracker = keras.metrics.Mean(name="loss")

    def loss_of(self, x, y):
        features = tf.math.l2_normalize(self(x), axis=1)
        return tf.reduce_mean((features @ tf.transpose(features)) ** 2)

    def test_step(self, data):
        self.tracker.update_state(self.loss_of(*data))
        return {"loss": self.tracker.result()}


class AloneCodebook(Codebook):
    gather = staticmethod(lambda tensor: tensor)


class LogsLargest(Net):
    def log(self, x, y, loss):
        return {"largest": tf.reduce_max(self(x))}


class DrawsInTensorFlow(layers.Layer):
    def call(self, x, training=False):
        return tf.nn.dropout(x, 0.3) if training else x


def over_examples():
    return network(layers.Dense(6), layers.Softmax(axis=0), layers.Dense(4))


WARNINGS = {
    "the loss 'pairs_of_examples' looks at the batch as a whole": lambda: network(
        layers.Dense(4), loss=pairs_of_examples
    ),
    "a layer, or a loss that it adds, looks at the batch": lambda: network(
        layers.Dense(4), AddsLargest()
    ),
    "looks at the batch as a whole": over_examples,
    "the loss in its own train_step looks at the batch as a whole": lambda: net(Contrast),
    "a step writes": lambda: net(AloneCodebook),
    "its train_step returns largest, which the shares": lambda: net(LogsLargest),
    "it draws random numbers by functions of TensorFlow that a trial cannot": lambda: network(
        DrawsInTensorFlow(), layers.Dense(4)
    ),
}


def said_by(call):
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        call()
    return [str(each.message) for each in warned if "/distlab/training/" in each.filename]


@pytest.mark.parametrize("text", WARNINGS)
def test_what_looks_at_the_batch_as_a_whole_is_named_once(text):
    said = said_by(lambda: fit(distribute(WARNINGS[text])))
    assert any(text in each for each in said), said
    assert len(said) == len(set(said))


def test_a_loss_is_named_with_its_size_and_the_way_out():
    model = distribute(WARNINGS["the loss 'pairs_of_examples' looks at the batch as a whole"])
    (said,) = said_by(lambda: model.evaluate(batches(X, Y), verbose=0))
    assert "differs by" in said
    assert 'batch_losses="gather"' in said
    with pytest.warns(UserWarning, match="in its own test_step looks at the batch as a whole"):
        distribute(lambda: net(Contrast)).evaluate(batches(X, Y), verbose=0)


def test_gathering_that_cannot_be_meant_is_refused():
    with pytest.raises(ModelError) as error:
        distribute(lambda: net(Contrast), batch_losses="gather")
    assert error.value.found == "a train_step or compute_loss of the model's own"
    assert "call distlab.all_gather(tensor) in it" in error.value.do
    with pytest.raises(InvalidArgument, match="did you mean 'gather'"):
        distribute(over_examples, batch_losses="gathered")


# Statistics and draws


def copies(model, variable):
    parts = model.distribute_strategy.experimental_local_results(variable.value)
    return [part.numpy() for part in parts]


def test_statistics_of_each_replicas_own_examples_agree_on_every_replica():
    model = distribute(lambda: network(layers.Dense(6), layers.BatchNormalization()))
    fit(model, batches(X[ONE_LEFT], Y[ONE_LEFT]))
    for variable in model.layers[1].weights:
        first, *others = copies(model, variable)
        assert np.isfinite(first).all(), "a replica without an example leaves them alone"
        for other in others:
            np.testing.assert_allclose(other, first, atol=1e-6)


class MeanOfAll(layers.Layer):
    """Looks at all replicas by itself: a replica without an example gets none that fills."""

    synchronized = True

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, x.dtype)

    def call(self, x):
        context = tf.distribute.get_replica_context()
        sums = [tf.reduce_sum(x, 0), tf.cast(tf.shape(x)[0], x.dtype)]
        if context is not None:
            sums = context.all_reduce("SUM", sums)
        return x - sums[0] / sums[1]


def test_a_synchronised_layer_of_ones_own():
    def build():
        keras.utils.set_random_seed(3)
        return network(layers.Dense(4), MeanOfAll())

    plain, model = alone(build), distribute(build)
    logs = [fit(each, batches(X[ONE_LEFT], Y[ONE_LEFT]))["loss"] for each in (plain, model)]
    np.testing.assert_allclose(logs[1], logs[0], rtol=1e-5)
    for weight, expected in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(weight, expected, atol=1e-6)


class AlwaysDrops(layers.Dropout):
    """Dropout in inference too, as for Monte Carlo estimates."""

    def call(self, inputs, training=None):
        return super().call(inputs, training=True)


class Draws(layers.Layer):
    """Keeps the two vectors that it drew last, on each replica."""

    def __init__(self):
        super().__init__()
        self.generator = keras.random.SeedGenerator(5)

    def build(self, shape):
        self.drawn = self.add_weight(shape=(2, 8), trainable=False, name="drawn")

    def call(self, x):
        rows = [keras.random.uniform((8,), seed=self.generator) for _ in range(2)]
        self.drawn.value.assign(keras.ops.stack(rows))  # past Keras: each replica keeps its own
        return x


def seeded(*make, **options):
    def build():
        keras.utils.set_random_seed(3)
        return network(*(layer() for layer in make), layers.Dense(4), **options)

    return build


def test_replicas_draw_differently_and_the_same_in_a_second_run():
    def run():
        model = distribute(seeded(Draws))
        fit(model)
        return np.concatenate(copies(model, model.layers[0].drawn))

    drawn = run()
    assert len(np.unique(drawn, axis=0)) == 6  # no draw of a replica is a draw of another
    np.testing.assert_array_equal(run(), drawn)


def test_examples_are_predicted_with_draws_of_their_own_which_training_does_not_see():
    def run(predictions):
        model = distribute(seeded(lambda: AlwaysDrops(0.5, seed=1), shape=(64,)))
        x = np.ones((13, 64), "float32")
        rows = [model.predict(x, batch_size=5, verbose=0) for _ in range(predictions)]
        fit(model, batches(x, Y[:13], batch=5))
        return rows, model.get_weights()

    rows, weights = run(2)
    assert len(np.unique(np.concatenate(rows), axis=0)) == 26  # in all places, batches and calls
    rows_again, weights_again = run(2)
    np.testing.assert_array_equal(rows_again, rows)
    for weight, *others in zip(weights, weights_again, run(0)[1], strict=True):
        for other in others:
            np.testing.assert_array_equal(other, weight)


# tf_keras


def test_a_model_of_tf_keras_takes_the_steps_of_one_device(tmp_path):
    tf_keras = pytest.importorskip("tf_keras", reason="the legacy extra is not installed")

    def build():
        tf_keras.utils.set_random_seed(3)
        model = tf_keras.Sequential([tf_keras.Input((8,)), tf_keras.layers.Dense(4)])
        loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf_keras.optimizers.Adam(1e-2, clipnorm=0.1), loss, metrics=["accuracy"])
        return model

    plain, model = build(), distribute(build)
    held_back = {"validation_data": batches(X, Y)}
    expected, logs = fit(plain, **held_back), fit(model, **held_back)
    for name, values in expected.items():
        np.testing.assert_allclose(logs[name], values, rtol=1e-5, err_msg=name)
    model.save(tmp_path / "model.keras")
    loaded = tf_keras.models.load_model(tmp_path / "model.keras")
    for each in (model, loaded):
        predicted = each.predict(X, verbose=0)
        np.testing.assert_allclose(predicted, plain.predict(X, verbose=0), atol=1e-5)


def test_a_step_of_ones_own_in_tf_keras_is_refused():
    tf_keras = pytest.importorskip("tf_keras", reason="the legacy extra is not installed")

    class Own(tf_keras.Sequential):
        def train_step(self, data):
            return super().train_step(data)

    def build():
        model = Own([tf_keras.Input((8,)), tf_keras.layers.Dense(4)])
        model.compile("sgd", "mse")
        return model

    with pytest.raises(ModelError, match="a custom train_step, which distribute cannot run"):
        distribute(build)
