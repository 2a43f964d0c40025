"""What a learner sees first: the page with the next step, and the data of the panel."""

import json

import pytest

from distlab import cli
from distlab.course.checks.registry import checks_of, stems
from distlab.course.course_page import PAGE, course_page, course_state
from distlab.course.learner_folder import lay_course, lay_page
from tests.support.repository import ROOT

TASKS = sum(len(checks_of(stem)) for stem in stems())
FIRST, EXERCISE = "notebooks/00_start_here.ipynb", "exercises/00_start_here.ipynb"


@pytest.fixture
def folder(tmp_path):
    lay_course(tmp_path / "mine", course=ROOT)
    return tmp_path / "mine"


def save_output(path, text):
    """Saves a notebook with an output of its first cell of code."""
    notebook = json.loads(path.read_text())
    cell = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    data = {"text/plain": text}
    output = {"output_type": "execute_result", "metadata": {}, "execution_count": 1, "data": data}
    cell["outputs"].append(output)
    path.write_text(json.dumps(notebook))


def answer(folder):
    """Saves what the check of the first task leaves in the exercise once it has passed."""
    save_output(folder / EXERCISE, "slices: passed (2 of 2 points)")


def test_a_learner_is_sent_to_lesson_00_and_then_to_the_next_task(folder):
    page = course_page(folder)
    assert f'href="{FIRST}">Start lesson 00</a>' in page
    state = json.loads(json.dumps(course_state(folder)))  # as the panel gets it
    assert (state["next"], len(state["lessons"]), state["page"]) == (FIRST, 18, "")
    assert state["total"] == f"0 of {TASKS} tasks passed"
    assert all((folder / path).is_file() for path in state["pages"].values()) and state["pages"]
    save_output(folder / FIRST, "Predict: How often?")
    assert f'href="{FIRST}">Continue lesson 00</a>' in course_page(folder)
    answer(folder)
    page = course_page(folder)
    assert f'href="{EXERCISE}">Continue exercise 00</a>' in page
    assert "`file_slices`" in page
    state = next(row for row in course_state(folder)["lessons"] if row["number"] == "00")
    assert state["state"] == "1 of 4" and 0 < state["share"] < 1
    lay_page(folder, PAGE, page)
    assert course_state(folder)["page"] == PAGE


def test_a_folder_without_notebooks_has_a_page_too(tmp_path):
    assert "distlab-start" not in course_page(tmp_path)


def test_the_page_is_renewed_until_the_learner_changes_it(folder, capsys):
    assert cli.main(["lab", str(folder), "--lay-only"]) == 0
    answer(folder)
    cli.main(["lab", str(folder), "--lay-only"])
    assert "Continue exercise 00" in (folder / PAGE).read_text()
    (folder / PAGE).write_text("my notes")
    capsys.readouterr()
    cli.main(["lab", str(folder), "--lay-only"])
    assert (folder / PAGE).read_text() == "my notes"
    assert f"kept {PAGE}: you changed it\n" in capsys.readouterr().out
