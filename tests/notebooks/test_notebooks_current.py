"""The notebooks of this repository are what their sources build, and pass the lint."""

import nbformat
import pytest

from distlab.notebooks.drift import find_drift
from distlab.notebooks.lint import lint_tree
from tests.support.repository import ROOT


def test_no_notebook_differs_from_its_source():
    assert find_drift(ROOT) == []


def test_the_lint_finds_nothing():
    assert [str(finding) for finding in lint_tree(ROOT).findings] == []


def _place(path):
    return path.relative_to(ROOT).as_posix()


# Lesson 16 shows a count that is wrong on purpose, and its text says so.
_EXPECTED_FAILURES = {"notebooks/16_choosing_a_strategy.ipynb": 1}


@pytest.mark.parametrize("path", sorted(ROOT.glob("[ns]*/*.ipynb")), ids=_place)
def test_no_stored_output_fails_its_own_comparison(path):
    """`dl.show(..., expected=...)` writes "is NOT"; no lesson or solution may leave that unsaid."""
    notebook = nbformat.read(path, as_version=4)
    outputs = [
        output.get("text", "")
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    ]
    failed = sum(text.count(" is NOT ") for text in outputs)
    assert failed == _EXPECTED_FAILURES.get(_place(path), 0)
