"""The picture of lesson 03 shows every path, from where it starts to where it ends."""

import numpy as np

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
