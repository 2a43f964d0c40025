"""The pictures draw the numbers they are given, at the places where a reader looks for them."""

import numpy as np
import pytest

from distlab.pictures.gradients import draw_gradients, draw_losses


@pytest.fixture
def axes():
    figure = draw_gradients([[0.1, -0.2], [0.3, 0.0]], mean=[0.2, -0.1], one_device=[0.25, -0.1])
    return figure.axes[0]


def test_each_replica_has_a_bar_of_its_height_at_every_place(axes):
    heights = [[bar.get_height() for bar in bars] for bars in axes.containers]
    assert heights == [[0.1, -0.2], [0.3, 0.0]]
    # Those of one place stand side by side, around its number.
    first, second = (bars[1].get_center()[0] for bars in axes.containers)
    assert first < 1 < second
    assert first + second == pytest.approx(2)


def test_the_mean_is_a_line_across_the_bars_and_one_device_a_circle(axes):
    lines = axes.collections[0].get_segments()
    assert [line[0][1] for line in lines] == [0.2, -0.1]
    assert lines[0][0][0] < -0.3 < 0.3 < lines[0][1][0]
    circles = axes.lines[0]
    assert list(circles.get_ydata()) == [0.25, -0.1]
    assert circles.get_marker() == "o"


def test_replicas_differ_by_hatch_as_well_as_by_colour():
    figure = draw_gradients(np.eye(4), mean=[0] * 4, one_device=[0] * 4)
    looks = [(bars[0].get_facecolor(), bars[0].get_hatch()) for bars in figure.axes[0].containers]
    colours, hatches = zip(*looks, strict=True)
    assert len(set(colours)) == len(set(hatches)) == 4


def test_loss_curves_are_named_and_count_epochs_from_one():
    axes = draw_losses({"one device": [2.0, 1.5, 1.2], "two replicas": [2.0, 1.4, 1.1]}).axes[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "one device",
        "two replicas",
    ]
    assert list(axes.lines[1].get_xdata()) == [1, 2, 3]
    assert list(axes.lines[1].get_ydata()) == [2.0, 1.4, 1.1]


def test_a_curve_that_lies_on_another_can_be_seen():
    below, above = draw_losses({"one": [1.0, 0.5], "two": [1.0, 0.5]}).axes[0].lines
    assert below.get_linewidth() > 2 * above.get_linewidth()


def test_the_legend_names_the_replicas_first():
    figure = draw_gradients(np.eye(3), mean=[0] * 3, one_device=[0] * 3)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names[:3] == ["replica 0", "replica 1", "replica 2"]
    assert names[3:] == ["mean of the replicas", "one device"]
