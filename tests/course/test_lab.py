"""`distlab lab`: laying a course and never touching a learner's work; the command it becomes."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat import v4

from distlab.course import lab
from distlab.course.learner_folder import course_files, lay_course, lay_page
from distlab.errors import InvalidArgument, UnsupportedEnvironment
from distlab.shipped import MANIFEST

LESSON, EXERCISE = "notebooks/00_start_here.ipynb", "exercises/00_start_here.ipynb"


@pytest.fixture
def course(tmp_path):
    """A course of one lesson, as the wheel and the clone hold it, with answers and pages."""
    root = tmp_path / "course"
    for name in (LESSON, EXERCISE, "solutions/00_start_here.ipynb"):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(f"first edition of {name}")
    return root


@pytest.fixture
def folder(tmp_path, course):
    """A learner's folder with the course laid into it."""
    lay_course(tmp_path / "mine", course=course)
    return tmp_path / "mine"


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_new_folder_gets_the_course_without_answers_and_only_once(tmp_path, course):
    (course / "docs").mkdir()
    (course / "docs/glossary.md").write_text("# Glossary")
    (course / "docs/teaching.md").write_text("for teachers")
    folder = tmp_path / "deep" / "mine"
    report = lay_course(folder, course=course)
    assert report.added == [LESSON, EXERCISE, "docs/glossary.md"]
    assert report.lines() == [f"{folder}: 3 new, 0 brought up to date"]
    assert (folder / LESSON).read_text() == f"first edition of {LESSON}"
    laid = contents(folder)
    assert {path.relative_to(folder).as_posix() for path in laid} == {*report.added, MANIFEST}
    report = lay_course(folder, course=course)
    assert report.lines() == [f"{folder}: 0 new, 0 brought up to date"]
    assert contents(folder) == laid


def notebook(**metadata) -> bytes:
    """A notebook as it is committed: run, with a widget and one cell's outputs folded."""
    output = v4.new_output("stream", name="stdout", text="the answer")
    cells = [
        v4.new_markdown_cell("# Grüße"),
        v4.new_code_cell("x = 1", execution_count=1, outputs=[output], metadata=metadata),
        v4.new_code_cell("y", execution_count=2, metadata={"jupyter": {"source_hidden": True}}),
    ]
    made = v4.new_notebook(cells=cells, metadata={"widgets": {"state": "the answer"}})
    return nbformat.writes(made).encode()


def test_notebooks_are_laid_as_if_they_had_never_been_run(folder, course):
    committed = notebook(jupyter={"outputs_hidden": True}, tags=["hide-output"])
    (course / LESSON).write_bytes(committed)
    assert lay_course(folder, course=course).updated == [LESSON]
    laid = nbformat.read(folder / LESSON, as_version=4)
    nbformat.validate(laid)
    assert laid.metadata == {}
    text, first, second = laid.cells
    assert text.source == "# Grüße"
    assert (first.outputs, first.execution_count) == ([], None)
    assert first.metadata == {"tags": ["hide-output"]}
    assert second.metadata == {"jupyter": {"source_hidden": True}}
    (folder / LESSON).write_bytes(committed)  # run by the learner, and saved
    assert lay_course(folder, course=course).kept == [LESSON]
    assert (folder / LESSON).read_bytes() == committed


def test_what_the_learner_left_alone_is_brought_up_to_date(folder, course):
    (course / LESSON).write_text("second edition")
    (course / "notebooks/01_more.ipynb").write_text("a new lesson")
    (folder / EXERCISE).unlink()
    report = lay_course(folder, course=course)
    assert report.updated == [LESSON]
    assert sorted(report.added) == [EXERCISE, "notebooks/01_more.ipynb"]
    assert (folder / LESSON).read_text() == "second edition"
    assert lay_page(folder, "course.md", "first").added == ["course.md"]
    assert lay_page(folder, "course.md", "second").updated == ["course.md"]
    (folder / "course.md").write_text("my notes")
    assert lay_page(folder, "course.md", "third").lines()[1:] == ["kept course.md: you changed it"]
    assert (folder / "course.md").read_text() == "my notes"


def test_what_the_learner_changed_is_kept_and_a_fresh_copy_lies_beside_it(folder, course):
    (folder / EXERCISE).write_text("my answer")
    report = lay_course(folder, course=course)
    assert report.lines()[1:] == [f"kept {EXERCISE}: you changed it"]
    (course / EXERCISE).write_text("second edition")
    report = lay_course(folder, course=course)
    assert report.lines()[1:] == [
        f"kept {EXERCISE}: you changed it; the course has another version: "
        f"distlab lab {folder} --fresh exercises/00_start_here"
    ]
    report = lay_course(folder, fresh=["exercises/00_start_here"], course=course)
    beside = "exercises/00_start_here.fresh.ipynb"
    assert report.lines()[-1] == f"laid a fresh copy beside yours: {beside}"
    assert (folder / beside).read_text() == "second edition"
    assert (folder / EXERCISE).read_text() == "my answer"
    # The learner has the new version now, so the next run does not announce it again.
    assert lay_course(folder, course=course).lines()[1:] == [f"kept {EXERCISE}: you changed it"]
    (folder / LESSON).write_text("my notes")  # a bare name means lesson and exercise
    assert len(lay_course(folder, fresh=["00_start_here"], course=course).beside) == 2
    with pytest.raises(InvalidArgument, match="did you mean '00_start_here'"):
        lay_course(folder, fresh=["00_start_hear"], course=course)


def test_what_was_there_before_is_the_learners(tmp_path, course):
    mine = tmp_path / "mine"
    (mine / LESSON).parent.mkdir(parents=True)
    (mine / LESSON).write_text("not from the course")
    (mine / EXERCISE).mkdir(parents=True)  # a folder in the place of a notebook
    (mine / "shopping.txt").write_text("milk")
    assert lay_course(mine, course=course).kept == [LESSON, EXERCISE]
    assert (mine / LESSON).read_text() == "not from the course"
    assert (mine / EXERCISE).is_dir()
    assert (mine / "shopping.txt").read_text() == "milk"


@pytest.mark.parametrize("manifest", ["{ half", None])
def test_without_its_manifest_nothing_is_overwritten(folder, course, manifest):
    if manifest is None:
        (folder / MANIFEST).unlink()
    else:
        (folder / MANIFEST).write_text(manifest)
    (course / LESSON).write_text("second edition")
    assert lay_course(folder, course=course).kept == [LESSON]
    assert (folder / LESSON).read_text() == f"first edition of {LESSON}"
    assert json.loads((folder / MANIFEST).read_text())["files"].keys() == {EXERCISE}


def test_folders_that_cannot_take_the_course_are_refused(tmp_path, course):
    (tmp_path / "file").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "exercises").touch()
    before = contents(course)
    places = {
        tmp_path / "file": "file is a file, not a folder",
        tmp_path / "other": "exercises is a file, not a folder",
        course: "that is the course itself",
        course / "exercises/mine": "that is the course itself",
    }
    if Path("/proc/self").is_dir():  # it refuses everybody, root too
        places["/proc/mine"] = "/proc/mine cannot be written: "
    for place, text in places.items():
        with pytest.raises(InvalidArgument, match=text):
            lay_course(place, course=course)
    assert contents(course) == before
    with pytest.raises(UnsupportedEnvironment, match="no notebooks in") as error:
        course_files(tmp_path / "other")
    assert "pip install --force-reinstall" in str(error.value)


def test_jupyterlab_starts_on_loopback_with_its_token_at_the_next_step_or_lesson_00(folder):
    command = lab.lab_command(
        folder, port=8899, open_browser=False, as_root=False, further=["--debug"]
    )
    assert command[:3] == [sys.executable, "-m", "jupyterlab"] and command[-1] == "--debug"
    assert {
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.root_dir={folder}",
        f"--LabApp.default_url=/lab/tree/{LESSON}",
        "--ServerApp.port=8899",
        "--no-browser",
        f"--LabApp.workspaces_dir={folder / '.jupyter/workspaces'}",
    } <= set(command)
    assert "--TagRemovePreprocessor.remove_input_tags=hide-input" in command  # of what it exports
    assert not any("token" in word or "password" in word or word == "root" for word in command)
    assert "--allow-root" not in command
    assert "--allow-root" in lab.lab_command(folder, as_root=True)
    lay_page(folder, "course.md", "the next step")
    assert "--LabApp.default_url=/lab/tree/course.md" in lab.lab_command(folder)


def test_kernels_are_of_this_python_and_run_our_start_up_file_unless_the_user_has_one():
    environ = {"JUPYTER_PATH": "/theirs", "HOME": "/home/me"}
    places = lab.lab_environ(environ)["JUPYTER_PATH"].split(os.pathsep)
    ours = Path(lab.__file__).parents[1] / "_jupyter"
    assert places == [str(Path(sys.prefix) / "share" / "jupyter"), str(ours), "/theirs"]
    assert (ours / "labextensions" / "distlab-course" / "package.json").is_file()
    assert environ["JUPYTER_PATH"] == "/theirs"
    assert Path(lab.lab_environ({})["PYTHONSTARTUP"]).is_file()
    assert lab.lab_environ({"PYTHONSTARTUP": "/mine.py"})["PYTHONSTARTUP"] == "/mine.py"


def test_a_missing_jupyterlab_is_explained(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnsupportedEnvironment, match=r'pip install "distlab\[lab\]"'):
        lab.check_jupyterlab()


def test_a_conclusion_that_waits_keeps_its_place_in_the_notebook():
    """Without a box it has none, and JupyterLab scrolls to the cell that Shift+Enter selects."""
    extension = Path(lab.__file__).parents[1] / "_jupyter/labextensions/distlab-course/static"
    style = (extension / "course.css").read_text(encoding="utf-8")
    (rule,) = re.findall(r"\.distlab-hidden \{(.*?)\}", style)
    assert "visibility: hidden" in rule
    assert "display" not in rule
