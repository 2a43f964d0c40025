"""What a learner sees first: the page with the map and their progress, and its data."""

import json
import re

import pytest

from distlab import cli
from distlab.checks.registry import checks_of, stems
from distlab.course import MANIFEST, lay_course, lay_page
from distlab.landing.course_page import PAGE, course_page, course_state
from tests.support.repository import ROOT

TASKS = sum(len(checks_of(stem)) for stem in stems())
FIRST, EXERCISE = "notebooks/00_start_here.ipynb", "exercises/00_start_here.ipynb"


@pytest.fixture
def folder(tmp_path):
    lay_course(tmp_path / "mine", course=ROOT)
    return tmp_path / "mine"


def answer(folder, check, earned, points, ending="passed"):
    """Saves what a check would leave in the exercise."""
    notebook = json.loads((folder / EXERCISE).read_text())
    cell = next(one for one in notebook["cells"] if one["cell_type"] == "code")
    text = f"{check}: {ending} ({earned:g} of {points:g} points)"
    output = {"output_type": "execute_result", "metadata": {}, "execution_count": 1}
    cell["outputs"].append(output | {"data": {"text/plain": text}})
    (folder / EXERCISE).write_text(json.dumps(notebook))


def test_a_new_learner_is_sent_to_lesson_00(folder):
    page = course_page(folder)
    assert f"**Next:** [lesson 00, Start here]({FIRST})" in page
    assert f"0 of {TASKS} tasks passed" in page
    assert course_state(folder)["next"] == FIRST


def test_a_learner_who_began_an_exercise_is_sent_to_its_next_task(folder):
    answer(folder, "slices", 2, 2)
    page = course_page(folder)
    assert f"**Next:** task `file_slices` in [exercise 00, Start here]({EXERCISE})." in page
    assert " | 1 of 4 |" in page
    (state,) = [one for one in course_state(folder)["lessons"] if one["number"] == "00"]
    assert state["state"] == "1 of 4" and 0 < state["share"] < 1


def test_every_link_of_the_page_leads_to_a_file_of_the_folder(folder):
    links = re.findall(r"\]\(([^)]+)\)", course_page(folder))
    assert "docs/glossary.md" in links and len(links) > 20
    assert [link for link in links if not (folder / link).is_file()] == []


def test_the_panel_gets_values_that_json_holds(folder):
    state = json.loads(json.dumps(course_state(folder)))
    assert len(state["lessons"]) == 18
    assert state["page"] == ""  # not laid yet
    lay_page(folder, PAGE, course_page(folder))
    assert course_state(folder)["page"] == PAGE


def test_a_folder_without_notebooks_has_a_page_too(tmp_path):
    assert "**Next:**" in course_page(tmp_path)


def test_the_page_is_renewed_until_the_learner_changes_it(folder, capsys):
    assert cli.main(["lab", str(folder), "--lay-only"]) == 0
    answer(folder, "slices", 2, 2)
    cli.main(["lab", str(folder), "--lay-only"])
    assert f"1 of {TASKS} tasks passed" in (folder / PAGE).read_text()
    (folder / PAGE).write_text("my notes")
    capsys.readouterr()
    cli.main(["lab", str(folder), "--lay-only"])
    assert (folder / PAGE).read_text() == "my notes"
    assert f"kept {PAGE}: you changed it\n" in capsys.readouterr().out


def test_the_glossary_lies_where_the_lessons_link_to_it(folder):
    assert (folder / "docs/glossary.md").read_bytes() == (ROOT / "docs/glossary.md").read_bytes()
    assert "docs/glossary.md" in json.loads((folder / MANIFEST).read_text())["files"]
