"""Points go back to Canvas and Gradescope in the forms that these read."""

import csv
import json
from pathlib import Path

import pytest

from distlab import errors
from distlab.grader.returning import fill_canvas, gradescope_results
from distlab.grader.scoring import Graded, Override, Policy
from distlab.grader.submissions import Submission
from distlab.grading.report import Report

EXPORT = (
    "\ufeffStudent,ID,SIS Login ID,Section,Exercise 00 (811),Exercise 09 (812),Final Score\n"
    "    Points Possible,,,,4,12,(read only)\n"
    '"Doe, Jane",12345,jane,A,4,,80\n'
    '"Doe, John",12346,john,A,-,3,50\n'
    '"Student, Test",99999,,A,,,\n'
)


def graded(learner, user, earned, **more):
    handed = Submission(learner=learner, path=Path("one.ipynb"), name="one", user=user)
    report = Report("first", "f", "Shares", "not yet", earned, 12.0)
    return Graded(submission=handed, stem="09_multi_worker", reports=(report,), **more)


CLASS = [graded("doejane", "12345", 9.5), graded("roeadam", "12399", 4.0)]


@pytest.fixture
def exported(tmp_path):
    path = tmp_path / "grades.csv"
    path.write_text(EXPORT, encoding="utf-8")
    return path


@pytest.mark.parametrize("column", ["Exercise 09", "Exercise 09 (812)"])
def test_only_the_assignments_cells_of_these_learners_change(exported, tmp_path, column):
    out = tmp_path / "out.csv"
    missing = fill_canvas(exported, CLASS, Policy(), column=column, to=out)
    before = list(csv.reader(EXPORT.removeprefix("\ufeff").splitlines()))
    after = list(csv.reader(out.read_text(encoding="utf-8-sig").splitlines()))
    changed = {
        (row, column): new
        for row, (old_row, new_row) in enumerate(zip(before, after, strict=True))
        for column, (old, new) in enumerate(zip(old_row, new_row, strict=True))
        if old != new
    }
    assert changed == {(2, 5): "9.5"}
    assert missing == ["roeadam"]
    assert exported.read_text(encoding="utf-8") == EXPORT


def test_what_was_not_graded_leaves_canvas_as_it_was(exported, tmp_path):
    broken = graded("doejohn", "12346", 0.0, problem="an empty file")
    fill_canvas(exported, [broken], Policy(), column="Exercise 09", to=tmp_path / "out.csv")
    assert 'Doe, John",12346,john,A,-,3,50' in (tmp_path / "out.csv").read_text("utf-8-sig")


def test_another_assignment_or_table_is_told(exported, tmp_path):
    out = tmp_path / "out.csv"
    with pytest.raises(errors.InvalidArgument) as caught:
        fill_canvas(exported, CLASS, Policy(), column="Exercise 9", to=out)
    assert caught.value.found == "no assignment of that title"
    assert "did you mean 'Exercise 09'?" in caught.value.do
    exported.write_text("a,b\n1,2\n")
    with pytest.raises(errors.InvalidArgument) as caught:
        fill_canvas(exported, CLASS, Policy(), column="Exercise 09", to=out)
    assert caught.value.found == "a table without the columns Student and ID"
    assert not out.exists()


def test_the_export_is_never_written_over(exported):
    with pytest.raises(errors.InvalidArgument, match="write to another file"):
        fill_canvas(exported, CLASS, Policy(), column="Exercise 09", to=exported)


def test_gradescopes_results_can_be_read_by_it():
    policy = Policy(overrides={("doejane", "first"): Override(points=10, comment="right idea")})
    results = json.loads(json.dumps(gradescope_results(CLASS[0], policy)))
    assert results["score"] == 10
    (test,) = results["tests"]
    assert (test["name"], test["score"], test["max_score"]) == ("Shares", 10, 12.0)
    assert test["output"].startswith("first: not yet") and test["output"].endswith("right idea")


def test_gradescope_is_told_what_was_not_graded():
    results = gradescope_results(graded("a", "1", 0.0, problem="an empty file"), Policy())
    assert results == {"score": 0.0, "output": "Not graded: an empty file", "tests": []}
