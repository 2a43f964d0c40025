"""Each claim of a lesson points to something that is there."""

import pytest

from distlab.authoring.lint.claims import lint_claims
from distlab.authoring.lint.lint import lint_tree

LESSON = """\
# %% [markdown]
# # Sums
#
# The sum is four
# times too large.

# %%
total = strategy.reduce("SUM", counts | more, axis=None)
"""
EXERCISE = '# %%\nprint("the sum of shares")\n'
HEAD = "# Claims\n\n| claim | where it is shown |\n|:--|---|\n"


@pytest.fixture
def root(tmp_path):
    lesson = tmp_path / "distlab/course/lesson_00_sums"
    lesson.mkdir(parents=True)
    (lesson / "lesson.py").write_text(LESSON)
    (lesson / "exercise.py").write_text(EXERCISE)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_sums.py").write_text("def test_sums(): pass\ndef helper(): pass\n")
    return tmp_path


def findings(root, *rows):
    (root / "distlab/course/lesson_00_sums/claims.md").write_text(HEAD + "\n".join(rows) + "\n")
    return [
        str(finding).removeprefix("distlab/course/lesson_00_sums/claims.md: ")
        for finding in lint_claims(root)
    ]


def test_claims_that_are_shown_pass(root):
    shown = (
        'cell: strategy.reduce("SUM"',
        "cell: `counts \\| more`",
        "cell: The sum is four times too large.",
        "`cell: the sum of shares`",
        "test: tests/test_sums.py::test_sums",
        "test: `tests/test_sums.py::TestSums::test_sums[two]`",
        "source: https://www.tensorflow.org/guide",
        "cell: axis=None; test: tests/test_sums.py::test_sums<br>source: https://arxiv.org/abs/1",
    )
    rows = [f"| It is so. | {where} |" for where in shown]
    assert findings(root, *rows, "", "Any text, and | no row |") == []


def test_a_claim_that_points_to_nothing_is_found(root):
    problems = {
        "cell: no such text": "'no such text' is in 0 cells; it must be in one",
        "cell: sum": "'sum' is in 2 cells; it must be in one",
        "test: tests/test_sum.py::test_sums": "there is no file 'tests/test_sum.py'",
        "test: tests/test_sums.py::test_sum": "tests/test_sums.py has no test 'test_sum'",
        "test: tests/test_sums.py::helper": "tests/test_sums.py has no test 'helper'",
        "source: http://example.org": "'http://example.org' is no https address",
        "everybody knows": "'everybody knows' points to nothing; write 'cell: text', "
        "'test: tests/test_x.py::test_y' or 'source: https://...'",
        "cell: axis=None<br>test: x.py::test_y": "there is no file 'x.py'",
        "": "2 columns; write the claim and where it is shown",
    }
    rows = [f"| It is so. | {where} |" for where in problems]
    expected = [f"line {number}: {text}" for number, text in enumerate(problems.values(), 5)]
    assert findings(root, *rows) == expected
    assert findings(root) == ["has no row; write a table '| claim | where it is shown |'"]


def test_a_lesson_without_claims_is_found_by_the_lint(root):
    (finding,) = lint_tree(root).findings
    assert str(finding) == (
        "distlab/course/lesson_00_sums/claims.md: is missing; "
        "list each surprising statement with the place that shows it"
    )
