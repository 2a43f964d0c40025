"""Families with a step, a loss or metrics of their own, as a subclass of the model brings them."""

from __future__ import annotations

import keras
import tensorflow as tf
from keras import layers, ops

from tests.zoo.family import ROWS, batches, draw, family, labels, vectors

CLASSES, WIDTH = 4, 6


def scores(kind=keras.Model):
    x = keras.Input((WIDTH,))
    y = layers.Dense(8, activation="tanh")(x)
    return kind(x, layers.Dense(CLASSES)(y))


def crossentropy(**options):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)


def classified(seed=1):
    return batches(vectors(WIDTH, seed=seed), labels(CLASSES))


class LogsInputs(keras.Model):
    """Logs a mean of its inputs and one of its outputs beside the compiled metrics."""

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        logs = super().compute_metrics(x, y, y_pred, sample_weight)
        self.size.update_state(ops.mean(ops.absolute(x), axis=-1))
        logs["size"] = self.size.result()
        return logs


@family("A custom compute_metrics")
def compute_metrics_of_its_own():
    def build():
        keras.utils.set_random_seed(91)
        model = scores(LogsInputs)
        model.size = keras.metrics.Mean(name="size")
        model.compile(keras.optimizers.SGD(0.05), crossentropy(), metrics=["accuracy"])
        return model

    return build, classified()


class AddsEntropy(keras.Model):
    """Adds to the compiled loss that answers should not be too sure."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training=training)
        sure = ops.mean(ops.logsumexp(y_pred, axis=-1))
        self.sure.update_state(sure, sample_weight=ops.shape(y_pred)[0])
        return loss + 0.05 * sure

    @property
    def metrics(self):
        return [*super().metrics, self.sure]


@family("A custom compute_loss", fit=lambda: {"validation_data": classified(seed=7)})
def compute_loss_of_its_own():
    def build():
        keras.utils.set_random_seed(92)
        model = scores(AddsEntropy)
        model.sure = keras.metrics.Mean(name="sure")
        model.compile(keras.optimizers.Adam(1e-2), crossentropy(), metrics=["accuracy"])
        return model

    return build, classified()


class OwnSteps(keras.Model):
    """The steps of the guide: the compiled loss, the optimizer, the compiled metrics."""

    def train_step(self, data):
        x, y, weight = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred, sample_weight=weight)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return self.logs(y, y_pred, loss, weight)

    def test_step(self, data):
        x, y = data
        y_pred = self(x, training=False)
        return self.logs(y, y_pred, self.compute_loss(y=y, y_pred=y_pred), None)

    def logs(self, y, y_pred, loss, weight):
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred, sample_weight=weight)
        return {metric.name: metric.result() for metric in self.metrics}


@family(
    "Customizing what happens in fit() with TensorFlow",
    fit=lambda: {"validation_data": classified(seed=7)},
)
def steps_of_its_own():
    def build():
        keras.utils.set_random_seed(93)
        model = scores(OwnSteps)
        model.compile(keras.optimizers.SGD(0.05), crossentropy(), metrics=["accuracy"])
        return model

    weights = draw(24).uniform(0.2, 2.0, ROWS).astype("float32")
    return build, batches(vectors(WIDTH), labels(CLASSES), weights)


class TwoOptimizers(keras.Model):
    """A linear part and a deep one, each trained by an optimizer of its own."""

    def __init__(self):
        super().__init__()
        self.linear = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(CLASSES)])
        hidden = layers.Dense(8, activation="relu")
        self.deep = keras.Sequential([keras.Input((WIDTH,)), hidden, layers.Dense(CLASSES)])

    def compile(self, linear_optimizer, deep_optimizer, loss):
        super().compile(optimizer=deep_optimizer, loss=loss)
        self.linear_optimizer = linear_optimizer
        self.mean_loss = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.mean_loss]

    def call(self, x):
        return self.linear(x) + self.deep(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        parts = self.linear.trainable_weights, self.deep.trainable_weights
        gradients = tape.gradient(loss, parts)
        for part, found, optimizer in zip(
            parts, gradients, (self.linear_optimizer, self.optimizer), strict=True
        ):
            optimizer.apply_gradients(zip(found, part, strict=True))
        self.mean_loss.update_state(loss)
        return {"loss": self.mean_loss.result()}


@family("Wide and deep parts with an optimizer each", core=True)
def two_optimizers():
    def build():
        keras.utils.set_random_seed(94)
        model = TwoOptimizers()
        model.compile(keras.optimizers.Ftrl(0.05), keras.optimizers.Adam(1e-2), crossentropy())
        return model

    return build, classified()


class TrainsTwice(keras.Model):
    """Two updates a step: one by a noisy copy of the batch, one by the batch."""

    def train_step(self, data):
        x, y = data
        noise = keras.random.normal(ops.shape(x), stddev=0.1, seed=self.draws)
        for inputs in (x + noise, x):
            with tf.GradientTape() as tape:
                loss = self.compute_loss(y=y, y_pred=self(inputs, training=True))
            found = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(found, self.trainable_variables, strict=True))
        self.mean_loss.update_state(loss, sample_weight=ops.shape(x)[0])
        return {"loss": self.mean_loss.result()}

    @property
    def metrics(self):
        return [self.mean_loss]


@family("A step with two updates, one of them by a noisy copy")
def two_updates_in_a_step():
    def build():
        keras.utils.set_random_seed(95)
        model = scores(TrainsTwice)
        model.draws = keras.random.SeedGenerator(5)
        model.mean_loss = keras.metrics.Mean(name="loss")
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), crossentropy())
        return model

    return build, classified()


class ClipsByHand(keras.Model):
    """Clips the gradients before the optimizer sees them, and logs what no metric keeps."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        found = tape.gradient(loss, self.trainable_variables)
        clipped, norm = tf.clip_by_global_norm(found, 0.3)
        self.optimizer.apply_gradients(zip(clipped, self.trainable_variables, strict=True))
        return {"last_loss": loss, "norm": norm}


@family(
    "A step with gradients clipped by hand",
    core=True,
)
def gradients_clipped_by_hand():
    def build():
        keras.utils.set_random_seed(96)
        model = scores(ClipsByHand)
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), crossentropy())
        return model

    return build, classified()
