"""The notebooks of this repository are what their sources build, and pass the lint."""

from distlab.notebooks.drift import find_drift
from distlab.notebooks.lint import lint_tree
from tests.support.repository import ROOT


def test_no_notebook_differs_from_its_source():
    assert find_drift(ROOT) == []


def test_the_lint_finds_nothing():
    assert [str(finding) for finding in lint_tree(ROOT).findings] == []
