"""What the first batch does not show is learnt from later ones: zeros, and counts in one share."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
from distlab.training.trial.look import Looks
from tests.support.distribution import alone, strategy_of

ROWS, BATCH = 36, 6
X = np.random.default_rng(0).normal(size=(ROWS, 3)).astype("float32")
# Which examples count: none in the first two batches, some in each share of the third.
COUNTS = np.float32(np.arange(ROWS) >= 2 * BATCH)[:, None]


def data(counts=COUNTS):
    return tf.data.Dataset.from_tensor_slices((X, counts)).batch(BATCH)


def sum_of_those_that_count(y, p):
    return keras.ops.sum(y * keras.ops.square(1 - p))


class Penalty(keras.layers.Layer):
    """Adds a sum over examples, times a weight that is 0 until somebody changes it."""

    def build(self, shape):
        self.amount = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        self.add_loss(self.amount * keras.ops.sum(x**2))
        return x


class OwnStep(keras.Model):
    """Learns from a sum, counts what counts, and logs both."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.counted = keras.metrics.Sum(name="counted")

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = sum_of_those_that_count(y, self(x, training=True))
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.counted.update_state(tf.reduce_sum(y))
        return {"loss": loss, "counted": self.counted.result()}


def builder(loss=None, layers=(), kind=keras.Model, **how):
    def build():
        keras.utils.set_random_seed(1)
        x = y = keras.Input((3,))
        for layer in layers:
            y = layer()(y)
        model = kind(x, keras.layers.Dense(1, name="last")(y))
        model.compile(keras.optimizers.SGD(1e-3), loss, **how)
        return model

    return build


def switched_on(model, epoch=1):
    """A callback that switches the penalty on with an epoch."""

    def switch(number, logs):
        for layer in model.layers:
            if isinstance(layer, Penalty):
                layer.amount.assign(float(number >= epoch))

    return keras.callbacks.LambdaCallback(on_epoch_begin=switch)


CASES = {
    "a compiled loss": builder(sum_of_those_that_count),
    "a penalty that is switched on": builder("mse", [Penalty]),
    "a step of its own": builder(kind=OwnStep),
}


class PythonPenalty(keras.layers.Layer):
    """Adds a mean over examples, times a number of Python."""

    amount = 0.0

    def call(self, x):
        self.add_loss(self.amount * keras.ops.mean(x**2))
        return x


def test_a_number_of_python_that_a_callback_changes_stays_as_it_was_traced():
    """As on one device, also if the loss that it scales is zero in the first batch."""
    build, logs = builder("mse", [PythonPenalty]), []
    for model in (build(), dl.distribute(build, strategy_of("mirrored", 2))):
        layer = next(one for one in model.layers if isinstance(one, PythonPenalty))
        change = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs, layer=layer: setattr(layer, "amount", float(epoch))
        )
        options = {"epochs": 3, "verbose": 0, "shuffle": False, "callbacks": [change]}
        logs.append(model.fit(data(), **options).history["loss"])
    np.testing.assert_allclose(*logs, rtol=1e-5)


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("case", CASES)
def test_a_sum_that_is_zero_at_first_takes_the_steps_of_one_device(case, replicas):
    plain, ours = alone(CASES[case]), dl.distribute(CASES[case], strategy_of("mirrored", replicas))
    logs = []
    for model in (plain, ours):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            options = {
                "epochs": 3,
                "verbose": 0,
                "shuffle": False,
                "callbacks": [switched_on(model)],
            }
            logs.append(model.fit(data(), **options).history)
    for one, other in zip(plain.weights, ours.weights, strict=True):
        np.testing.assert_allclose(other.numpy(), one.numpy(), atol=1e-6, err_msg=one.path)
    for name, values in logs[0].items():
        np.testing.assert_allclose(logs[1][name], values, rtol=1e-5, err_msg=name)


def test_a_sum_that_is_zero_at_first_in_single_batches():
    logs, build = [], CASES["a compiled loss"]
    for model in (alone(build), dl.distribute(build, strategy_of("mirrored", 2))):
        logs.append([model.train_on_batch(x, y) for x, y in data().as_numpy_iterator()])
    np.testing.assert_allclose(*logs, rtol=1e-5)


def test_steps_that_nobody_looked_at_are_told_of():
    """All six batches are in one execution: the next look comes after them."""
    build = builder(sum_of_those_that_count, steps_per_execution=6)
    model = dl.distribute(build, strategy_of("mirrored", 2))
    counts = np.roll(COUNTS, -3 * BATCH)  # the first batches of the second half count
    model.fit(data(), verbose=0)
    with pytest.warns(UserWarning, match="a compiled loss counts over the replicas.* of which 5"):
        model.fit(data(counts), verbose=0)


@pytest.mark.parametrize("at_first", [0, 1])
def test_a_loss_of_one_share_alone_is_told_of_and_right_from_the_batch_that_shows_it(at_first):
    """One example that counts may be a sum or a ratio."""
    counts = np.ones_like(COUNTS)
    counts[:BATCH] = np.arange(BATCH)[:, None] < at_first
    build = builder(sum_of_those_that_count)
    plain, model = alone(build), dl.distribute(build, strategy_of("mirrored", 2))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        found = model.fit(data(counts), verbose=0, epochs=2, shuffle=False).history["loss"]
    expected = plain.fit(data(counts), verbose=0, epochs=2).history["loss"]
    texts = [str(one.message) for one in told]
    assert bool(texts) == bool(at_first)
    if at_first:
        assert "looks at the batch as a whole" in texts[0]
        np.testing.assert_allclose(found, expected, rtol=2e-2)
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_ratio_that_was_taken_for_a_count_is_told_of():
    class Recall(OwnStep):
        def train_step(self, data):
            return {"part": tf.reduce_sum(data[1]) / tf.maximum(tf.reduce_sum(data[1]), 1.0)}

    counts = np.ones_like(COUNTS)
    counts[BATCH // 2 : BATCH] = 0
    model = dl.distribute(builder(kind=Recall), strategy_of("mirrored", 2))
    with pytest.warns(UserWarning, match="a number that its step returns counts over the replicas"):
        history = model.fit(data(counts), verbose=0).history
    assert history["part"] == [1.0]


def test_a_trial_that_stays_open_looks_less_and_less_and_at_the_first_batch_of_an_epoch():
    class StaysOpen:
        version = 0

        def run(self, batch, *, missed):
            seen.append((batch, missed))
            return False

    seen, looks = [], Looks(StaysOpen())
    for epoch in range(2):
        batches = iter(tf.data.Dataset.range(100))
        for number in range(1, 101):
            if looks.is_due(batches):
                looks.look(100 * epoch + number)
            looks.passed(1)
    numbers = [batch for batch, _ in seen]
    assert numbers == [*range(1, 17), 32, 64, 101, 128]
    assert [missed for _, missed in seen][-4:] == [15, 31, 36, 26]


class Statistics(keras.Model):
    """Gives metrics what keras.io's examples give them: lists, columns, numbers with a weight."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        names = ("listed", "columns", "weighed", "counted", "examples", "sums")
        self.means = [keras.metrics.Mean(name=name) for name in names[:5]]
        self.sums = keras.metrics.Sum(name="sums")

    def train_step(self, data):
        logs = super().train_step(data)
        x = data[0]
        loss = tf.reduce_mean(x**2)
        listed, columns, weighed, counted, examples = self.means
        listed.update_state([loss])
        columns.update_state(tf.reduce_mean(x**2, 0))
        weighed.update_state(loss, sample_weight=tf.constant(2.0))
        counted.update_state(loss, sample_weight=tf.shape(x)[0])
        examples.update_state(tf.reduce_mean(x**2, 1))
        self.sums.update_state(tf.reduce_sum(x, 0))
        return logs | {one.name: one.result() for one in (*self.means, self.sums)}


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_metric_counts_a_statistic_of_the_batch_by_shares_however_it_is_given(replicas):
    def unequal():
        return data().unbatch().batch(5)

    build = builder("mse", kind=Statistics)
    expected = alone(build).fit(unequal(), verbose=0).history
    found = (
        dl.distribute(build, strategy_of("mirrored", replicas)).fit(unequal(), verbose=0).history
    )
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=name)
