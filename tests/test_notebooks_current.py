"""The notebooks of this repository are what their sources build, and pass the lint."""

from pathlib import Path

from distlab.notebooks.drift import find_drift
from distlab.notebooks.lint import lint_tree

ROOT = Path(__file__).parent.parent


def test_no_notebook_differs_from_its_source():
    assert find_drift(ROOT) == []


def test_the_lint_finds_nothing():
    assert [str(finding) for finding in lint_tree(ROOT).findings] == []
