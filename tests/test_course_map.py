"""The map of the course: what it reads from notebooks, and that README and the site have it."""

import json
import re

import pytest

from distlab.course_map import map_table, read_map, total_minutes
from distlab.errors import InvalidArgument
from tests.support.repository import ROOT
from tools import write_map

LESSON = """# A title

Some 90 minutes were lost.

## Overview

It takes about 25 minutes.

## More"""
EXERCISE = """# Exercise

| task | what you do | minutes | difficulty |
|---|---|---|---|
| 1. `first` | a | 5 | easy |
| 2. `second` | b | 12 | hard |
| report `third` | c | 15 | medium |

| other | minutes |
|---|---|
| not a task | 99 |
"""


def notebook(text):
    cells = [{"cell_type": "markdown", "source": [text]}, {"cell_type": "code", "source": "x"}]
    return json.dumps({"cells": cells})


@pytest.fixture
def course(tmp_path):
    for name, text in (("notebooks", LESSON), ("exercises", EXERCISE)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "06_reproducibility.ipynb").write_text(notebook(text))
    return tmp_path


def entry(course, number):
    return next(one for one in read_map(course) if one.number == number)


def test_minutes_and_tasks_are_those_that_the_notebooks_state(course):
    six = entry(course, "06")
    assert (six.lesson_minutes, six.exercise_minutes, six.tasks) == (25, 32, 3)
    assert total_minutes(read_map(course)) == (25, 32)


def test_a_lesson_that_is_not_there_is_coming_and_has_no_link(course):
    rows = map_table(read_map(course)).splitlines()
    assert any(row.startswith("| 02 | Batch size and learning rate (coming) |") for row in rows)
    (six,) = [row for row in rows if row.startswith("| 06 |")]
    assert "[Reproducibility](notebooks/06_reproducibility.ipynb),\u00a025\u00a0min" in six
    assert "[3 tasks](exercises/06_reproducibility.ipynb),\u00a032\u00a0min" in six


def test_a_notebook_that_a_learner_broke_has_no_minutes(course):
    (course / "notebooks" / "06_reproducibility.ipynb").write_text("{ half")
    assert entry(course, "06").lesson_minutes is None
    assert entry(course, "06").lesson


def test_a_learners_second_copy_is_not_on_the_map_and_a_new_lesson_must_be(course):
    (course / "notebooks" / "06_reproducibility.fresh.ipynb").write_text(notebook(LESSON))
    read_map(course)
    (course / "notebooks" / "18_more.ipynb").write_text(notebook(LESSON))
    with pytest.raises(InvalidArgument, match="18_more"):
        read_map(course)


@pytest.mark.parametrize("page", write_map.PAGES, ids=lambda page: page.name)
def test_the_pages_have_the_map_as_the_notebooks_are_now(page):
    text = page.read_text(encoding="utf-8")
    assert write_map.with_map(text) == text, "python tools/write_map.py writes it again"


def test_a_page_without_the_marks_is_refused():
    with pytest.raises(ValueError, match="must have the marks"):
        write_map.with_map("# A page")


def test_every_lesson_of_the_course_states_its_minutes():
    without = [one.stem for one in read_map(ROOT) if one.lesson and not one.lesson_minutes]
    assert set(without) <= {"00_start_here"}
    assert all(one.exercise_minutes for one in read_map(ROOT) if one.exercise)


def test_the_parts_of_the_map_are_in_order():
    numbers = re.findall(r"^\| (\d\d) \|", map_table(read_map(ROOT)), re.MULTILINE)
    assert numbers == [f"{number:02}" for number in range(18)]
