"""A folder of submissions becomes a gradebook: real exercises, real processes."""

import csv
import os
import shutil
import signal
import subprocess
import sys

import pytest

from distlab import cli, errors
from distlab.autograder import grade_one
from distlab.autograder.grade_one import GradingOptions, Marker
from distlab.autograder.intake.notebook_file import open_notebook
from distlab.autograder.intake.submissions import find_submissions
from distlab.autograder.isolation.limits import Limits
from distlab.autograder.run import grade
from distlab.checks.registry import checks_of
from distlab.exercise.building import BuildOptions, build_editions
from distlab.exercise.new_exercise import make_exercise
from tests.support.repository import ROOT

STEM = "00_start_here"
POINTS = sum(check.points for check in checks_of(STEM))
PRIVATE = """
from distlab.checks import Check, Verdict, expect_equal

CHECKS = (
    Check(
        name="slices_of_seven", function="split", title="Seven", points=5,
        inputs=lambda seed: {}, call=lambda split, inputs: split(7, 4),
        judge=lambda inputs, outputs: Verdict.of(
            expect_equal("of seven", yours=outputs, expected=[2, 2, 2, 1])
        ),
        hint="", revisit="",
    ),
)
"""


def hand_in(folder, learner, edition):
    folder = folder / learner
    folder.mkdir(parents=True)
    shutil.copy(ROOT / edition / f"{STEM}.ipynb", folder)
    return folder / f"{STEM}.ipynb"


def edit(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def table(path):
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def handed(tmp_path_factory):
    """Submissions: one right, one untouched, one that never ends, and one that is no notebook."""
    folder = tmp_path_factory.mktemp("handed-in")
    hand_in(folder, "jane", "solutions")
    hand_in(folder, "john", "exercises")
    edit(hand_in(folder, "roe", "solutions"), "def split(", "while True: pass\\ndef split(")
    (folder / "broken.ipynb").write_text("{")
    return folder


@pytest.fixture(scope="module")
def graded(handed, tmp_path_factory):
    """The folder, what was returned, and what was said meanwhile."""
    out, said = tmp_path_factory.mktemp("out"), []
    before = {path: path.stat().st_mtime_ns for path in handed.rglob("*")}
    limits = Limits(secs=15)
    result = grade(handed, out, GradingOptions(allow_root=True, limits=limits), say=said.append)
    assert {path: path.stat().st_mtime_ns for path in handed.rglob("*")} == before
    return out, result, said


def test_the_gradebook_has_everybody(graded):
    out, _, _ = graded
    earned = {
        row["learner"]: row[f"{STEM} (of {POINTS:g})"] for row in table(out / "gradebook.csv")
    }
    assert earned == {"broken": "", "jane": f"{POINTS:g}", "john": "0", "roe": f"{POINTS - 2:g}"}


def test_an_answer_that_never_ends_costs_nobody_else_anything(graded):
    _, result, _ = graded
    (roe,) = (one for one in result.graded if one.submission.learner == "roe")
    assert [report.status for report in roe.reports] == [
        "ran out of time",
        *["passed"] * (len(checks_of(STEM)) - 1),
    ]
    lines = repr(roe.reports[0]).splitlines()
    assert lines[1:3] == [
        "  Your code was still running at the time limit. It was stopped after 15 seconds. "
        "It was at this line:",
        "    line 2 in cell 7: while True: pass",
    ]
    assert [line.split(":")[0].strip() for line in lines[3:]] == ["Hint", "Read again"]


def test_each_notebook_has_its_page(graded):
    out, _, _ = graded
    pages = sorted(path.relative_to(out).as_posix() for path in (out / "feedback").rglob("*.html"))
    assert pages == [
        "feedback/broken/broken.html",
        *(f"feedback/{learner}/{STEM}.html" for learner in ("jane", "john", "roe")),
    ]
    assert f"{POINTS:g} of {POINTS:g} points" in (out / pages[1]).read_text(encoding="utf-8")


def test_what_is_going_on_is_said(graded):
    _, _, said = graded
    assert said[0].startswith("4 notebooks to grade, 0 graded before; seed ")
    assert len(said) == 5
    assert any("broken.ipynb  not graded: a file that is not JSON" in line for line in said)


def test_run_again_it_grades_nothing_that_was_graded(graded, handed):
    out, result, _ = graded
    said = []
    options = GradingOptions(allow_root=True, limits=Limits(secs=15))
    again = grade(handed, out, options, say=said.append)
    assert said[0].startswith("0 notebooks to grade, 4 graded before; seed ")
    assert again == result


def test_what_was_handed_in_since_is_graded_and_the_rest_stays(graded, handed, tmp_path):
    out, _, _ = graded
    folder, copy = tmp_path / "in", tmp_path / "out"
    shutil.copytree(handed, folder)
    shutil.copytree(out, copy)
    hand_in(folder, "new", "solutions")
    said = []
    options = GradingOptions(allow_root=True, limits=Limits(secs=15))
    grade(folder, copy, options, say=said.append)
    assert said[0].startswith("1 notebooks to grade, 4 graded before")
    assert len(table(copy / "gradebook.csv")) == 5


def test_one_learner_can_be_graded_again(graded, handed, tmp_path):
    out, result, _ = graded
    copy = shutil.copytree(out, tmp_path / "out")
    said = []
    options = GradingOptions(allow_root=True, limits=Limits(secs=15), only=("jane",), again=True)
    assert grade(handed, copy, options, say=said.append) == result
    assert said[0].startswith("1 notebooks to grade, 3 graded before")
    with pytest.raises(errors.InvalidArgument) as caught:
        grade(handed, copy, GradingOptions(only=("jan",)))
    assert (caught.value.found, caught.value.do) == (
        "no submission of that learner",
        "did you mean 'jane'? Or choose one of 'broken', 'jane', 'john', 'roe'",
    )


def test_a_teachers_own_checks_ask_the_same_answers(tmp_path):
    hand_in(tmp_path / "in", "jane", "solutions")
    private = tmp_path / "private.py"
    private.write_text(PRIVATE)
    options = GradingOptions(allow_root=True, extra_checks=private)
    (jane,) = grade(tmp_path / "in", tmp_path / "out", options).graded
    assert (jane.reports[-1].name, jane.reports[-1].earned) == ("slices_of_seven", 5)


def test_a_teachers_own_exercise_is_graded_like_the_others(tmp_path):
    own = make_exercise("20_my_topic", folder=tmp_path / "mine")
    build_editions([own.source], BuildOptions(out=tmp_path / "built"))
    for learner, edition in (("jane", "solutions"), ("john", "exercises")):
        (tmp_path / "in" / learner).mkdir(parents=True)
        shutil.copy(tmp_path / "built" / edition / "20_my_topic.ipynb", tmp_path / "in" / learner)
    options = GradingOptions(allow_root=True, extra_checks=own.checks)
    jane, john = grade(tmp_path / "in", tmp_path / "out", options).graded
    assert (jane.stem, [r.status for r in jane.reports]) == ("20_my_topic", ["passed"])
    assert [r.status for r in john.reports] == ["not started"]


REPORT = """
from distlab.checks.rubric import RubricRow, WrittenReport

REPORTS = (WrittenReport("speed", "Speed", (RubricRow("jump", 2, "names the jump"),)),)
"""
REPORT_CELLS = """
# %%
# report: speed
print("a picture")

# %% [markdown]
# <!-- report: speed -->
# What do you see?
#
# <!-- BEGIN SOLUTION -->
# It jumps.
# <!-- STUB -->
# *Your answer.*
# <!-- END SOLUTION -->
"""


def own_exercise_with_a_report(folder):
    own = make_exercise("20_my_topic", folder=folder / "mine")
    for path, more in ((own.checks, REPORT), (own.source, REPORT_CELLS)):
        path.write_text(path.read_text(encoding="utf-8") + more, encoding="utf-8")
    build_editions([own.source], BuildOptions(out=folder / "built"))
    for learner, edition in (("jane", "solutions"), ("john", "exercises")):
        (folder / "in" / learner).mkdir(parents=True)
        shutil.copy(folder / "built" / edition / "20_my_topic.ipynb", folder / "in" / learner)
    return own


@pytest.mark.parametrize("where", ["mine", "built/exercises", "built/solutions"])
def test_reports_of_a_teachers_own_exercise_are_read_too(tmp_path, where):
    own_exercise_with_a_report(tmp_path)
    checks = tmp_path / where / "lesson_20_my_topic.py"
    options = GradingOptions(allow_root=True, extra_checks=checks)
    grade(tmp_path / "in", tmp_path / "out", options)
    path = tmp_path / "out" / "reports.csv"
    rows = table(path)
    assert [(row["learner"], row["exercise"], row["status"]) for row in rows] == [
        ("jane", "20_my_topic", "to be read"),
        ("john", "20_my_topic", "nothing written"),
    ]
    path.write_text(path.read_text(encoding="utf-8").replace("jump,2,,", "jump,2,1.5,", 1))
    jane, john = grade(tmp_path / "in", tmp_path / "out", options).scored
    assert [(score.earned, score.points) for _, score in (jane, john)] == [(3.5, 4), (0, 4)]
    with pytest.raises(errors.InvalidArgument) as caught:
        grade(tmp_path / "in", tmp_path / "out", GradingOptions(allow_root=True))
    assert caught.value.found == "no exercise '20_my_topic' there"
    assert caught.value.do.endswith("for an exercise of your own give --extra-checks")


def test_a_notebook_that_breaks_the_grader_costs_nobody_else_anything(tmp_path, monkeypatch):
    for learner in ("jane", "john"):
        hand_in(tmp_path / "in", learner, "exercises")

    def breaks(path):
        if path.parent.name == "john":
            raise RecursionError("too deep")
        return open_notebook(path)

    monkeypatch.setattr(grade_one, "open_notebook", breaks)
    jane, john = grade(tmp_path / "in", tmp_path / "out", GradingOptions(allow_root=True)).graded
    assert jane.problem == ""
    assert john.problem == "a notebook that broke the grader (RecursionError: too deep)"


def test_a_learner_whose_name_is_no_text_is_graded(tmp_path):
    folder = tmp_path / "in" / os.fsdecode(b"jane\xff")
    try:
        hand_in(folder.parent, folder.name, "solutions")
    except OSError:
        pytest.skip("a system without such names")
    (jane,) = grade(tmp_path / "in", tmp_path / "out", GradingOptions(allow_root=True)).scored
    assert jane[1].earned == POINTS


def test_each_learner_has_other_inputs_and_the_same_ones_again(handed):
    submissions = find_submissions(handed).submissions
    with Marker(GradingOptions(), seed=1) as one, Marker(GradingOptions(), seed=2) as other:
        drawn = [one._seeds("slices", submission) for submission in submissions]
        assert drawn == [one._seeds("slices", submission) for submission in submissions]
        assert len(set(drawn)) == len(submissions)
        assert other._seeds("slices", submissions[0]) != drawn[0]


@pytest.mark.parametrize(
    ("place", "found"),
    [
        ("in/out", "a folder inside the submissions"),
        ("other", "a folder with other files"),
        ("file", "a file"),
    ],
)
def test_results_go_where_nothing_can_be_lost(tmp_path, place, found):
    hand_in(tmp_path / "in", "jane", "exercises")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "gradebook.csv").write_text("mine")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(errors.InvalidArgument) as caught:
        grade(tmp_path / "in", tmp_path / place)
    assert caught.value.found == found
    assert not (tmp_path / "in" / "out").exists()


def test_another_seed_in_the_same_place_is_refused(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "broken.ipynb").write_text("{")
    grade(tmp_path / "in", tmp_path / "out", GradingOptions(seed=3))
    with pytest.raises(errors.InvalidArgument, match="an earlier run with the seed 3"):
        grade(tmp_path / "in", tmp_path / "out", GradingOptions(seed=4))


def test_the_command_grades_and_fills_canvas(tmp_path, capsys):
    folder = tmp_path / "in"
    folder.mkdir()
    name = f"doejane_LATE_12345_678_{STEM}.ipynb"
    shutil.copy(ROOT / "solutions" / f"{STEM}.ipynb", folder / name)
    export = tmp_path / "grades.csv"
    export.write_text('Student,ID,Exercise 00 (811)\n"Doe, Jane",12345,\n')
    arguments = ["grade", str(folder), "--out", str(tmp_path / "out"), "--allow-root"]
    arguments += ["--late", "0.5", "--canvas", str(export), "Exercise 00"]
    assert cli.main(arguments) == 0
    assert f"1 hand-ins, of which 0 could not be graded: {tmp_path / 'out'}" in (
        capsys.readouterr().out
    )
    (row,) = table(tmp_path / "out" / "canvas.csv")
    assert row["Exercise 00 (811)"] == f"{POINTS / 2:g}"


def test_an_interrupt_ends_what_runs_and_the_next_run_goes_on(tmp_path):
    for learner in ("jane", "john"):
        path = hand_in(tmp_path / "in", learner, "solutions")
        if learner == "john":
            edit(path, "def split(", "while True: pass\\ndef split(")
    command = [sys.executable, "-m", "distlab.cli", "grade", str(tmp_path / "in")]
    command += ["--out", str(tmp_path / "out"), "--jobs", "1", "--secs", "600", "--allow-root"]
    run = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert run.stderr is not None
    while not run.stderr.readline().startswith("1/2  jane"):
        assert run.poll() is None
    run.send_signal(signal.SIGINT)
    assert run.wait(timeout=60) == 130
    assert len(list((tmp_path / "out" / "records").glob("*.json"))) == 1


def test_root_is_told(tmp_path, capsys):
    hand_in(tmp_path / "in", "jane", "solutions")
    code = cli.main(["grade", str(tmp_path / "in"), "--out", str(tmp_path / "out")])
    if os.geteuid() == 0:
        assert code == 2 and "--allow-root" in capsys.readouterr().err
    else:
        assert code == 0
