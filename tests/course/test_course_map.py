"""The map of the course: what it reads from notebooks, and that README and the site have it."""

import json
import re

import pytest

from distlab.course.course_map import map_table, read_map, short_paths, total_minutes
from distlab.errors import InvalidArgument
from tests.support.repository import ROOT
from tools import write_tables

LESSON = "# A title\n\nIt takes 25 to 30 minutes."
EXERCISE = """# Exercise

| task | what you do | minutes | difficulty | path |
|---|---|---|---|---|
| 1. `first` | a | 5 | easy | core |
| 2. `second` | b | 12 | hard | core |
| report `third` | c | 15 | medium | extra |
| your own model | d (no points) | 10 | open | extra |

| other | minutes |
|---|---|---|
| not a task | 99 |
"""


def notebook(text):
    cells = [{"cell_type": "markdown", "source": [text]}, {"cell_type": "code", "source": "x"}]
    metadata = {"distlab": {"minutes": [25, 30], "extra_minutes": [5, 10]}}
    return json.dumps({"cells": cells, "metadata": metadata})


@pytest.fixture
def course(tmp_path):
    for name, text in (("notebooks", LESSON), ("exercises", EXERCISE)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "06_reproducibility.ipynb").write_text(notebook(text))
    return tmp_path


def reproducibility_of(course):
    return next(entry for entry in read_map(course) if entry.number == "06")


def test_the_map_has_the_minutes_and_tasks_that_the_notebooks_state(course):
    entry = reproducibility_of(course)
    assert (entry.lesson_minutes, entry.extra_minutes) == ((25, 30), (5, 10))
    assert (entry.tasks, entry.exercise_minutes) == (2, 17)
    assert (entry.extra_tasks, entry.extra_task_minutes) == (("third", "your own model"), 25)
    total = total_minutes(read_map(course))
    assert (total.lessons, total.extra, total.tasks, total.extra_tasks) == ((25, 30), 10, 17, 25)
    rows = map_table(read_map(course)).splitlines()
    (row,) = [row for row in rows if row.startswith("| 06 |")]
    assert "[Reproducibility](notebooks/06_reproducibility.ipynb),\u00a025\u201330\u00a0min" in row
    assert "[2 tasks](exercises/06_reproducibility.ipynb),\u00a017\u00a0min, 2\u00a0extra |" in row
    absent = "| 02 | Batch size and learning rate (coming) |"
    assert any(row.startswith(absent) for row in rows)


def test_a_learners_broken_or_second_copy_is_no_matter_and_a_new_lesson_must_be_listed(course):
    lesson = course / "notebooks" / "06_reproducibility.ipynb"
    lesson.with_suffix(".fresh.ipynb").write_text(notebook(LESSON))
    lesson.write_text("{ half")
    assert reproducibility_of(course).lesson_minutes is None
    assert reproducibility_of(course).lesson
    (course / "notebooks" / "18_more.ipynb").write_text(notebook(LESSON))
    with pytest.raises(InvalidArgument, match="18_more"):
        read_map(course)


def test_three_lessons_are_named_for_each_kind_of_reader(course):
    _, _, *rows = short_paths(read_map(ROOT), root="../").splitlines()
    numbers = [re.findall(r"\b\d\d\b(?= )", row) for row in rows]
    assert numbers == [["01", "13", "15", "16"], ["09", "11", "14", "17"], ["00", "03", "17"]]
    paths = re.findall(r"\]\(\.\./(\S+)\)", "\n".join(rows))
    assert paths and all((ROOT / path).is_file() for path in paths)
    assert "01 MirroredStrategy (coming), 13 " in short_paths(read_map(course))


def test_the_pages_have_the_map_as_the_notebooks_are_now():
    for page in write_tables.WITH_MAP:
        text = page.read_text(encoding="utf-8")
        assert write_tables.with_map(text) == text, f"{page}: `make map` mends it"
    text = write_tables.INDEX.read_text(encoding="utf-8")
    assert write_tables.with_short_paths(text, root="") == text, "`make map` mends it"


def test_the_course_is_in_order_and_every_lesson_states_its_minutes():
    entries = read_map(ROOT)
    assert all(entry.lesson_minutes for entry in entries if entry.lesson)
    assert all(entry.exercise_minutes for entry in entries if entry.exercise)
    numbers = re.findall(r"^\| (\d\d) \|", map_table(entries), re.MULTILINE)
    assert numbers == [f"{number:02}" for number in range(22)]
