"""What cells ask of calls and loops: outcomes, stubs that are waited for, limits and paths."""

import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from distlab.course.lesson_03_custom_training_loop.runs import fit_path, kernel, max_difference
from distlab.course.runs.outcomes import waits_for
from distlab.errors import InvalidArgument


def ended(error, *tasks):
    with waits_for(*tasks):
        raise error


def test_a_picture_waits_for_stubs_by_name_and_names_the_check_of_an_answer_that_fails(capsys):
    ended(NotImplementedError("your code here"), "loop", "scale")
    assert capsys.readouterr().out == (
        "This cell waits for loop and scale: write them above, then run this cell again.\n"
    )
    ended(TypeError("no such thing"), "loop")
    assert capsys.readouterr().out == (
        'No result: your code ended with TypeError: no such thing\ndl.check("loop") says more.\n'
    )
    with waits_for("loop"):
        sys.stdout.write("a picture")
    assert capsys.readouterr().out == "a picture"


def test_an_error_in_a_compiled_step_is_shown_without_the_frames_that_autograph_writes(capsys):
    @tf.function
    def step():
        return {}["rows"]

    with waits_for("loop"):
        step()
    assert capsys.readouterr().out == (
        "No result: your code ended with KeyError: 'rows'\ndl.check(\"loop\") says more.\n"
    )


def test_what_is_no_fault_of_the_answer_is_raised():
    for error in (KeyboardInterrupt(), InvalidArgument(asked="a", found="b", do="c")):
        with pytest.raises(type(error)):
            ended(error, "loop")


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
    model.set_weights([np.array([[0.25], [-0.5]], np.float32)])
    assert max_difference(model, zeros()) == 0.5  # the largest difference
    assert max_difference(zeros(), zeros()) == 0
