"""The picture of lesson 08: a cell for each way to save and each strategy, by what was lost."""

import math

import pytest

from distlab.pictures.saving import draw_differences, draw_move


def cells(figure):
    """For each row's and column's name, the text and the colour of its cell."""
    (axes,) = figure.axes
    rows = [label.get_text() for label in axes.get_yticklabels()]
    columns = [label.get_text() for label in axes.get_xticklabels()]
    found = {}
    for text, patch in zip(axes.texts, axes.patches, strict=True):
        column, row = text.get_position()
        assert patch.get_bbox().contains(column, row)
        found[rows[row], columns[column]] = text.get_text(), patch.get_facecolor()
    return found


def texts(figure):
    return {place: text for place, (text, _) in cells(figure).items()}


def test_each_cell_stands_at_its_row_and_column():
    rows = {"a": {"one": 0.0, "two": 0.25}, "b": {"two": 9.31, "one": None}}
    assert texts(draw_differences(rows, tolerance=1e-6)) == {
        ("a", "one"): "equal",
        ("a", "two"): "0.25 apart",
        ("b", "one"): "cannot",
        ("b", "two"): "9.3 apart",
    }


def test_equal_apart_and_missing_have_colours_of_their_own():
    figure = draw_differences({"a": {"one": 0.0, "two": 1.0, "three": None}}, tolerance=1e-6)
    assert len({colour for _, colour in cells(figure).values()}) == 3
    hatches = [patch.get_hatch() for patch in figure.axes[0].patches]
    assert [bool(hatch) for hatch in hatches] == [False, True, False]


@pytest.mark.parametrize(
    ("value", "text"),
    [(9.9e-7, "equal"), (1e-6, "1e-06 apart"), (math.nan, "nan apart"), (math.inf, "inf apart")],
)
def test_only_what_is_below_the_bound_is_equal(value, text):
    assert texts(draw_differences({"a": {"one": value}}, tolerance=1e-6)) == {("a", "one"): text}


def test_the_first_row_is_on_top_and_words_can_be_chosen():
    figure = draw_differences(
        {"a": {"one": None}, "b": {"one": 0.0}},
        tolerance=1.0,
        title="weights",
        missing="no training",
    )
    (axes,) = figure.axes
    assert axes.get_ylim()[0] > axes.get_ylim()[1]
    assert axes.get_xlabel() == "weights"
    assert texts(figure)["a", "one"] == "no training"


def test_the_alternative_text_says_what_each_row_lost():
    alt = draw_differences({"a": {"one": 0.0, "two": 0.25}}, tolerance=1e-6, title="weights").alt
    assert "weights" in alt
    assert "a: equal, 0.25 apart." in alt


def test_a_move_has_a_box_for_each_replica_and_asks_about_each_part():
    (axes,) = draw_move(replicas=2, moved_to=3).axes
    texts = [text.get_text() for text in axes.texts]
    assert [t for t in texts if t.startswith("replica")] == [
        f"replica {n}" for n in (0, 1, 0, 1, 2)
    ]
    (file,) = [text for text in texts if text.startswith("file")]
    assert file.count("?") == 4
