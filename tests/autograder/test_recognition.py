"""A notebook counts as an exercise by the marks of the course, and not by a function's name."""

import json

import pytest

from distlab.autograder.intake.exercises import Exercises
from distlab.autograder.intake.recognition import doubles_in, recognised
from distlab.autograder.intake.submissions import find_submissions
from tests.support.repository import ROOT

STEM = "03_custom_training_loop"
TRAIN = "def train(model, data):\n    return model.fit(data)"
CODE, TEXT, MOODLE = "code", "markdown", "_assignsubmission_file_"
TITLE = "# Exercise: write the training loop yourself"


def cell(kind, source, **metadata):
    return {"cell_type": kind, "source": source, "metadata": metadata}


@pytest.fixture(scope="module")
def exercises():
    return Exercises()


# What cells there are, and whether they say that they are those of the exercise.
CELLS = {
    "a function alone": ([cell(CODE, TRAIN)], False),
    "the course imported": ([cell(CODE, f"import distlab as dl\n{TRAIN}")], False),
    "a heading of any notebook": ([cell(TEXT, "## Overview"), cell(CODE, TRAIN)], False),
    "nbgrader elsewhere": ([cell(CODE, TRAIN, nbgrader={"grade_id": "q1"})], False),
    "metadata of no form": ([{"cell_type": CODE, "source": TRAIN, "metadata": []}], False),
    "the line of a task": ([cell(CODE, f"# task: train_epoch\n{TRAIN}")], True),
    "the line in a text cell": ([cell(TEXT, f"# task: train_epoch\n{TRAIN}")], True),
    "a check that is called": ([cell(CODE, TRAIN), cell(CODE, "dl.check( 'train_epoch')")], True),
    "nbgrader's name of a cell": (
        [cell(CODE, TRAIN, nbgrader={"grade_id": "train_epoch-check"})],
        True,
    ),
    "the title": ([cell(TEXT, f"{TITLE}\nby me"), cell(CODE, TRAIN)], True),
}


@pytest.mark.parametrize("form", CELLS)
def test_only_marks_of_the_course_make_a_notebook_an_exercise(exercises, form):
    cells, is_known = CELLS[form]
    task = next(check.name for check in exercises.checks[STEM] if check.function == "train")
    cells = json.loads(json.dumps(cells).replace("train_epoch", task))
    assert list(recognised(cells, exercises)) == [STEM] * is_known


def test_each_exercise_is_recognised_and_no_lesson_is_taken_for_one(exercises):
    for stem in exercises.stems:
        cells = {
            kind: json.loads((ROOT / kind / f"{stem}.ipynb").read_text(encoding="utf-8"))["cells"]
            for kind in ("exercises", "notebooks")
        }
        assert list(recognised(cells["exercises"], exercises)) == [stem]
        assert recognised(cells["notebooks"], exercises) == {}


def test_a_name_with_two_notebooks_of_one_exercise_may_be_two_people(tmp_path, exercises):
    tasks = {"one": "slices", "two": "exact_loss", "three": "slices", "other": "mine", "broken": ""}
    for name, task in tasks.items():
        for learner in ("Exercise 00", "jane" if name != "three" else "joe", f"Kim_7{MOODLE}"):
            (tmp_path / learner).mkdir(exist_ok=True)
            line = json.dumps(f"# task: {task}\n")
            (tmp_path / learner / f"{name}.ipynb").write_text(f'{{"cells": [{line}')
    found = find_submissions(tmp_path, tmp_path / "unpacked").submissions
    doubles = doubles_in(found, exercises)  # a platform's number is that of one person
    assert {person: sorted(handed.name for handed in own) for person, own in doubles.items()} == {
        ("Exercise 00", ""): ["one", "three"]
    }
