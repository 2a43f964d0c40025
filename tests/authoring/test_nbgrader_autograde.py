"""nbgrader's own commands over exercises: `make nbgrader`; its kernel is this Python."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from distlab.authoring.exercise.new_exercise import make_exercise
from distlab.authoring.exercise.own_editions import BuildOptions, build_editions, own_page
from distlab.authoring.source import Page, draft_page
from distlab.course.checks.registry import checks_of, find_check
from distlab.course.checks.run_check import run_check
from tests.support.limits import HANG_SECS
from tests.support.repository import ROOT

STEMS = ("00_start_here", "01_mirrored_strategy")

CONFIG = """\
c = get_config()
c.CourseDirectory.course_id = "course"
c.ClearSolutions.enabled = False
c.Execute.timeout = 1800
"""
SCORES = """\
import json, sys
from nbgrader.api import Gradebook
with Gradebook("sqlite:///gradebook.db") as gradebook:
    grades = [g for s in gradebook.assignment_submissions(sys.argv[1])
              for n in s.notebooks for g in n.grades]
    print(json.dumps([[g.notebook.student.id, g.name, g.score] for g in grades]))
"""


@pytest.fixture(scope="module")
def nbgrader(tmp_path_factory):
    """Runs Python in nbgrader's environment, in a course's folder; its kernel is this Python."""
    python = os.environ.get("DISTLAB_NBGRADER")
    if not python:
        pytest.skip("DISTLAB_NBGRADER names no Python that has nbgrader: make nbgrader")
    python = str(Path(python).absolute())  # not resolved: an environment's Python is a link
    course = tmp_path_factory.mktemp("course")
    (course / "nbgrader_config.py").write_text(CONFIG)
    spec = course / "jupyter" / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec.write_text(json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"}))
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    path = os.pathsep.join([str(Path(python).parent), env["PATH"]])  # it calls alembic by name
    env |= {"JUPYTER_PATH": str(course / "jupyter"), "HOME": str(course), "PATH": path}

    def run(*arguments):
        done = subprocess.run(
            [python, *arguments],
            cwd=course,
            env=env,
            capture_output=True,
            text=True,
            timeout=HANG_SECS,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return course, run


def hand_in(course, learner, stem, answers, *, assignment):
    """A learner's copy of the released notebook, with these sources in place of some cells'."""
    notebook = nbformat.read(course / "release" / assignment / f"{stem}.ipynb", as_version=4)
    for cell in notebook.cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id")
        cell.source = answers.get(name, cell.source)
    there = course / "submitted" / learner / assignment / f"{stem}.ipynb"
    there.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, there)


def solutions_of(exercise, solution):
    marked, answered = (draft_page(page).notebook.cells for page in (exercise, solution))
    return {
        cell.metadata.nbgrader.grade_id: answer.source
        for cell, answer in zip(marked, answered, strict=True)
        if cell.metadata.get("nbgrader", {}).get("solution")
    }


EVEN = """\
# task: slices
def split(examples, replicas):
    whole, rest = divmod(examples, replicas)
    return [whole + (index < rest) for index in range(replicas)]
"""


def release(course, run, assignment):
    """What nbgrader hands out: it may take outputs away, but nothing of a cell."""
    run("-m", "nbgrader", "generate_assignment", assignment)
    for source in (course / "source" / assignment).glob("*.ipynb"):
        mine, theirs = (
            nbformat.read(path, as_version=4).cells
            for path in (source, course / "release" / assignment / source.name)
        )
        assert [cell.source for cell in mine] == [cell.source for cell in theirs]


def graded(run, assignment):
    """The points of each learner and cell, once nbgrader has graded."""
    run("-m", "nbgrader", "autograde", assignment)
    return {(who, name): score for who, name, score in json.loads(run("-c", SCORES, assignment))}


def test_nbgraders_autograde_gives_the_points_of_the_checks(nbgrader):
    course, run = nbgrader
    source = course / "source" / "first"
    source.mkdir(parents=True)
    for stem in STEMS:
        shutil.copy(ROOT / "exercises" / f"{stem}.ipynb", source)
    release(course, run, "first")
    for stem in STEMS:
        answers = solutions_of(*(Page(ROOT, stem, edition) for edition in ("exercise", "solution")))
        hand_in(course, "solver", stem, answers, assignment="first")
        hand_in(course, "untouched", stem, {}, assignment="first")
    wrong = {"slices": EVEN, "slices-check": "100"}
    hand_in(course, "even", STEMS[0], wrong, assignment="first")
    scores = graded(run, "first")

    full = {f"{check.name}-check": check.points for stem in STEMS for check in checks_of(stem)}
    assert {name: scores["solver", name] for name in full} == full
    assert {name: scores["untouched", name] for name in full} == dict.fromkeys(full, 0)
    names = {}
    exec(EVEN, names)
    partial = run_check(find_check("slices"), names["split"]).earned
    assert 0 < partial < full["slices-check"]
    assert scores["even", "slices-check"] == partial
    assert sum(scores["even", name] for name in full) == partial

    run("-m", "nbgrader", "generate_feedback", "first")
    page = (course / "feedback" / "even" / "first" / f"{STEMS[0]}.html").read_text()
    assert "What this looks like:" in page


def test_a_teachers_own_exercise_is_graded_with_the_checks_beside_it(nbgrader, tmp_path):
    course, run = nbgrader
    stem = "20_my_topic"
    made = make_exercise(stem, folder=tmp_path)
    build_editions([made.source], BuildOptions(out=tmp_path / "out"))
    shutil.copytree(tmp_path / "out" / "exercises", course / "source" / "own")
    release(course, run, "own")
    answers = solutions_of(own_page(made.source, "exercise"), own_page(made.source, "solution"))
    whole, means = "np.sum(sums) / np.sum(counts)", "np.mean(np.divide(sums, counts))"
    wrong = {name: text.replace(whole, means) for name, text in answers.items()}
    assert wrong != answers
    for learner, mine in (("solver", answers), ("untouched", {}), ("wrong", wrong)):
        hand_in(course, learner, stem, mine, assignment="own")
    scores = graded(run, "own")
    points = {learner: scores[learner, "mean_my_topic-check"] for learner, _ in scores}
    assert points == {"solver": 2, "untouched": 0, "wrong": 1}
