"""Pictures of a resumed training draw each loss at its step, and costs where they are least."""

import re

import pytest

from distlab.pictures.recovery import A_RESTART, draw_interval, draw_resumed, draw_waste
from distlab.pictures.workers import draw_lanes

UNDISTURBED = [5.0, 4.0, 3.0, 2.0, 1.0]


def lines_of(figure):
    return {line.get_label(): line for line in figure.axes[0].lines}


def test_a_resumed_loss_stands_at_the_step_after_the_stop():
    lines = lines_of(draw_resumed(UNDISTURBED, {"all": [2.0, 1.0], "half": [4.5]}, stopped_at=3))
    assert list(lines["undisturbed"].get_xdata()) == [1, 2, 3, 4, 5]
    assert list(lines["all"].get_xdata()) == [4, 5]
    assert list(lines["all"].get_ydata()) == [2, 1]
    assert list(lines["half"].get_xdata()) == [4]


def test_a_curve_that_lies_on_the_undisturbed_one_can_be_seen():
    lines = lines_of(draw_resumed(UNDISTURBED, {"all": [2.0, 1.0], "half": [4.5]}, stopped_at=3))
    assert lines["undisturbed"].get_linewidth() > 4 * lines["all"].get_linewidth()
    assert lines["all"].get_marker() != lines["half"].get_marker()


def test_two_runs_that_lost_something_look_different():
    lost = {"all": [2.0], "weights": [4.5], "no optimizer": [4.4]}
    lines = lines_of(draw_resumed(UNDISTURBED, lost, stopped_at=3))
    assert len({lines[name].get_marker() for name in lost}) == 3


def test_the_stop_is_a_line_between_two_steps():
    figure = draw_resumed(UNDISTURBED, {"all": [2.0, 1.0]}, stopped_at=3)
    assert figure.axes[0].lines[-1].get_xdata() == [3.5, 3.5]
    assert [text.get_text() for text in figure.axes[0].texts] == ["stopped here"]


def test_a_kill_behind_the_checkpoint_is_a_line_of_its_own():
    figure = draw_resumed(UNDISTURBED, {"all": [3.0, 2.0]}, stopped_at=2, killed_in=4)
    assert [line.get_xdata() for line in figure.axes[0].lines[-2:]] == [[2.5, 2.5], [4, 4]]
    assert [text.get_text() for text in figure.axes[0].texts] == ["resumes here", "killed"]


def test_costs_are_per_cent_and_together_their_sum():
    parts = {"saving": [0.02, 0.01, 0.005], "lost": [0.005, 0.01, 0.02]}
    figure = draw_interval([60, 120, 240], parts, best_secs=120)
    lines = lines_of(figure)
    assert list(lines["saving"].get_xdata()) == [1, 2, 4]
    assert list(lines["saving"].get_ydata()) == pytest.approx([2, 1, 0.5])
    assert list(lines["together"].get_ydata()) == pytest.approx([2.5, 2, 2.5])
    assert figure.axes[0].lines[-1].get_xdata() == [2, 2]
    assert [text.get_text() for text in figure.axes[0].texts] == ["2 min"]


def test_the_axis_of_losses_has_plain_numbers_even_below_a_decade():
    figure = draw_resumed([0.4, 0.3, 0.25], {"all": [0.25]}, stopped_at=2)
    figure.draw_without_rendering()
    texts = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert texts
    assert all(re.fullmatch(r"[\d.]+", text) for text in texts)


def test_waste_is_in_per_cent_by_the_number_of_machines():
    figure = draw_waste([1, 10], {"no time": [0.04, 0.11], "a minute": [0.05, 0.2]})
    lines = lines_of(figure)
    assert list(lines["no time"].get_xdata()) == [1, 10]
    assert list(lines["a minute"].get_ydata()) == pytest.approx([5, 20])
    assert "a minute: 5 % on 1, 20 % on 10." in figure.alt


def test_the_sketch_of_a_restart_shows_that_both_start_again():
    assert draw_lanes(A_RESTART).alt.count("starts again") == 2


def test_figures_are_closed_so_that_a_notebook_shows_them_once():
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    draw_resumed(UNDISTURBED, {}, stopped_at=1)
    draw_interval([60], {"saving": [0.1]}, best_secs=60)
    assert plt.get_fignums() == before
