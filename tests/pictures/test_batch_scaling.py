"""The pictures of lesson 02 show each way with its error bars, and leave out what never arrived."""

import numpy as np
import pytest

from distlab.pictures.batch_scaling import draw_by_batch, draw_steps, standard_error

STEPS = {
    "linear rule": {8: [400, 440], 16: [200, 240], 32: [np.nan, 90]},
    "best rate": {8: [300, 340], 16: [150, 170], 32: [100, 120]},
}


def curves(figure):
    """By label, the points of each curve with error bars."""
    (axes,) = figure.axes
    found = {}
    for container in axes.containers:
        line, _, (bars,) = container.lines
        lengths = [(top - bottom) / 2 for (_, bottom), (_, top) in bars.get_segments()]
        found[container.get_label()] = (list(line.get_xdata()), list(line.get_ydata()), lengths)
    return found


def test_a_point_is_the_mean_of_its_seeds_and_its_bar_the_standard_error():
    figure = draw_by_batch({"fixed": {8: [90.0, 94.0], 16: [80.0, 80.0]}}, y="accuracy", y_unit="%")
    batches, means, bars = curves(figure)["fixed"]
    assert (batches, means) == ([8, 16], [92, 80])
    assert bars == pytest.approx([2, 0])
    assert figure.axes[0].get_ylabel() == "accuracy (%)"
    assert "92 % at 8, 80 % at 16" in figure.alt


def test_a_batch_at_which_a_seed_never_arrives_has_no_point_and_a_word():
    figure = draw_steps(STEPS, lines_from=["linear rule", "best rate"])
    assert curves(figure)["linear rule"][0] == [8, 16]
    assert curves(figure)["best rate"][0] == [8, 16, 32]
    assert "not all seeds arrive at 32" in figure.alt


def test_each_line_halves_with_each_doubling_from_the_first_point_of_its_curve():
    figure = draw_steps(STEPS, lines_from=["best rate", "linear rule"])
    dashed = [line for line in figure.axes[0].lines if len(line.get_xdata()) and line.is_dashed()]
    assert [list(line.get_ydata()) for line in dashed] == [[320, 160, 80], [420, 210, 105]]
    assert "from 320 at 8 to 80 at 32, and from 420 at 8 to 105 at 32" in figure.alt


def test_one_seed_has_no_error():
    assert standard_error([3.0]) == 0
    assert standard_error([1.0, 3.0]) == pytest.approx(1)
