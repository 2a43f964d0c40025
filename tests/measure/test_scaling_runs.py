"""Steps and all-reduces are measured on real replicas, and what they compute is right."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
from distlab.measure.bandwidth import time_all_reduce
from distlab.measure.own_machine import measure_here
from distlab.measure.scaling_runs import small_cnn, time_step


@pytest.fixture(scope="module")
def strategy():
    return dl.make_strategy("mirrored", devices=2)


def dense():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    return model


def test_a_step_says_what_was_measured(strategy):
    x, y = np.ones((12, 3), np.float32), np.ones((12, 2), np.float32)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(6)
    step = time_step(dense, strategy, data, blocks=2, calls=1)
    assert (step.replicas, step.global_batch, step.gradient_bytes) == (2, 6, 4 * 8)
    assert step.compute_secs > 0
    assert step.communication_secs >= 0
    assert step.input_secs >= 0
    low, high = step.middle_half_secs
    assert low <= step.whole_secs <= high


def test_an_all_reduce_is_timed_for_each_size(strategy):
    rows = time_all_reduce(strategy, [4, 4096], blocks=2, calls=1)
    assert [(row.replicas, row.size_bytes) for row in rows] == [(2, 4), (2, 4096)]
    assert all(row.bytes_per_sec == row.size_bytes / row.secs > 0 for row in rows)


def test_the_cnn_has_the_weights_that_the_lesson_names():
    assert small_cnn().count_params() == 420_042


def test_a_machine_is_measured_as_a_recording_has_it(strategy):
    def flat():
        model = keras.Sequential([keras.Input((28, 28, 1)), keras.layers.Flatten()])
        model.add(keras.layers.Dense(10))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss)
        return model

    own = measure_here(strategy, build=flat, global_batches=(4, 8), blocks=2)
    assert own.step(2, 8).gradient_bytes == 4 * 7850
    assert own.all_reduce(2, 2048).secs > 0
    assert len(own.all_reduces) == 8
