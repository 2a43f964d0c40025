"""The minutes that a lesson states are those of its words, its new code and its predictions."""

import json

import pytest
from nbformat import v4

from distlab.notebooks.reading_time import lint_reading_time, minutes_of


def lesson(*, words=0, code="", predictions=0, folded=0, tags=()):
    text = " ".join(["word"] * words)
    fold = " ".join(["word"] * folded)
    asked = [v4.new_code_cell("guess = dl.predict('?')", metadata={"tags": ["predict"]})]
    return v4.new_notebook(
        cells=[
            v4.new_markdown_cell(f"{text}\n\n<details><summary>more</summary>{fold}</details>"),
            v4.new_code_cell(code, metadata={"tags": list(tags)}),
            *asked * predictions,
        ]
    )


@pytest.mark.parametrize(
    ("parts", "minutes"),
    [
        ({"words": 400}, 2),
        ({"words": 200, "folded": 900}, 1),
        ({"code": "a = 1\nb = 2\nc = 3"}, 1),
        ({"code": "import keras\n# why\n\na = 1\nb = 2  # two\nb = 2\nc = 3\ndl.show('a', a)"}, 1),
        ({"code": "a = 1\nb = 2\nc = 3", "tags": ["hide-input"]}, 0),
        ({"predictions": 3}, 3),
    ],
)
def test_words_lines_and_predictions_take_their_time(parts, minutes):
    assert minutes_of(lesson(**parts), shown=set()) == pytest.approx(minutes)


def test_a_link_counts_by_its_words():
    linked = v4.new_notebook(cells=[v4.new_markdown_cell("[two words](a b c d)")])
    assert minutes_of(linked, shown=set()) == pytest.approx(2 / 200)


def test_a_line_that_was_shown_before_is_not_new():
    shown = set()
    first = minutes_of(lesson(code="a = 1\nb = 2\nc = 3"), shown=shown)
    again = minutes_of(lesson(code="c = 3\nb = 2\na = 1"), shown=shown)
    assert (first, again) == (1, 0)


@pytest.mark.parametrize(("stated", "found"), [("20", ""), ("25", ""), ("26", "26"), ("", "None")])
def test_minutes_that_are_far_off_are_a_finding(tmp_path, stated, found):
    cells = [v4.new_markdown_cell(f"# Start\n\n## Overview\n\n{stated} minutes")]
    cells += [v4.new_markdown_cell(" ".join(["word"] * 4000))]
    (tmp_path / "notebooks").mkdir()
    path = tmp_path / "notebooks" / "00_start_here.ipynb"
    path.write_text(json.dumps(v4.new_notebook(cells=cells)))
    message = f"states {found} minutes; by its words, code and predictions 20"
    expected = [f"notebooks/00_start_here.ipynb: {message}"] if found else []
    assert [str(finding) for finding in lint_reading_time(tmp_path)] == expected
