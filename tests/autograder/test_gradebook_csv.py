"""What learners earned, as tables in which nothing of theirs runs."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from distlab import errors
from distlab.autograder.gradebook.csv_writer import safe, write_table
from distlab.autograder.gradebook.gradebook_csv import write_gradebook
from distlab.autograder.gradebook.scores import Given, Graded, Held, Policy, score_of
from distlab.autograder.intake.submissions import Problem, Submission
from distlab.checks.endings import Ending
from distlab.checks.report import Report


def report(name, earned, *, mistake="", ending=Ending.NOT_YET):
    return Report(
        name, name, "", ending, earned, 4, mistake=mistake, mistake_says=f"about {mistake}"
    )


def graded(learner, *reports, stem="00_one", late=False, file="one.ipynb", **more):
    handed = Submission(
        learner=learner, path=Path(learner, file), name="one", is_late=late, user="7"
    )
    return Graded(submission=handed, stem=stem, reports=reports, **more)


JANE = graded(
    "jane", report("first", 4, ending=Ending.PASSED), report("second", 3, mistake="by_half")
)
JOHN = graded("john", report("first", 2, mistake="by_half"), report("second", 0), late=True)


def tables(folder, *everybody, policy=None):
    write_gradebook([(one, score_of(one, policy or Policy())) for one in everybody], folder)
    return {
        path.stem: list(csv.DictReader(path.open(newline="", encoding="utf-8-sig")))
        for path in folder.iterdir()
    }


def test_a_learner_has_a_row_with_each_exercise_and_the_total(tmp_path):
    other = graded("jane", report("third", 1), stem="01_two")
    assert tables(tmp_path, JANE, other, JOHN)["gradebook"] == [
        {
            "learner": "jane",
            "user": "7",
            "00_one (of 8)": "7",
            "01_two (of 4)": "1",
            "total": "8",
            "late": "0",
            "held for review": "0",
            "to be read": "",
            "not graded": "",
        },
        {
            "learner": "john",
            "user": "7",
            "00_one (of 8)": "2",
            "01_two (of 4)": "",
            "total": "2",
            "late": "1",
            "held for review": "0",
            "to be read": "",
            "not graded": "",
        },
    ]


def test_what_could_not_be_graded_is_told_and_not_left_out(tmp_path):
    broken = graded("jane", stem="", problem="an empty file")
    there = tables(tmp_path, broken, JOHN)
    assert there["gradebook"][0]["not graded"] == "one.ipynb: an empty file"
    assert there["gradebook"][0]["00_one (of 8)"] == ""
    assert there["review"] == [
        {
            "learner": "jane",
            "user": "7",
            "file": "one.ipynb",
            "check": "",
            "why": "not graded: an empty file",
            "would earn": "",
        }
    ]


def test_of_two_notebooks_for_one_exercise_the_better_counts(tmp_path):
    again = graded("jane", report("first", 1), file="other.ipynb")
    there = tables(tmp_path, JANE, again)
    assert [row["total"] for row in there["gradebook"]] == ["7"]
    assert len(there["details"]) == 3


def test_what_is_held_stands_in_the_review_with_its_reason(tmp_path):
    one = graded(
        "jane",
        report("first", 4),
        held=(Held(check="first", reason="cell 3, line 2: imports ctypes"),),
        notes=("the line '# task: first' is gone",),
    )
    there = tables(tmp_path, one)
    assert [(row["check"], row["why"]) for row in there["review"]] == [
        ("first", "cell 3, line 2: imports ctypes"),
        ("", "the line '# task: first' is gone"),
    ]
    assert there["gradebook"][0]["held for review"] == "1"


def test_points_of_what_is_held_wait_until_a_teacher_gives_some(tmp_path):
    held = (Held(check="first", reason="cell 3: imports ctypes"),)
    one = graded("jane", report("first", 4), report("second", 1), held=held)
    there = tables(tmp_path, one)
    assert there["gradebook"][0]["total"] == "1"
    assert [(row["check"], row["earned"]) for row in there["details"]] == [
        ("first", "0"),
        ("second", "1"),
    ]
    assert there["review"][0]["would earn"] == "4"
    there = tables(
        tmp_path, one, policy=Policy(overrides={("jane", "7", "first"): Given(points=3)})
    )
    assert there["gradebook"][0]["total"] == "4"
    assert there["gradebook"][0]["held for review"] == "0"
    assert there["review"][0]["would earn"] == "decided"


def test_notebooks_that_do_not_count_stand_in_the_review(tmp_path):
    left_out = [Problem(path=Path("jane/old/one.ipynb"), says="jane/one.ipynb counts")]
    write_gradebook([], tmp_path, left_out=left_out)
    text = (tmp_path / "review.csv").read_text(encoding="utf-8-sig")
    assert ",,jane/old/one.ipynb,,left out: jane/one.ipynb counts" in text


def test_a_notebook_that_bears_the_name_of_another_exercise_stands_in_the_review(tmp_path):
    handed = replace(JANE.submission, name="00_start_here")
    other = replace(JANE, submission=handed, stem="01_mirrored_strategy")
    (row,) = tables(tmp_path, other, replace(other, stem="00_start_here"), JOHN)["review"]
    assert row["why"] == "named 00_start_here, and the tasks are those of 01_mirrored_strategy"


def test_mistakes_are_counted_for_the_class(tmp_path):
    again = graded("jane", report("second", 3, mistake="by_half"), file="again.ipynb")
    more = [graded(f"learner{n}", report("second", 3, mistake="by_half")) for n in range(3)]
    assert [
        (row["check"], row["mistake"], row["learners"], row["what to think about again"])
        for row in tables(tmp_path, JANE, again, JOHN, *more)["mistakes"]
    ] == [("second", "by_half", "4", "about by_half"), ("first", "by_half", "1", "about by_half")]


def test_being_late_costs_what_the_policy_says(tmp_path):
    there = tables(tmp_path, JANE, JOHN, policy=Policy(late_factor=0.75))
    assert [row["total"] for row in there["gradebook"]] == ["7", "1.5"]
    assert [row["earned"] for row in there["details"]] == ["4", "3", "2", "0"]
    with pytest.raises(errors.InvalidArgument, match="from 0 to 1"):
        Policy(late_factor=1.2)


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        (" =1", "' =1"),
        ("\t=1", "' =1"),
        ("\x00=1", "' =1"),
        ("a\r\n=1", "a  =1"),
        ("jane, doe", "jane, doe"),
        ("Zoë", "Zoë"),
        (-1.5, "-1.5"),
        (7.0, "7"),
    ],
)
def test_no_cell_is_a_formula(cell, shown):
    assert safe(cell) == shown


def test_a_table_is_replaced_whole(tmp_path):
    path = tmp_path / "one.csv"
    write_table(path, [["a"], [1]])

    def rows():
        yield ["b"]
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError):
        write_table(path, rows())
    assert path.read_text(encoding="utf-8-sig").split() == ["a", "1"]
