"""Metrics that nobody here wrote count as on one device, whatever they do with a batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
from tests.support.distribution import alone, assert_same

EXAMPLES, BATCH = 13, 5  # the last batch has 3 examples: one of two replicas has 2, the other 1


class LargestError(keras.metrics.Metric):
    """Remembers one number."""

    def __init__(self):
        super().__init__(name="largest_error")
        self.largest = self.add_weight(name="largest", initializer="zeros")

    def update_state(self, y, y_pred, sample_weight=None):
        error = keras.ops.max(keras.ops.abs(y - y_pred))
        self.largest.assign(keras.ops.maximum(self.largest, error))

    def result(self):
        return self.largest + 0.0


class MeanOfBatches(keras.metrics.Metric):
    """Counts batches, in a whole number."""

    def __init__(self):
        super().__init__(name="mean_of_batches")
        self.total = self.add_weight(name="total", initializer="zeros")
        self.batches = self.add_weight(name="batches", initializer="zeros", dtype="int32")

    def update_state(self, y, y_pred, sample_weight=None):
        self.total.assign_add(keras.ops.mean(keras.ops.abs(y - y_pred)))
        self.batches.assign_add(1)

    def result(self):
        return self.total / keras.ops.cast(self.batches, "float32")


class RightSigns(keras.metrics.Metric):
    """Adds up over examples, as most do."""

    def __init__(self):
        super().__init__(name="right_signs")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y, y_pred, sample_weight=None):
        self.count.assign_add(keras.ops.sum(keras.ops.cast(y * y_pred > 0, "float32")))

    def result(self):
        return self.count + 0.0


class OfOthers(keras.metrics.Metric):
    """Made of others, of which one is Keras's."""

    def __init__(self):
        super().__init__(name="of_others")
        self.mean, self.largest = keras.metrics.Mean(), LargestError()

    def update_state(self, y, y_pred, sample_weight=None):
        self.mean.update_state(keras.ops.mean(y_pred))
        self.largest.update_state(y, y_pred)

    def result(self):
        return {"mean": self.mean.result(), "largest": self.largest.result()}


def dice(y, y_pred):
    return keras.ops.sum(y * y_pred) / keras.ops.sum(keras.ops.abs(y) + keras.ops.abs(y_pred))


def mean_of_batch(y, y_pred):
    return keras.ops.mean(keras.ops.abs(y - y_pred))


def sum_of_batch(y, y_pred):
    return keras.ops.sum(keras.ops.abs(y - y_pred))


METRICS = [
    LargestError,
    MeanOfBatches,
    RightSigns,
    OfOthers,
    lambda: dice,
    lambda: mean_of_batch,
    lambda: sum_of_batch,
]


class OwnStep(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = keras.ops.mean((y - y_pred) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return self.compute_metrics(x, y, y_pred, None)


def builder(model_class, metrics=METRICS):
    def build():
        keras.utils.set_random_seed(1)
        inputs = keras.Input((4,))
        outputs = keras.layers.Dense(1)(keras.layers.Dense(3, activation="tanh")(inputs))
        model = model_class(inputs, outputs)
        model.compile("adam", "mse", metrics=[make() for make in metrics] or None)
        return model

    return build


def train(model):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(EXAMPLES, 4)).astype("float32")
    y = x.sum(1, keepdims=True)
    data = (x, y)
    history = model.fit(
        *data, batch_size=BATCH, epochs=2, shuffle=False, validation_data=(x[:7], y[:7]), verbose=0
    )
    evaluated = model.evaluate(*data, batch_size=BATCH, verbose=0, return_dict=True)
    logs = history.history | {f"evaluated {name}": [one] for name, one in evaluated.items()}
    return logs, model.get_weights()


@pytest.mark.parametrize("model_class", [keras.Model, OwnStep])
@pytest.mark.parametrize(
    ("kind", "replicas"), [("mirrored", 2), ("mirrored", 4), ("central_storage", 2)]
)
def test_logs_are_those_of_one_device(model_class, kind, replicas):
    strategy = dl.make_strategy(kind, devices=dl.split_devices(4)[:replicas])
    expected = train(alone(builder(model_class)))
    assert_same(train(dl.distribute(builder(model_class), strategy)), expected)


def test_a_metric_that_adds_up_needs_no_examples_of_others(monkeypatch):
    strategy = dl.make_strategy("mirrored", devices=dl.split_devices(4)[:2])
    asked = []
    gather = tf.distribute.ReplicaContext.all_gather
    monkeypatch.setattr(
        tf.distribute.ReplicaContext,
        "all_gather",
        lambda self, value, axis: asked.append(value.shape) or gather(self, value, axis),
    )
    train(dl.distribute(builder(keras.Model, [RightSigns]), strategy))
    assert not asked
    train(dl.distribute(builder(keras.Model, [LargestError]), strategy))
    assert asked


def test_a_step_that_divides_by_the_replicas_sees_one_device():
    class Divides(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = keras.ops.mean((y - self(x, training=True)) ** 2)
                loss /= tf.distribute.get_strategy().num_replicas_in_sync
                loss /= self.distribute_strategy.num_replicas_in_sync
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"my_loss": loss}

    strategy = dl.make_strategy("mirrored", devices=dl.split_devices(4)[:3])
    expected = train(alone(builder(Divides, [])))
    assert_same(train(dl.distribute(builder(Divides, []), strategy)), expected)
    assert strategy.num_replicas_in_sync == 3


def test_the_trial_leaves_variables_alone_that_no_model_knows_of():
    steps, largest = tf.Variable(0), tf.Variable(0.0)

    @tf.custom_gradient
    def noted(x):
        def backward(gradient):
            steps.assign_add(1)
            largest.assign(tf.maximum(largest, tf.reduce_max(tf.abs(gradient))))
            return gradient

        return tf.identity(x), backward

    class Notes(keras.layers.Layer):
        def call(self, x):
            return noted(x)

    def build():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1), Notes()])
        model.compile("sgd", "mse")
        return model

    strategy = dl.make_strategy("mirrored", devices=dl.split_devices(4)[:2])
    model = dl.distribute(build, strategy)
    x = np.ones((4, 4), "float32")
    with pytest.warns(UserWarning, match="a step writes Variable:0 .*each keeps what it wrote"):
        model.fit(x, x[:, :1] * 1000, batch_size=4, epochs=1, shuffle=False, verbose=0)
    assert steps.numpy() == 2, "once a replica, and not in the trial"


def test_a_metric_that_takes_whole_batches_only_gets_them():
    def of_full_batch(y, y_pred):
        rows = keras.ops.reshape(y - y_pred, (BATCH, -1))  # the batch's size, written down
        return keras.ops.max(rows) * keras.ops.ones(BATCH)

    def train_on_full_batches(model):
        x = np.random.default_rng(0).normal(size=(2 * BATCH, 4)).astype("float32")
        history = model.fit(x, x[:, :1], batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
        return history.history, model.get_weights()

    build = builder(keras.Model, [lambda: of_full_batch])
    strategy = dl.make_strategy("mirrored", devices=dl.split_devices(4)[:2])
    expected = train_on_full_batches(build())
    assert_same(train_on_full_batches(dl.distribute(build, strategy)), expected)
