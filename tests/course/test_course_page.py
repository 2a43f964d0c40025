"""What a learner sees first: the page with the next step, and the data of the panel."""

import hashlib
import json
import os
import re
import shlex
import sys

import pytest

from distlab import cli
from distlab.course import assistant_page
from distlab.course.checks.registry import checks_of, stems
from distlab.course.course_map import in_minutes, read_map
from distlab.course.course_page import PAGE, course_page, course_state
from distlab.course.learner_folder import lay_course, lay_page
from distlab.shipped import MANIFEST
from tests.support.repository import ROOT

TASKS = sum(len(checks_of(stem)) for stem in stems())
FIRST, EXERCISE = "notebooks/00_start_here.ipynb", "exercises/00_start_here.ipynb"
SECOND = "notebooks/01_mirrored_strategy.ipynb"


@pytest.fixture
def folder(tmp_path):
    lay_course(tmp_path / "mine", course=ROOT)
    return tmp_path / "mine"


def save_output(path, text):
    """Saves a notebook, later than all before it, with an output of its first cell of code."""
    notebook = json.loads(path.read_text())
    cell = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    data = {"text/plain": text}
    output = {"output_type": "execute_result", "metadata": {}, "execution_count": 1, "data": data}
    cell["outputs"].append(output)
    path.write_text(json.dumps(notebook))
    saved = max(other.stat().st_mtime for other in path.parents[1].rglob("*.ipynb"))
    os.utime(path, (saved + 1, saved + 1))


def answer(folder, *names, lesson="00_start_here"):
    """Saves what these checks leave in the exercise once they have passed."""
    for check in checks_of(lesson):
        if check.name in names:
            text = f"{check.name}: passed ({check.points:g} of {check.points:g} points)"
            save_output(folder / f"exercises/{lesson}.ipynb", text)


def state_of(folder, number):
    return next(row for row in course_state(folder)["lessons"] if row["number"] == number)


def test_a_learner_is_sent_to_lesson_00_and_then_to_where_they_are(folder):
    def leads_to(path, label, note):
        page = course_page(folder)
        assert course_state(folder)["next"] == path
        return f'href="{path}">{label}</a>\n\n{note}' in page

    first = read_map(folder)[0].lesson_minutes
    assert leads_to(FIRST, "Start lesson 00", f"Start here, {in_minutes(first)}")
    state = json.loads(json.dumps(course_state(folder)))  # as the panel gets it
    assert (len(state["lessons"]), state["page"], state["text"]) == (len(read_map(folder)), "", "")
    assert state["total"] == f"0 of {TASKS} tasks passed"
    assert all((folder / path).is_file() for path in state["pages"].values()) and state["pages"]
    save_output(folder / FIRST, "Predict: How often?")
    save_output(folder / FIRST, "Nothing was asked yet. Run the cells above first.")
    assert leads_to(FIRST, "Go on with lesson 00", "Start here")
    assert not state_of(folder, "00")["read"]
    save_output(folder / FIRST, "3 of 5 predictions came true. Think about these again:")
    assert leads_to(EXERCISE, "Start exercise 00", "Start here, next task: `slices`")
    assert state_of(folder, "00")["read"]
    answer(folder, "slices")
    assert leads_to(EXERCISE, "Go on with exercise 00", "Start here, next task: `file_slices`")
    state = state_of(folder, "00")
    assert state["state"] == "1 of 4" and 0 < state["share"] < 1
    page = course_page(folder)
    assert f'value="{state["share"]:.2f}"></progress> <small>read, 1 of 4 tasks</small>' in page
    lay_page(folder, PAGE, page)
    assert (course_state(folder)["page"], course_state(folder)["text"]) == (PAGE, page)

    # A learner who leaves an exercise out goes on in the lesson that they opened since.
    save_output(folder / SECOND, "Predict: How many copies?")
    assert leads_to(SECOND, "Go on with lesson 01", "MirroredStrategy")
    answer(folder, *(check.name for check in checks_of("00_start_here")))
    assert leads_to(SECOND, "Go on with lesson 01", "MirroredStrategy")
    for stem in stems():
        answer(folder, *(check.name for check in checks_of(stem)[:-1]), lesson=stem)
    last = stems()[-1]
    answer(folder, checks_of(last)[-1].name, lesson=last)
    # After the last lesson, what was left out.
    left = checks_of("01_mirrored_strategy")[-1].name
    note = f"MirroredStrategy, next task: `{left}`"
    assert leads_to("exercises/01_mirrored_strategy.ipynb", "Go on with exercise 01", note)
    for stem in stems():
        answer(folder, checks_of(stem)[-1].name, lesson=stem)
    assert course_state(folder)["next"] == ""
    assert "You have passed every task" in course_page(folder)


def test_extra_tasks_come_when_every_core_task_is_passed(folder):
    extra = {name for entry in read_map(folder) for name in entry.extra_tasks}
    for stem in stems():
        core = [check.name for check in checks_of(stem) if check.name not in extra]
        assert core, stem
        answer(folder, *core, lesson=stem)
    stem = next(stem for stem in stems() if extra & {check.name for check in checks_of(stem)})
    name = next(check.name for check in checks_of(stem) if check.name in extra)
    assert course_state(folder)["next"] == f"exercises/{stem}.ipynb"
    assert f", extra task: `{name}`" in course_page(folder)


def test_a_folder_without_notebooks_has_a_page_too(tmp_path):
    page = course_page(tmp_path)
    assert "distlab-start" not in page and "| a researcher | 01 " in page


def test_the_page_is_renewed_until_the_learner_changes_it(folder, capsys):
    assert cli.main(["lab", str(folder), "--lay-only"]) == 0
    answer(folder, "slices")
    cli.main(["lab", str(folder), "--lay-only"])
    assert "Go on with exercise 00" in (folder / PAGE).read_text()
    (folder / PAGE).write_text("my notes")
    capsys.readouterr()
    cli.main(["lab", str(folder), "--lay-only"])
    assert (folder / PAGE).read_text() == "my notes"
    assert f"kept {PAGE}: you changed it\n" in capsys.readouterr().out


def test_an_assistant_is_told_to_teach_and_an_own_page_of_that_name_stays(folder, capsys):
    own = folder / assistant_page.PAGE
    cli.main(["lab", str(folder), "--lay-only"])
    page = own.read_text()
    for asked in ("Don't solve tasks", "Don't answer predictions", "distlab progress ."):
        assert asked in page
    assert "\n  python -m nbconvert " in page, "the folder may be handed out"
    own_python = shlex.quote(sys.executable)
    assert f"{own_python} -m nbconvert " in assistant_page.assistant_page(python=sys.executable)
    # What the page names is there.
    assert set(re.findall(r"`((?:docs|notebooks|exercises)/\S*)`", page)) >= {"docs/pitfalls.md"}
    assert all((folder / name).exists() for name in re.findall(r"`(\w+/(?:\w+\.md)?)`", page))
    own.write_text("an older version")  # as an older distlab laid it, it is renewed
    manifest = folder / MANIFEST
    known = json.loads(manifest.read_text())
    known["files"][own.name] = hashlib.sha256(b"an older version").hexdigest()
    manifest.write_text(json.dumps(known))
    capsys.readouterr()
    cli.main(["lab", str(folder), "--lay-only"])
    assert own.read_text() == page
    own.write_text("mine")
    cli.main(["lab", str(folder), "--lay-only"])
    own.with_name("new").mkdir()
    own.with_name("new").joinpath(own.name).write_text("mine from the first day")
    cli.main(["lab", str(folder / "new"), "--lay-only"])
    assert own.read_text() == "mine"
    assert (folder / "new" / own.name).read_text() == "mine from the first day"
    assert own.name not in capsys.readouterr().out
