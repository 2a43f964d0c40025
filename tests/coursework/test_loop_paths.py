"""The path of a model's weights through `fit`, and the distance of two models."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from distlab.coursework.loop_paths import apart, fit_path, kernel


def zeros():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(keras.optimizers.SGD(0.5), loss="mse")
    model.set_weights([np.zeros((2, 1), np.float32)])
    return model


def test_a_path_has_the_weights_before_the_first_step_and_after_each():
    data = tf.data.Dataset.from_tensors((tf.ones((4, 2)), tf.ones((4, 1)))).repeat(2)
    model, path = fit_path(zeros(), data)
    # The gradient of (w1 + w2 - 1)² is -2 at the first step and 2 at the second.
    assert [step.ravel().tolist() for step in path] == [[0, 0], [1, 1], [0, 0]]
    assert np.array_equal(kernel(model), path[-1])


def test_models_are_apart_by_their_largest_difference():
    model, reference = zeros(), zeros()
    model.set_weights([np.array([[0.25], [-0.5]], np.float32)])
    assert apart(model, reference) == pytest.approx(0.5)
    assert apart(reference, zeros()) == 0
