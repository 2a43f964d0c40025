"""The minutes that a lesson states are those of its words, its new code and its predictions."""

import json

import pytest
from nbformat import v4

from distlab.authoring.lint.lint import lint_reading_time, minutes_of


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


def test_words_new_lines_and_predictions_take_their_time():
    lines = "import keras\n# why\n\na = 1\nb = 2  # two\nb = 2\nc = 3\ndl.show('a', a)"
    for parts, minutes in (
        ({"words": 400}, 2),
        ({"words": 200, "folded": 900}, 1),
        ({"code": lines}, 1),
        ({"predictions": 3}, 3),
    ):
        assert minutes_of(lesson(**parts), shown=set()) == pytest.approx(minutes), parts
    linked = v4.new_notebook(cells=[v4.new_markdown_cell("[two words](a b c d)")])
    assert minutes_of(linked, shown=set()) == pytest.approx(2 / 200)
    shown = set()
    assert minutes_of(lesson(code="a = 1\nb = 2\nc = 3"), shown=shown) == 1
    assert minutes_of(lesson(code="c = 3\nb = 2\na = 1"), shown=shown) == 0


def test_minutes_that_are_far_off_are_a_finding(tmp_path):
    (tmp_path / "notebooks").mkdir()
    for stated, found in (("20", ""), ("25", ""), ("26", "26"), ("", "None")):
        cells = [v4.new_markdown_cell(f"# Start\n\n## Overview\n\n{stated} minutes")]
        cells += [v4.new_markdown_cell(" ".join(["word"] * 4000))]
        path = tmp_path / "notebooks" / "00_start_here.ipynb"
        path.write_text(json.dumps(v4.new_notebook(cells=cells)))
        message = f"states {found} minutes; by its words, code and predictions 20"
        expected = [f"notebooks/00_start_here.ipynb: {message}"] if found else []
        assert [str(finding) for finding in lint_reading_time(tmp_path)] == expected
