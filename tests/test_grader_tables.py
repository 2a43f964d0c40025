"""What learners earned, as tables in which nothing of theirs runs."""

import csv
from pathlib import Path

import pytest

from distlab import errors
from distlab.grader.scoring import (
    Graded,
    Held,
    Override,
    Policy,
    check_overrides,
    read_overrides,
    score_of,
)
from distlab.grader.submissions import Submission
from distlab.grader.tables import safe, write_gradebook, write_table
from distlab.grading.report import Report


def report(name, earned, *, mistake="", status="not yet"):
    return Report(
        name, name, "", status, earned, 4, mistake=mistake, mistake_says=f"about {mistake}"
    )


def graded(learner, *reports, stem="00_one", late=False, file="one.ipynb", **more):
    handed = Submission(
        learner=learner, path=Path(learner, file), name="one", is_late=late, user="7"
    )
    return Graded(submission=handed, stem=stem, reports=reports, **more)


JANE = graded("jane", report("first", 4, status="passed"), report("second", 3, mistake="by_half"))
JOHN = graded("john", report("first", 2, mistake="by_half"), report("second", 0), late=True)


def tables(folder, *everybody, policy=None):
    write_gradebook(everybody, policy or Policy(), folder)
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


def test_mistakes_are_counted_for_the_class(tmp_path):
    more = [graded(f"learner{n}", report("second", 3, mistake="by_half")) for n in range(3)]
    assert [
        (row["check"], row["mistake"], row["learners"], row["what to think about again"])
        for row in tables(tmp_path, JANE, JOHN, *more)["mistakes"]
    ] == [("second", "by_half", "4", "about by_half"), ("first", "by_half", "1", "about by_half")]


def test_being_late_costs_what_the_policy_says(tmp_path):
    there = tables(tmp_path, JANE, JOHN, policy=Policy(late_factor=0.75))
    assert [row["total"] for row in there["gradebook"]] == ["7", "1.5"]
    assert [row["earned"] for row in there["details"]] == ["4", "3", "2", "0"]
    with pytest.raises(errors.InvalidArgument, match="from 0 to 1"):
        Policy(late_factor=1.2)


def test_a_teachers_points_take_the_place_of_the_checks(tmp_path):
    path = tmp_path / "overrides.csv"
    path.write_text("learner,check,points,comment\njohn,second,3.5,right idea\n")
    policy = Policy(overrides=read_overrides(path))
    score = score_of(JOHN, policy)
    assert (score.earned, score.by_check) == (5.5, {"first": 2, "second": 3.5})
    assert score.comments == {"second": "right idea"}
    assert score_of(JANE, policy).earned == 7


@pytest.mark.parametrize(
    ("text", "line", "found"),
    [
        ("", 1, "no column 'learner' among none"),
        ("learner,points\n", 1, "no column 'check' among learner, points"),
        ("learner,check,points\na,b,3\na,c,many\n", 3, "points='many'"),
        ("learner,check,points\na,b,nan\n", 2, "points='nan'"),
        ("learner,check,points\na,b\n", 2, "points=None"),
        ("learner,check,points\na,b,1\na,b,2\n", 3, "a and b once more"),
    ],
)
def test_overrides_that_cannot_be_read_are_told_by_their_line(tmp_path, text, line, found):
    path = tmp_path / "overrides.csv"
    path.write_text(text)
    with pytest.raises(errors.InvalidArgument) as caught:
        read_overrides(path)
    assert (caught.value.asked, caught.value.found) == (f"overrides of {path}, line {line}", found)


@pytest.mark.parametrize(
    ("learner", "check", "found"),
    [("jan", "first", "no such learner"), ("jane", "frist", "no answer to that check of theirs")],
)
def test_an_override_that_meets_nothing_is_told(learner, check, found):
    policy = Policy(overrides={(learner, check): Override(points=1)})
    with pytest.raises(errors.InvalidArgument) as caught:
        check_overrides(policy, [JANE, JOHN])
    assert caught.value.found == found
    check_overrides(Policy(overrides={("jane", "first"): Override(points=1)}), [JANE])


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
