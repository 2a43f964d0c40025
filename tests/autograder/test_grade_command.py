"""`distlab grade` as a teacher uses it: reports read by hand, and a wrong move at each turn."""

import base64
import csv
import hashlib
import io
import json
import os
import shutil
import stat
import tempfile
from pathlib import Path

import pytest
from PIL import Image

from distlab import cli
from distlab.autograder import run as run_module
from distlab.autograder.grade_one import GradingOptions
from distlab.autograder.run import grade
from distlab.checks import lesson_00_start_here
from distlab.checks.rubric import RubricRow, WrittenReport

STEM = "00_start_here"
POINTS = sum(check.points for check in lesson_00_start_here.CHECKS)
SPEED = WrittenReport("speed", "Speed", (RubricRow("jump", 2, "names it"),))
EVIL = "<script>alert(1)</script>"


def code(source, *outputs):
    return {"cell_type": "code", "source": source, "outputs": list(outputs)}


def hand_in(folder, learner, text, name=f"{STEM}.ipynb"):
    """A notebook with one small answer and a report."""
    file = io.BytesIO()
    Image.new("RGB", (3, 2), "red").save(file, "PNG")
    picture = {"data": {"image/png": base64.b64encode(file.getvalue()).decode()}}
    cells = [
        code("# task: slices\ndef split(examples, replicas):\n    return []"),
        code("# report: speed\n1 / 0  # never run", picture),
        {"cell_type": "markdown", "source": f"<!-- report: speed -->\n{text}"},
    ]
    (folder / learner).mkdir(parents=True, exist_ok=True)
    (folder / learner / name).write_text(json.dumps({"cells": cells}))


def tree(folder):
    """All that a folder holds, to the bit."""
    return {
        path: (stat.S_IMODE(path.stat().st_mode), path.stat().st_mtime_ns, _digest(path))
        for path in [folder, *folder.rglob("*")]
    }


def _digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def table(path):
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def run(folder, *more):
    return cli.main(["grade", str(folder / "in"), "--out", str(folder / "out"), *more])


def test_reports_are_read_by_a_teacher(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(lesson_00_start_here, "REPORTS", (SPEED,), raising=False)
    hand_in(tmp_path / "in", "jane", EVIL)
    hand_in(tmp_path / "in", "john", "")
    before = tree(tmp_path / "in")
    assert run(tmp_path, "--allow-root", "--gradescope") == 0
    out, told = tmp_path / "out", capsys.readouterr().out
    assert "reports still to be read: 1; until then their points are missing." in told
    marks = out / "reports.csv"
    assert [(row["learner"], row["points"], row["status"]) for row in table(marks)] == [
        ("jane", "", "to be read"),
        ("john", "", "nothing written"),
    ]
    page = (out / "feedback" / "jane" / f"{STEM}.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;" in page and EVIL not in page and "img-src data:;" in page
    assert page.count('src="data:image/png;base64,') == 1 and "names it" not in page

    marks.write_text(marks.read_text(encoding="utf-8-sig").replace(",2,,,", ",2,1.5,nearly,", 1))
    assert run(tmp_path, "--allow-root", "--gradescope") == 0
    again = capsys.readouterr()
    assert "reports still" not in again.out and "0 notebooks to grade" in again.err
    jane, _ = table(out / "gradebook.csv")
    earned = float(jane[f"{STEM} (of {POINTS + 2:g})"])
    page = (out / "feedback" / "jane" / f"{STEM}.html").read_text(encoding="utf-8")
    assert "read by your teacher</b> (1.5 of 2 points)" in page and "<td>nearly</td>" in page
    results = json.loads((out / "gradescope" / "jane" / "results.json").read_text())
    assert results["score"] == earned == sum(test["score"] for test in results["tests"])
    assert results["tests"][-1]["score"] == 1.5
    assert tree(tmp_path / "in") == before


@pytest.fixture
def broken(tmp_path):
    """A folder whose one notebook needs no process."""
    (tmp_path / "in" / "jane").mkdir(parents=True)
    (tmp_path / "in" / "jane" / "one.ipynb").write_text("{")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "found", "do"),
    [
        (["--only", "jan"], "no submission of that learner", "did you mean 'jane'?"),
        (["--late", "80"], "late_factor=80", "0.8 takes a fifth off; for 80 % write 0.8"),
        (["--late", "-1"], "late_factor=-1", "from 0 to 1"),
        (["--jobs", "0"], "jobs=0", "give 1 or more"),
        (["--secs", "0"], "secs=0.0", "give a number above 0"),
        (["--exercise", "00_one"], "neither --canvas nor --gradescope", "add one of them"),
        (["--overrides", "none.csv"], "nothing to read (No such file", "give a CSV file"),
        (["--overrides", "task.csv"], "no column 'check' among learner, task", "begin with the"),
        (["--extra-checks", "none.py"], "nothing to read (No such file", "give a Python file with"),
        (["--canvas", "none.csv", "One"], "a file that cannot be read (", "export the gradebook"),
    ],
)
def test_a_wrong_option_is_told_with_what_to_do(broken, capsys, monkeypatch, arguments, found, do):
    monkeypatch.chdir(broken)
    Path("task.csv").write_text("learner,task,points\njane,slices,1\n")
    assert run(broken, *arguments) == 2
    told = capsys.readouterr().err
    assert f"found: {found}" in told and do in told


@pytest.mark.parametrize(
    ("folder", "out", "found", "do"),
    [
        ("none", "out", "no folder of that name", "give the folder that holds the submissions"),
        ("in/jane/one.ipynb", "out", "a file", "give the folder that it lies in: in/jane"),
        ("in", "in/out", "a folder inside the submissions", "give a folder outside of them"),
        ("in", "in", "a folder inside the submissions", "give a folder outside of them"),
        ("other", "done", "the results of ", "give a different folder for these results"),
        ("in", "other", "a folder with other files", "give a new folder, or that of an earlier"),
    ],
)
def test_a_wrong_folder_is_told_with_what_to_do(
    broken, capsys, monkeypatch, folder, out, found, do
):
    monkeypatch.chdir(broken)
    shutil.copytree("in", "other")
    Path("other", "jane", "one.ipynb").rename(Path("other", "jane", "two.ipynb"))
    assert cli.main(["grade", "in", "--out", "done"]) == 0
    before = tree(broken)
    assert cli.main(["grade", folder, "--out", out]) == 2
    told = capsys.readouterr().err
    assert f"found: {found}" in told and do in told
    assert tree(broken) == before


def test_one_learner_again_leaves_all_others_in_the_gradebook_whatever_has_changed(broken, capsys):
    shutil.copytree(broken / "in" / "jane", broken / "in" / "john")
    assert run(broken) == 0
    (broken / "extra.py").write_text("CHECKS = ()")
    assert run(broken, "--only", "jane", "--extra-checks", str(broken / "extra.py")) == 0
    assert "1 notebooks to grade, 1 graded before" in capsys.readouterr().err
    assert [row["learner"] for row in table(broken / "out" / "gradebook.csv")] == ["jane", "john"]


def test_a_notebook_that_cannot_be_graded_gets_the_points_that_a_teacher_gives(broken):
    (broken / "mine.csv").write_text("learner,check,points,comment\njane,slices,1.5,on paper\n")
    assert run(broken, "--gradescope", "--overrides", str(broken / "mine.csv")) == 0
    out = broken / "out"
    (jane,) = table(out / "gradebook.csv")
    assert (jane[f"{STEM} (of {POINTS:g})"], jane["not graded"]) == ("1.5", "")
    (row,) = table(out / "review.csv")
    assert row["why"].startswith("not graded: a file that is not JSON")
    page = (out / "feedback" / "jane" / f"{STEM}.html").read_text(encoding="utf-8")
    assert "not graded: a file that is not JSON" in page and "on paper" in page
    results = json.loads((out / "gradescope" / "jane" / "results.json").read_text())
    assert results["score"] == 1.5
    assert run(broken) == 0
    (jane,) = table(out / "gradebook.csv")
    assert jane["total"] == "0" and jane["not graded"].startswith("one.ipynb: a file that is no")


def test_what_the_last_run_was_given_and_this_one_not_is_told_once(broken, capsys, monkeypatch):
    monkeypatch.chdir(broken)
    Path("mine.csv").write_text("learner,check,points\njane,slices,1.5\n")
    assert run(broken, "--late", "0.8", "--overrides", "mine.csv") == 0
    assert run(broken, "--late", "0.5") == 0
    told = capsys.readouterr().err
    assert "the last run had --overrides mine.csv, and this one has not" in told
    assert "--late" not in told
    assert run(broken) == 0
    told = capsys.readouterr().err
    assert "the last run had --late 0.5, and this one has not" in told
    assert run(broken) == 0
    assert "the last run" not in capsys.readouterr().err


def test_points_are_given_back_of_the_exercise_that_is_named(broken, capsys, monkeypatch):
    monkeypatch.chdir(broken)
    shutil.copytree(broken / "in" / "jane", broken / "in" / "john")
    Path("mine.csv").write_text("learner,check,points\njane,slices,2\njohn,scope,1\n")
    more = ("--gradescope", "--overrides", "mine.csv")
    assert run(broken, *more) == 2
    assert "such as --exercise 00_start_here" in capsys.readouterr().err
    assert run(broken, *more, "--exercise", "00_start") == 2
    assert "did you mean '00_start_here'?" in capsys.readouterr().err
    assert run(broken, *more, "--exercise", "00_start_here") == 0
    assert "no notebook of 00_start_here, so no points are given back: john" in (
        capsys.readouterr().err
    )
    assert [path.name for path in (broken / "out" / "gradescope").iterdir()] == ["jane"]


def test_who_handed_in_something_else_is_in_the_table_of_what_to_look_at(broken):
    (broken / "in" / "john").mkdir()
    (broken / "in" / "john" / "report.pdf").write_text("%PDF")
    assert run(broken) == 0
    jane, john = table(broken / "out" / "review.csv")
    assert jane["why"].startswith("not graded: a file that is not JSON")
    assert (john["learner"], john["why"]) == ("john", "not graded: not a notebook (.ipynb)")


def test_a_learner_without_a_notebook_has_a_row_a_page_and_points_by_hand(broken, capsys):
    (broken / "in" / "john").mkdir()
    (broken / "in" / "john" / "report.pdf").write_text("%PDF")
    (broken / "in" / "roe").mkdir()
    assert run(broken) == 0
    out = broken / "out"
    rows = {row["learner"]: row["not graded"] for row in table(out / "gradebook.csv")}
    assert rows["john"] == "report.pdf: not a notebook (.ipynb)"
    assert rows["roe"] == "roe: an empty folder"
    assert "3 hand-ins, of which 3 could not be graded" in capsys.readouterr().out
    page = (out / "feedback" / "john" / "report.html").read_text(encoding="utf-8")
    assert "<b>Not graded:</b> not a notebook (.ipynb)" in page
    assert "<li>roe: an empty folder</li>" in (out / "class.html").read_text(encoding="utf-8")
    (broken / "mine.csv").write_text("learner,check,points\njohn,slices,1.5\n")
    assert run(broken, "--overrides", str(broken / "mine.csv")) == 0
    points = {row["learner"]: row["total"] for row in table(out / "gradebook.csv")}
    assert points["john"] == "1.5"


def test_the_console_says_the_points_of_the_gradebook(tmp_path, capsys):
    held = "# task: slices\nimport ctypes\ndef split(examples, replicas):\n"
    held += "    piece = -(-examples // replicas)\n"
    held += "    return [max(0, min(piece, examples - piece * n)) for n in range(replicas)]\n"
    (tmp_path / "in").mkdir()
    cells = {"cells": [code(held)]}
    (tmp_path / "in" / "jane_LATE_1_2_one.ipynb").write_text(json.dumps(cells))
    assert run(tmp_path, "--allow-root", "--late", "0.8") == 0
    told = capsys.readouterr().err
    assert f"jane  {STEM}  0 of {POINTS:g}, late; held for review: slices" in told
    (row,) = table(tmp_path / "out" / "gradebook.csv")
    assert row["total"] == "0"
    (review,) = [row for row in table(tmp_path / "out" / "review.csv") if row["check"]]
    assert review["would earn"] == "2"


@pytest.mark.parametrize(
    ("inside", "is_told"), [("100.00", True), (f"{POINTS:.2f}", False), ("", False)]
)
def test_an_assignment_of_other_points_in_canvas_is_told(broken, capsys, inside, is_told):
    (broken / "mine.csv").write_text("learner,check,points\njane,slices,2\n")
    export = broken / "export.csv"
    export.write_text(f"Student,ID,One (12)\n    Points Possible,,{inside}\nJane,1,\n")
    more = ("--overrides", str(broken / "mine.csv"), "--canvas", str(export), "One")
    assert run(broken, *more) == 0
    told = f"in Canvas 'One' has 100 points, and here there are {POINTS:g}"
    assert (told in capsys.readouterr().err) is is_told


def test_other_checks_of_the_course_grade_again_what_was_graded(
    broken, tmp_path, capsys, monkeypatch
):
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lesson.py").write_text(name)
    monkeypatch.setattr(run_module, "_COURSE", (tmp_path / "old",))
    assert run(broken) == run(broken) == 0
    told = capsys.readouterr().err
    assert "0 notebooks to grade, 1 graded before" in told and "another distlab" not in told
    monkeypatch.setattr(run_module, "_COURSE", (tmp_path / "new",))
    assert run(broken) == 0
    told = capsys.readouterr().err
    assert "1 notebooks to grade, 0 graded before" in told
    assert "1 of them are graded again: the checks or distlab have changed since" in told


def test_a_page_of_feedback_that_is_no_longer_so_is_taken_away_and_no_other(broken):
    (broken / "mine.csv").write_text("learner,check,points\njane,slices,1\n")
    shutil.copytree(broken / "in" / "jane", broken / "in" / "john")
    feedback = broken / "out" / "feedback"

    def pages():
        return sorted(path.relative_to(feedback).as_posix() for path in feedback.rglob("*.*"))

    assert run(broken) == 0
    assert pages() == ["jane/one.html", "john/one.html"]
    (feedback / "jane" / "mine.html").write_text("a teacher's own")
    assert run(broken, "--overrides", str(broken / "mine.csv")) == 0
    assert pages() == [f"jane/{STEM}.html", "jane/mine.html", "john/one.html"]
    shutil.rmtree(broken / "in" / "john")
    assert run(broken) == 0
    assert pages() == ["jane/mine.html", "jane/one.html"]
    assert not (feedback / "john").exists()


def test_what_was_given_back_before_is_told_to_be_old(broken, capsys):
    assert run(broken, "--gradescope") == 0
    assert "earlier run" not in capsys.readouterr().err
    assert run(broken) == 0
    old = broken / "out" / "gradescope"
    told = capsys.readouterr().err
    assert f"{old} is from an earlier run: give --gradescope to write it again" in told
    assert "canvas.csv" not in told


def test_where_some_cannot_be_graded_the_next_step_is_told(broken, capsys):
    assert run(broken) == 0
    told = capsys.readouterr().out
    assert f"{broken / 'out' / 'review.csv'} says why; you can give points" in told
    assert "an exercise of your own needs --extra-checks" in told


def test_others_who_are_not_graded_yet_are_told(broken, capsys):
    shutil.copytree(broken / "in" / "jane", broken / "in" / "john")
    assert run(broken, "--only", "jane") == 0
    assert "1 notebooks of others are not graded yet, and in no table" in capsys.readouterr().err


def test_a_wrong_row_of_reports_is_told_before_anything_is_graded(broken, capsys):
    assert run(broken) == 0
    (broken / "out" / "reports.csv").write_text(
        "learner,exercise,report,criterion,points\njean,00_start_here,speed,jump,1\n"
    )
    before = tree(broken / "out" / "feedback")
    capsys.readouterr()
    assert run(broken, "--again") == 2
    told = capsys.readouterr().err
    assert "reports.csv, line 2\n  found: no such learner: 'jean'\n" in told
    assert "graded before" not in told
    assert tree(broken / "out" / "feedback") == before


@pytest.fixture
def as_a_user():
    """Calls in a process that root's rights do not help; returns what the call returns."""

    def call(function, *arguments):
        reads, writes = os.pipe()
        child = os.fork()
        if not child:
            try:
                if os.geteuid() == 0:
                    os.setgroups([])
                    os.setgid(65534)
                    os.setuid(65534)
                os.write(writes, json.dumps(function(*arguments)).encode())
            finally:
                os._exit(0)
        os.close(writes)
        with os.fdopen(reads) as told:
            text = told.read()
        os.waitpid(child, 0)
        return json.loads(text)

    return call


@pytest.fixture
def common():
    """A folder that every user may enter and write."""
    folder = Path(tempfile.mkdtemp(prefix="distlab-test-"))
    folder.chmod(0o777)
    yield folder
    for path in folder.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(folder)


def test_a_folder_that_may_only_be_read_is_graded(common, as_a_user):
    for learner in ("jane", "john", "roe"):
        (common / "in" / learner).mkdir(parents=True)
        (common / "in" / learner / "one.ipynb").write_text("{")
        (common / "in" / learner).chmod(0o555)
    (common / "in" / "john" / "one.ipynb").chmod(0)
    (common / "in" / "roe").chmod(0)
    (common / "in").chmod(0o555)

    def graded():
        said = []
        results = grade(common / "in", common / "out", GradingOptions(jobs=1), say=said.append)
        return [(one.submission.learner, one.problem) for one in results.graded], said

    problems, said = as_a_user(graded)
    assert problems[0][1].startswith("a file that is not JSON")
    assert problems[1] == ["john", "a file that cannot be read (Permission denied)"]
    assert problems[2] == ["roe", "cannot be read (Permission denied)"]
    roe = f"not graded: {common / 'in' / 'roe'}: cannot be read (Permission denied)"
    assert roe in said


def test_a_place_that_may_only_be_read_is_told(common, as_a_user):
    (common / "in").mkdir()
    (common / "in" / "jane.ipynb").write_text("{")
    for name in ("closed", "closed/empty"):
        (common / name).mkdir()
    (common / "closed" / "empty").chmod(0o555)
    (common / "closed").chmod(0o555)

    def told():
        found = []
        for out in ("closed/out", "closed/empty"):
            try:
                grade(common / "in", common / out)
            except ValueError as error:
                found.append(error.found)
        return found

    denied = "a folder that cannot be written (Permission denied)"
    assert as_a_user(told) == [denied, denied]


def test_a_report_without_its_marker_is_told_to_the_teacher(tmp_path, monkeypatch):
    monkeypatch.setattr(lesson_00_start_here, "REPORTS", (SPEED,), raising=False)
    cells = [code("# task: slices\nraise"), {"cell_type": "markdown", "source": "The third."}]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "jane.ipynb").write_text(json.dumps({"cells": cells}))
    assert run(tmp_path, "--allow-root") == 0
    assert [row["why"] for row in table(tmp_path / "out" / "review.csv")] == [
        "the line '<!-- report: speed -->' is gone"
    ]
