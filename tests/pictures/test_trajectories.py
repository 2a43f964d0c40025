"""The picture of lesson 03 shows every path, from where it starts to where it ends."""

import numpy as np

from distlab.pictures.palette import WRONG
from distlab.pictures.trajectories import draw_paths


def test_every_panel_shows_its_paths_by_name_and_the_weights_asked_for():
    path = np.arange(3 * 4 * 2.0).reshape(3, 4, 2)  # three kernels of 4 x 2
    panels = {"left": {"one device": path, "wrong": path + 1}, "right": {"one device": path}}
    figure = draw_paths(panels, weights=((1, 0), (3, 1)))

    left, right = figure.axes
    names = [text.get_text() for text in left.get_legend().get_texts()]
    assert (left.get_title(), right.get_title()) == ("left", "right")
    assert names == ["one device", "start", "wrong"]
    lines = {line.get_label(): line.get_xydata() for line in left.lines}
    np.testing.assert_array_equal(lines["wrong"], np.stack([path[:, 1, 0], path[:, 3, 1]], 1) + 1)


def test_wrong_paths_have_one_colour_and_differ_in_marker_and_dashes():
    path = np.cumsum(np.ones((4, 2, 2)), axis=0)
    panels = {"scale": {"one device": path, "short": path / 4, "long": path * 4}}
    lines = {
        line.get_label(): line
        for line in draw_paths(panels, weights=((0, 0), (1, 1))).axes[0].lines
    }
    short, long = lines["short"], lines["long"]
    assert short.get_color() == long.get_color() == WRONG.colour
    assert short.get_marker() != long.get_marker()
    assert short.get_linestyle() != long.get_linestyle()


def test_the_alternative_text_says_how_far_from_one_device_a_path_ends():
    path = np.cumsum(np.ones((3, 2, 2)), axis=0)  # moves by 2 in each weight
    panels = {"scale": {"one device": path, "wrong": path + 1}}
    alt = draw_paths(panels, weights=((0, 0), (1, 1))).alt
    assert "The path of wrong ends 0.5 times as far from the end of one device" in alt
