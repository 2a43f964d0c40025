"""Metrics: Keras's, and those that users write and that do what they like with a batch."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.training.cases.case import (
    NUMBERS,
    ONE_HOT,
    ROWS,
    SGD,
    WEIGHTS,
    X,
    case,
    compile_model,
    network,
)

Metric = keras.metrics.Metric


class LargestError(Metric):
    """Remembers one number."""

    def __init__(self):
        super().__init__(name="largest_error")
        self.largest = self.add_weight(name="largest", initializer="zeros")

    def update_state(self, y, y_pred, sample_weight=None):
        error = ops.max(ops.abs(y - y_pred))
        self.largest.assign(ops.maximum(self.largest, error))

    def result(self):
        return self.largest + 0.0


class MeanOfBatches(Metric):
    """Counts batches, in a whole number."""

    def __init__(self):
        super().__init__(name="mean_of_batches")
        self.total = self.add_weight(name="total", initializer="zeros")
        self.batches = self.add_weight(name="batches", initializer="zeros", dtype="int32")

    def update_state(self, y, y_pred, sample_weight=None):
        self.total.assign_add(ops.mean(ops.abs(y - y_pred)))
        self.batches.assign_add(1)

    def result(self):
        return self.total / ops.cast(self.batches, "float32")


class OfOthers(Metric):
    """Made of others: one of Keras's, one of the user's, and a loss of Keras's."""

    def __init__(self):
        super().__init__(name="of_others")
        self.mean, self.largest = keras.metrics.Mean(), LargestError()
        self.loss_of = keras.losses.MeanSquaredError()

    def update_state(self, y, y_pred, sample_weight=None):
        self.mean.update_state(self.loss_of(y, y_pred))
        self.largest.update_state(y, y_pred)

    def result(self):
        return {"mean": self.mean.result(), "largest": self.largest.result()}


def dice(y, y_pred):
    return ops.sum(y * y_pred) / ops.sum(ops.abs(y) + ops.abs(y_pred))


def mean_of_batch(y, y_pred):
    return ops.mean(ops.abs(y - y_pred))


@case((X, NUMBERS), validates=True)
def metrics_of_ones_own():
    classes = LargestError, MeanOfBatches, OfOthers
    functions = dice, mean_of_batch
    own = [*(make() for make in classes), *functions]
    return network(layers.Dense(1), loss="mse", optimizer=SGD(0.02), metrics=own)


class CountsInTensorFlow(Metric):
    """Keeps its numbers where Keras does not see them, beside one that it does."""

    def __init__(self):
        super().__init__(name="in_tensorflow")
        self.positive, self.batches = tf.Variable(0.0), [tf.Variable(0), [tf.Variable(0.0)]]
        self.largest = self.add_weight(name="largest", initializer="zeros")

    def update_state(self, y, y_pred, sample_weight=None):
        self.positive.assign_add(tf.reduce_sum(tf.cast(y_pred > 0, tf.float32)))
        self.largest.assign(ops.maximum(self.largest, ops.max(y_pred)))
        self.batches[0].assign_add(1)
        self.batches[1][0].assign_add(ops.mean(y_pred))

    def result(self):
        batches, total = self.batches[0], self.batches[1][0]
        return self.positive + self.largest + total / tf.cast(batches, "float32")

    def reset_state(self):
        for variable in (self.positive, self.largest, *tf.nest.flatten(self.batches)):
            variable.assign(tf.zeros_like(variable))


@case((X, NUMBERS))
def metric_that_counts_in_variables_of_tensorflow():
    metrics = [CountsInTensorFlow()]
    return network(layers.Dense(1), loss="mse", optimizer=SGD(0.02), metrics=metrics)


def right_rows(y, y_pred):
    return ops.mean(ops.cast(ops.reshape(y, (-1, 1)) * y_pred > 0, "float32"))


def mean_of_rows(y, y_pred):
    return ops.mean((ops.reshape(y, (-1, 1)) - y_pred) ** 2)


@case((X.reshape(ROWS, 4, 2), X[:, :4]))
def outputs_with_more_rows_than_examples():
    inputs = keras.Input((4, 2))
    outputs = ops.reshape(layers.Dense(1)(inputs), (-1, 1))
    return compile_model(keras.Model(inputs, outputs), loss=mean_of_rows, metrics=[right_rows])


@case((X, ONE_HOT, WEIGHTS), epochs=1)
def metrics_of_keras():
    metrics = keras.metrics
    return network(
        layers.Dense(4, activation="softmax"),
        loss=keras.losses.CategoricalFocalCrossentropy(label_smoothing=0.1),
        metrics=[
            metrics.AUC(multi_label=True, num_labels=4, num_thresholds=9, name="auc"),
            metrics.PearsonCorrelation(axis=0, name="pearson"),
            metrics.CosineSimilarity(axis=0, name="cosine"),
        ],
        weighted_metrics=[metrics.Recall(class_id=1, name="recall")],
    )


def by_numpy(y, y_pred):
    return float(np.mean(np.abs(y.numpy() - y_pred.numpy())))


def checked(y, y_pred):
    assert np.isfinite(y_pred.numpy()).all()
    return ops.mean(ops.square(y - y_pred), axis=-1)


@case((X, NUMBERS))
def eager_loss_and_metric_that_ask_for_values():
    return network(layers.Dense(1), loss=checked, metrics=[by_numpy, "mae"], run_eagerly=True)
