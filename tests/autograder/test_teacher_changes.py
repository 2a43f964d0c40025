"""A teacher's own points take the place of the checks', and a row that meets nothing is told."""

from pathlib import Path

import pytest

from distlab import errors
from distlab.autograder.gradebook.manual_points import given_by_hand
from distlab.autograder.gradebook.people import People
from distlab.autograder.gradebook.scores import Given, Graded, Policy, score_of
from distlab.autograder.gradebook.teacher_changes import check_overrides, read_overrides
from distlab.autograder.intake.gradable_exercises import Lessons
from distlab.autograder.intake.report_submission import Written
from distlab.autograder.intake.submissions import Submission
from distlab.checks.endings import Ending
from distlab.checks.report import Report


def graded(learner, *, user="", written=()):
    handed = Submission(learner=learner, path=Path(learner, "one.ipynb"), name="one", user=user)
    reports = tuple(
        Report(name, name, "", Ending.NOT_YET, earned, 4)
        for name, earned in {"first": 2, "second": 0}.items()
    )
    return Graded(submission=handed, stem="00_one", reports=reports, written=written)


JANE, JOHN = graded("jane"), graded("john")
CLASS = People([JANE.submission, JOHN.submission])


@pytest.fixture
def overrides(tmp_path):
    def read(text, people=CLASS):
        path = tmp_path / "overrides.csv"
        path.write_text(text)
        return read_overrides(path, people)

    return read


def test_a_teachers_points_take_the_place_of_the_checks(overrides):
    given = overrides("learner,check,points,comment\njohn,second,3.5,right idea\n")
    score = score_of(JOHN, Policy(overrides=given))
    assert (score.earned, score.by_check) == (5.5, {"first": 2, "second": 3.5})
    assert score.comments == {"second": "right idea"}
    assert score_of(JANE, Policy(overrides=given)).earned == 2


def test_a_comment_alone_leaves_the_points_as_they_are(overrides):
    given = overrides("learner,check,points,comment\njohn,first,,look at line 3\n")
    score = score_of(JOHN, Policy(overrides=given))
    assert (score.by_check["first"], score.comments) == (2, {"first": "look at line 3"})


def test_of_two_learners_of_one_name_the_user_tells_who_is_meant(overrides):
    one, two = graded("doe", user="1"), graded("doe", user="2")
    people = People([one.submission, two.submission])
    given = overrides("learner,user,check,points\ndoe,2,first,4\n", people)
    earned = [score_of(each, Policy(overrides=given)).by_check["first"] for each in (one, two)]
    assert earned == [2, 4]
    with pytest.raises(errors.InvalidArgument) as caught:
        overrides("learner,check,points\ndoe,first,4\n", people)
    assert caught.value.found == "2 learners named 'doe'"
    assert caught.value.do == "write one of their numbers in the column 'user': 1, 2"


@pytest.mark.parametrize("user", ["12345678901234567", "1.23457E+16", ""])
def test_a_number_that_a_spreadsheet_has_rounded_does_not_matter(overrides, user):
    jane = graded("jane", user="12345678901234567")
    given = overrides(
        f"learner,user,check,points\njane,{user},first,4\n", People([jane.submission])
    )
    assert score_of(jane, Policy(overrides=given)).by_check["first"] == 4


@pytest.mark.parametrize(
    ("rows", "line", "found"),
    [
        ("john,first,3\njane,first,many\n", 3, "points='many'"),
        ("john,first,nan\n", 2, "points='nan'"),
        ("john,first\n", 2, "points=''"),
        ("john,first,1\njohn,first,2\n", 3, "two rows for john and first"),
        ("jon,first,1\n", 2, "no such learner: 'jon'"),
    ],
)
def test_rows_that_cannot_be_meant_are_told_by_their_line(overrides, tmp_path, rows, line, found):
    with pytest.raises(errors.InvalidArgument) as caught:
        overrides(f"learner,check,points\n{rows}")
    asked = f"overrides of {tmp_path / 'overrides.csv'}, line {line}"
    assert (caught.value.asked, caught.value.found) == (asked, found)


def test_a_wrong_column_is_told(overrides):
    with pytest.raises(errors.InvalidArgument) as caught:
        overrides("learner,task,points\njohn,first,1\n")
    assert caught.value.found == "no column 'check' among learner, task, points"
    assert caught.value.do == "begin with the line learner,check,points,comment"


def test_a_check_that_is_misspelt_is_told():
    with pytest.raises(errors.InvalidArgument) as caught:
        check_overrides({("jane", "", "frist"): Given(points=1)}, [JANE])
    assert caught.value.found == "no answer of 'jane' to that check"
    assert caught.value.do.startswith("did you mean 'first'?")
    check_overrides({("jane", "", "first"): Given(points=1)}, [JANE])


def test_a_report_is_not_overridden_but_filled_in():
    jane = graded("jane", written=(Written(report="speed"),))
    with pytest.raises(errors.InvalidArgument) as caught:
        check_overrides({("jane", "", "speed"): Given(points=1)}, [jane])
    assert caught.value.do == "give its points in reports.csv, because it is a report"


def broken(learner, name="one"):
    handed = Submission(learner=learner, path=Path(learner, f"{name}.ipynb"), name=name)
    return Graded(submission=handed, problem="no JSON")


def by_hand(graded, **points):
    """What becomes of the notebooks, with jane's points for checks."""
    overrides = {("jane", "", check): Given(points=given) for check, given in points.items()}
    found = given_by_hand(graded, overrides, Lessons())
    check_overrides(overrides, found)
    return [(one.stem, score_of(one, Policy(overrides=overrides)).earned) for one in found]


def test_points_count_for_a_notebook_that_cannot_be_graded():
    assert by_hand([broken("jane"), broken("john")], slices=2, who_saw=1) == [
        ("00_start_here", 3),
        ("", 0),
    ]


def test_points_count_for_the_broken_one_of_two_notebooks():
    assert by_hand([JANE, broken("jane")], first=4, slices=2) == [
        ("00_one", 4),
        ("00_start_here", 2),
    ]
    attic = broken("jane", "old")
    assert by_hand([attic, broken("jane", "00_start_here")], slices=2) == [
        ("", 0),
        ("00_start_here", 2),
    ]


def test_a_check_that_is_misspelt_is_told_also_where_the_notebook_is_broken():
    with pytest.raises(errors.InvalidArgument) as caught:
        by_hand([broken("jane"), JOHN], frist=2)
    assert caught.value.do.startswith("did you mean 'first'?")
    with pytest.raises(errors.InvalidArgument) as caught:
        by_hand([broken("jane")], frist=2)
    assert caught.value.do == "correct the name: no exercise has such a check"


def test_an_override_for_somebody_who_is_not_graded_now_may_wait():
    check_overrides({("john", "", "first"): Given(points=1)}, [JANE])
