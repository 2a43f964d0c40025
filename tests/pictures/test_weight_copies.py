"""The picture of lesson 04 shows every copy of a weight, and one device's weight."""

import numpy as np

from distlab.pictures.weight_copies import draw_drift


def test_it_draws_each_copy_and_one_device():
    path = np.array([[0.0, 0.0], [1.0, -1.0], [2.0, -3.0]])
    figure = draw_drift(path, [0.0, 0.5, 1.0], label="bias")
    (axes,) = figure.axes
    lines = {line.get_label(): line.get_ydata().tolist() for line in axes.lines}
    assert lines == {
        "one device": [0, 0.5, 1],
        "replica 0": [0, 1, 2],
        "replica 1": [0, -1, -3],
    }
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "bias")
    assert {text.get_text() for text in axes.get_legend().get_texts()} == set(lines)


def test_the_alternative_text_says_how_far_the_copies_are_apart():
    figure = draw_drift([[0, 0], [1, -1.5]], [0, 0.25], label="bias")
    assert figure.alt == (
        "The bias over 1 steps. The copies of the 2 replicas are at most 2.50 apart and end at "
        "1.00, -1.50; one device ends at 0.25."
    )
