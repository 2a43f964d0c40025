"""The notebooks of this repository are what their sources build, and pass the lint."""

import nbformat

from distlab.notebooks.drift import find_drift
from distlab.notebooks.lint import lint_tree
from tests.support.repository import ROOT


def test_no_notebook_differs_from_its_source():
    assert find_drift(ROOT) == []


def test_the_lint_finds_nothing():
    assert [str(finding) for finding in lint_tree(ROOT).findings] == []


def test_no_stored_output_fails_its_own_comparison():
    """`dl.show(..., expected=...)` writes "is NOT"; no lesson or solution may leave that unsaid."""
    failed = {}
    for path in sorted(ROOT.glob("[ns]*/*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        outputs = [output for cell in cells for output in cell.get("outputs", ())]
        failed[f"{path.parent.name}/{path.stem}"] = sum(
            output.get("text", "").count(" is NOT ") for output in outputs
        )
    assert len(failed) > 30
    # Lesson 16 shows a count that is wrong on purpose, and its text says so.
    expected = {"notebooks/16_choosing_a_strategy": 1}
    assert {name: count for name, count in failed.items() if count} == expected
