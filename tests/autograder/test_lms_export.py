"""Points go back to Canvas and Gradescope in the forms that these read."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from distlab import errors
from distlab.autograder.gradebook.lms_export import (
    fill_canvas,
    give_back,
    gradescope_results,
    write_gradescope,
)
from distlab.autograder.gradebook.scores import Given, Graded, Held, Policy, score_of
from distlab.autograder.intake import gradable_exercises
from distlab.autograder.intake.report_submission import Written
from distlab.autograder.intake.submissions import Submission
from distlab.checks.endings import Ending
from distlab.checks.report import Report
from distlab.checks.rubric import RubricRow, WrittenReport

EXPORT = (
    "\ufeffStudent,ID,SIS Login ID,Section,Exercise 00 (811),Exercise 09 (812),Final Score\n"
    "    Points Possible,,,,4,12,(read only)\n"
    '"Doe, Jane",12345,jane,A,4,,80\n'
    '"Doe, John",12346,john,A,-,3,50\n'
    '"Student, Test",99999,,A,,,\n'
)


def graded(learner, user, earned, **more):
    handed = Submission(learner=learner, path=Path("one.ipynb"), name="one", user=user)
    report = Report("first", "f", "Shares", Ending.NOT_YET, earned, 12.0)
    return Graded(submission=handed, stem="09_multi_worker", reports=(report,), **more)


def scored(*everybody, policy=Policy()):  # noqa: B008 - frozen
    return [(one, score_of(one, policy)) for one in everybody]


CLASS = [graded("doejane", "12345", 9.5), graded("roeadam", "12399", 4.0)]


@pytest.fixture
def exported(tmp_path):
    path = tmp_path / "grades.csv"
    path.write_text(EXPORT, encoding="utf-8")
    return path


@pytest.mark.parametrize("column", ["Exercise 09", "Exercise 09 (812)"])
def test_only_the_assignments_cells_of_these_learners_change(exported, tmp_path, column):
    out = tmp_path / "out.csv"
    missing = fill_canvas(exported, scored(*CLASS), column=column, to=out)
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
    fill_canvas(exported, scored(broken), column="Exercise 09", to=tmp_path / "out.csv")
    assert 'Doe, John",12346,john,A,-,3,50' in (tmp_path / "out.csv").read_text("utf-8-sig")


@pytest.mark.parametrize(
    ("column", "told"),
    [
        ("Exercise 09", []),
        ("Exercise 00", ["in Canvas 'Exercise 00' has 4 points, and here there"]),
    ],
)
def test_an_assignment_with_other_points_in_canvas_is_told(exported, tmp_path, column, told):
    said = []
    known = scored(graded("doejane", "12345", 9.5))
    give_back(known, tmp_path, canvas=(exported, column), say=said.append)
    assert [line[: len(part)] for line, part in zip(said, told, strict=True)] == told
    assert all("are 12: " in line and "change the assignment's points" in line for line in said)


def test_another_assignment_or_table_is_told(exported, tmp_path):
    out = tmp_path / "out.csv"
    with pytest.raises(errors.InvalidArgument) as caught:
        fill_canvas(exported, scored(*CLASS), column="Exercise 9", to=out)
    assert caught.value.found == "no assignment of that title"
    assert "did you mean 'Exercise 09'?" in caught.value.do
    exported.write_text("a,b\n1,2\n")
    with pytest.raises(errors.InvalidArgument) as caught:
        fill_canvas(exported, scored(*CLASS), column="Exercise 09", to=out)
    assert caught.value.found == "a table without the columns Student and ID"
    assert not out.exists()


def test_the_export_is_never_written_over(exported):
    with pytest.raises(errors.InvalidArgument, match="write to a different file"):
        fill_canvas(exported, scored(*CLASS), column="Exercise 09", to=exported)


def test_gradescopes_results_can_be_read_by_it():
    override = Given(points=10, comment="right idea")
    policy = Policy(overrides={("doejane", "12345", "first"): override})
    results = json.loads(json.dumps(gradescope_results(*scored(CLASS[0], policy=policy)[0])))
    assert results["score"] == 10
    (test,) = results["tests"]
    assert (test["name"], test["score"], test["max_score"]) == ("Shares", 10, 12.0)
    assert test["output"].startswith("first: not yet") and test["output"].endswith("right idea")


def test_gradescope_is_told_what_was_not_graded():
    results = gradescope_results(*scored(graded("a", "1", 0.0, problem="an empty file"))[0])
    assert results == {"score": 0.0, "output": "Not graded: an empty file", "tests": []}


def test_a_learner_has_a_results_json_that_gradescope_takes(tmp_path):
    """By the fields and values of Gradescope's documentation of its autograder."""
    handed = graded("doejane", "12345", 9.5, held=(Held(check="first", reason="ctypes"),))
    broken = graded("roeadam", "12399", 0.0, problem="an empty file\ud800")
    write_gradescope(tmp_path, scored(handed, broken))
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.json")) == [
        "doejane_12345/results.json",
        "roeadam_12399/results.json",
    ]
    for path in tmp_path.rglob("*.json"):
        results = json.loads(path.read_text(encoding="utf-8"))
        assert set(results) <= {"score", "output", "output_format", "tests"}
        assert results["score"] >= 0 and isinstance(results["output"], str)
        assert results.get("output_format", "text") == "text", "nothing of a learner's is HTML"
        for test in results["tests"]:
            assert {name: type(value) for name, value in test.items()} == {
                "name": str,
                "score": float,
                "max_score": float,
                "output": str,
                "output_format": str,
                "visibility": str,
            }
            assert 0 <= test["score"] <= test["max_score"]
            assert (test["output_format"], test["visibility"]) == ("text", "visible")
    (jane,) = json.loads((tmp_path / "doejane_12345" / "results.json").read_text())["tests"]
    assert "Held for review" in jane["output"] and "ctypes" not in jane["output"]


def test_gradescope_is_told_how_far_a_report_is_read(monkeypatch):
    report = WrittenReport("speed", "Speed", (RubricRow("why", 2, "says why"),))
    monkeypatch.setattr(gradable_exercises, "reports_of", lambda stem: (report,))
    one = graded("doejane", "12345", 9.5, written=(Written(report="speed", text="It is."),))
    test = gradescope_results(*scored(one)[0])["tests"][-1]
    assert (test["name"], test["score"], test["max_score"]) == ("Speed", 0.0, 2)
    assert test["output"] == "to be read\n\nwhy of 2", "the rubric gives answers away"
    rows = {("doejane", "12345", one.stem, "speed", "why"): Given(points=1.5, comment="nearly")}
    test = gradescope_results(*scored(one, policy=Policy(rows=rows))[0])["tests"][-1]
    assert (test["score"], test["output"]) == (1.5, "read\n\nsays why: 1.5 of 2. nearly")


def test_notebooks_of_two_exercises_are_not_mixed_into_one_column(exported, tmp_path):
    other = replace(graded("roeadam", "12399", 1.0), stem="08_save_and_load")
    both = scored(*CLASS, other)
    for write in (
        lambda: fill_canvas(exported, both, column="Exercise 09", to=tmp_path / "out.csv"),
        lambda: write_gradescope(tmp_path / "out", both),
    ):
        with pytest.raises(errors.InvalidArgument) as caught:
            write()
        assert caught.value.found == (
            "notebooks of 2 exercises: 09_multi_worker (2), 08_save_and_load (1); "
            "roeadam handed in 08_save_and_load"
        )
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.csv").exists()


def test_of_two_notebooks_of_a_learner_the_better_is_given_back(exported, tmp_path):
    both = [graded("doejane", "12345", 9.5), graded("doejane", "12345", 3.0)]
    fill_canvas(exported, scored(*both), column="Exercise 09", to=tmp_path / "out.csv")
    assert 'Doe, Jane",12345,jane,A,4,9.5,80' in (tmp_path / "out.csv").read_text("utf-8-sig")


def test_an_export_that_is_not_there_is_told(tmp_path):
    with pytest.raises(errors.InvalidArgument) as caught:
        fill_canvas(tmp_path / "no.csv", scored(), column="Exercise 09", to=tmp_path / "out.csv")
    assert caught.value.found.startswith("a file that cannot be read (")
