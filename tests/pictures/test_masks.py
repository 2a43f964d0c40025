"""The picture of dropout masks shows each mask as it is, and says which are the same."""

import numpy as np
import pytest

from distlab.pictures.masks import draw_masks

ONE = np.array([[2.0, 0.0, 0.0], [0.0, 2.0, 2.0]])
OTHER = np.array([[2.0, 2.0, 0.0], [0.0, 0.0, 2.0]])


@pytest.fixture
def figure():
    return draw_masks({"same": [ONE, ONE], "cured": [ONE, OTHER], "again": [ONE, OTHER]})


def cells(ax):
    return ax.collections[0].get_array()


def colours(ax):
    mesh = ax.collections[0]
    return mesh.to_rgba(mesh.get_array())[..., :3]


def test_each_replica_of_each_panel_shows_its_mask_with_the_first_example_on_top(figure):
    top, bottom = np.reshape(figure.axes, (2, 3))
    for ax, mask in zip([*top, *bottom], [ONE, ONE, ONE, ONE, OTHER, OTHER], strict=True):
        np.testing.assert_array_equal(cells(ax), mask != 0)
        assert ax.yaxis_inverted()


def test_what_was_dropped_is_white_and_what_was_kept_has_the_replicas_colour(figure):
    first, second = figure.axes[0], figure.axes[3]
    for ax in (first, second):
        shown, drawn = colours(ax), cells(ax)
        np.testing.assert_array_equal((shown == 1).all(axis=-1), ~drawn)
    assert not (colours(first)[0, 0] == colours(second)[0, 0]).all()


def test_panels_and_replicas_are_named(figure):
    assert [ax.get_title() for ax in figure.axes[:3]] == ["same", "cured", "again"]
    rows = [figure.axes[place].get_ylabel() for place in (0, 3)]
    assert rows == ["replica 0\nexamples", "replica 1\nexamples"]


def test_a_legend_says_what_is_kept_and_what_is_dropped_and_the_text_says_it_again(figure):
    (legend,) = figure.legends
    shown = [text.get_text() for text in legend.get_texts()]
    assert shown == ["kept on replica 0", "kept on replica 1", "dropped"]
    assert "same: the replicas differ in no cell. cured: the replicas differ in 2" in figure.alt


def test_below_a_panel_stands_what_differs_and_where_the_same_masks_were_seen(figure):
    assert [ax.get_xlabel() for ax in figure.axes[3:]] == [
        "units\ndiffer in no cell",
        "units\ndiffer in 2 of 6 cells",
        'units\ndiffer in 2 of 6 cells\nthe same as "cured"',
    ]


def test_with_more_replicas_each_is_compared_with_the_first():
    figure = draw_masks({"three": [ONE, ONE, OTHER]})
    assert figure.axes[-1].get_xlabel() == "units\ndiffer in 2 of 12 cells"
