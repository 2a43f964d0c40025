"""`distlab exercise`: what `new` makes works at once; `build` makes editions, and keeps yours."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from distlab import cli
from distlab.autograder.intake.private_checks import load_checks
from distlab.checks.registry import all_checks
from distlab.errors import InvalidArgument, NotebookError, UnsupportedEnvironment
from distlab.exercise.building import BuildOptions, build_editions
from distlab.exercise.new_exercise import make_exercise
from distlab.exercise.pages import own_page
from distlab.notebooks.lint_text import fixed_sections, one_title, sentence_case
from distlab.notebooks.source import Page, draft_page
from tests.support.repository import ROOT

STEM = "20_my_topic"
COURSE = (
    f"lessons/{STEM}/exercise.py",
    f"distlab/checks/lesson_{STEM}.py",
    f"tests/lessons/test_{STEM}.py",
)


def run(*arguments, folder, **environ):
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def outcome_of(test, folder, *options, **environ):
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(test)]
    said = run(*command, folder=folder, **environ)
    return said.strip().splitlines()[-1].split(" in ")[0]


@pytest.fixture
def own(tmp_path):
    """A teacher's own exercise."""
    return make_exercise(STEM, folder=tmp_path / "mine")


def build(source, out, **options):
    built = build_editions([source], BuildOptions(out=out, **options))
    return {one.path.relative_to(out).as_posix(): one.outcome for one in built}


def replace_in(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


# New


def test_a_new_exercise_of_ones_own_works_at_once(own):
    assert outcome_of(own.test, own.test.parent) == "7 passed"


def test_its_test_works_from_above_with_the_import_mode_of_this_repository(own):
    above = own.test.parent.parent
    assert outcome_of(own.test, above, "--import-mode=importlib") == "7 passed"


def test_its_test_notices_a_wrong_solution(own):
    replace_in(own.source, "return np.sum(sums) / np.sum(counts)", "return np.mean(sums / counts)")
    with pytest.raises(AssertionError, match="1 failed, 6 passed"):
        outcome_of(own.test, own.test.parent)


def test_its_test_notices_a_stub_that_earns(own):
    end = "    ### END SOLUTION"
    replace_in(own.source, end, "    ### STUB\n    return np.mean(sums / counts)\n" + end)
    with pytest.raises(AssertionError, match="1 failed, 6 passed"):
        outcome_of(own.test, own.test.parent)


def test_its_checks_can_be_a_teachers_private_ones(own):
    (check,) = load_checks(own.checks)
    assert (check.name, check.function, check.points) == ("mean_my_topic", "mean_loss", 2)


def test_its_function_is_no_exercises_of_the_course(own):
    # The grader knows an answer whose line `# task: name` is gone by its function.
    (check,) = load_checks(own.checks)
    assert check.function not in {other.function for other in all_checks()}


def test_in_a_clone_a_new_exercise_is_a_lessons_and_works_at_once(tmp_path):
    shutil.copytree(ROOT / "distlab", tmp_path / "distlab", ignore=lambda *_: ["__pycache__"])
    (tmp_path / "lessons").mkdir()
    for name in ("lessons/conftest.py", "support/lesson_checks.py", "support/repository.py"):
        place = tmp_path / "tests" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "tests" / name, place)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    clone = {"folder": tmp_path, "PYTHONPATH": str(tmp_path)}  # not the one that is installed

    said = run("-m", "distlab.cli", "exercise", "new", STEM, **clone)
    assert said.splitlines()[:3] == [f"new  {path}" for path in COURSE]
    assert said.splitlines()[-1] == "build it:  make notebooks"
    test = COURSE[-1]
    assert outcome_of(test, clone["folder"], PYTHONPATH=clone["PYTHONPATH"]) == "8 passed"
    run("-m", "ruff", "check", *COURSE, **clone)
    run("-m", "ruff", "format", "--check", *COURSE, **clone)
    run("-m", "distlab.cli", "exercise", "build", COURSE[0], "--out", "out", **clone)
    made = nbformat.read(tmp_path / "out" / "exercises" / f"{STEM}.ipynb", as_version=4)
    assert made.metadata.distlab.source == f"{STEM}/exercise.py"
    points = [
        c.metadata.nbgrader.points for c in made.cells if "points" in c.metadata.get("nbgrader", {})
    ]
    assert points == [2]


@pytest.mark.parametrize("own", [True, False])
def test_nothing_is_overwritten_and_nothing_made_beside_it(tmp_path, own):
    if not own:
        (tmp_path / "lessons").mkdir()
        (tmp_path / "distlab" / "checks").mkdir(parents=True)
    first = make_exercise(STEM, here=tmp_path)
    assert first.is_own == own
    for path in first.files[:2]:
        path.unlink()
    first.test.write_text("mine")
    with pytest.raises(InvalidArgument) as error:
        make_exercise(STEM, here=tmp_path)
    assert str(error.value) == (
        f"a new exercise '{STEM}'\n"
        f"  found: {first.test}, which would be overwritten\n"
        "  to do: take another name, or another --folder"
    )
    assert first.test.read_text() == "mine"
    assert not first.source.exists() and not first.checks.exists()


def test_a_package_of_checks_takes_the_name_too(tmp_path):
    (tmp_path / "lessons").mkdir()
    package = tmp_path / "distlab" / "checks" / f"lesson_{STEM}"
    package.mkdir(parents=True)
    with pytest.raises(InvalidArgument, match=f"lesson_{STEM}, which would be overwritten"):
        make_exercise(STEM, here=tmp_path)


@pytest.mark.parametrize("name", ["my_topic", "20-my-topic", "20_My", "../20_x", "20_"])
def test_a_name_that_is_no_lessons_is_refused(tmp_path, name):
    with pytest.raises(InvalidArgument, match="a name that is not two digits"):
        make_exercise(name, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_is_made_keeps_the_rules_of_notebooks(own):
    notebook = draft_page(own_page(own.source, "exercise")).notebook
    found = [*one_title(notebook), *sentence_case(notebook)]
    assert found + fixed_sections(notebook, edition="exercise") == []


# Build


def test_both_editions_are_built_and_the_checks_lie_beside_them(own, tmp_path):
    assert build(own.source, tmp_path / "out") == {
        f"exercises/{STEM}.ipynb": "new",
        f"exercises/lesson_{STEM}.py": "new",
        f"solutions/{STEM}.ipynb": "new",
        f"solutions/lesson_{STEM}.py": "new",
    }
    exercise, solution = (
        tmp_path / "out" / part / f"{STEM}.ipynb" for part in ("exercises", "solutions")
    )
    answer = "return np.sum(sums) / np.sum(counts)"
    assert answer in solution.read_text() and answer not in exercise.read_text()
    assert 'raise NotImplementedError(\\"your code here\\")' in exercise.read_text()
    assert str(tmp_path) not in exercise.read_text()
    cells = nbformat.read(exercise, as_version=4).cells
    marks = [cell.metadata.nbgrader for cell in cells if "nbgrader" in cell.metadata]
    assert [(m.grade_id, m.get("points")) for m in marks] == [
        ("mean_my_topic", None),
        ("mean_my_topic-check", 2),
    ]
    assert all(cell.execution_count is None for cell in cells if cell.cell_type == "code")


def test_without_solutions_there_is_nothing_of_them(own, tmp_path):
    built = build(own.source, tmp_path / "out", solutions=False)
    assert set(built) == {f"exercises/{STEM}.ipynb", f"exercises/lesson_{STEM}.py"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"exercises"}


def test_checks_that_a_source_does_not_import_stay_private(own, tmp_path):
    replace_in(own.source, f"from lesson_{STEM} import CHECKS", "CHECKS = ()")
    built = build(own.source, tmp_path / "out")
    assert set(built) == {f"exercises/{STEM}.ipynb", f"solutions/{STEM}.ipynb"}


def test_executed_editions_show_what_the_checks_say(own, tmp_path, monkeypatch):
    monkeypatch.setenv("DISTLAB_WARM", "0")
    before = {path: path.read_bytes() for path in own.files}
    build(own.source, tmp_path / "out", execute=True)
    said = {}
    for edition in ("exercises", "solutions"):
        notebook = nbformat.read(tmp_path / "out" / edition / f"{STEM}.ipynb", as_version=4)
        (said[edition],) = [
            c.outputs[0].data["text/plain"] for c in notebook.cells if c.get("outputs")
        ]
    assert said["exercises"].startswith("mean_my_topic: not started (0 of 2 points)")
    assert said["solutions"].startswith("mean_my_topic: passed (2 of 2 points)")
    assert {path: path.read_bytes() for path in own.files} == before


def test_a_cell_that_fails_names_its_line_and_leaves_nothing(own, tmp_path, monkeypatch):
    monkeypatch.setenv("DISTLAB_WARM", "0")
    replace_in(own.source, "import numpy as np", "import numpy as np; 1 / 0")
    with pytest.raises(NotebookError) as error:
        build(own.source, tmp_path / "out", execute=True)
    assert f"cell 3, line 17 of {STEM}.py: it raised ZeroDivisionError" in error.value.found
    assert not (tmp_path / "out").exists()


def test_a_notebook_that_differs_is_overwritten_by_force_alone(own, tmp_path):
    out = tmp_path / "out"
    build(own.source, out)
    assert set(build(own.source, out).values()) == {"current"}
    mine = out / "solutions" / f"{STEM}.ipynb"
    mine.write_text("mine")
    (out / "exercises" / f"{STEM}.ipynb").unlink()
    with pytest.raises(InvalidArgument) as error:
        build(own.source, out)
    assert str(error.value) == (
        f"write {mine}\n"
        "  found: a file of that name that differs\n"
        "  to do: give another --out, or overwrite it with --force"
    )
    assert mine.read_text() == "mine"
    assert not (out / "exercises" / f"{STEM}.ipynb").exists()
    assert build(own.source, out, force=True)[f"solutions/{STEM}.ipynb"] == "overwritten"
    assert json.loads(mine.read_text())["nbformat"] == 4


def test_exercises_of_the_course_can_be_handed_out_without_solutions(tmp_path):
    sources = sorted((ROOT / "lessons").glob("0[01]_*/exercise.py"))
    build_editions(sources, BuildOptions(out=tmp_path, solutions=False))
    for source in sources:
        stem = source.parent.name
        mine = nbformat.read(tmp_path / "exercises" / f"{stem}.ipynb", as_version=4)
        assert mine.cells == draft_page(Page(ROOT, stem, "exercise")).notebook.cells
    assert len(sources) == 2
    assert not (tmp_path / "solutions").exists()


def test_two_sources_of_one_name_are_refused(own, tmp_path):
    other = make_exercise(STEM, folder=tmp_path / "other")
    with pytest.raises(InvalidArgument, match="another source that makes"):
        build_editions([own.source, other.source], BuildOptions(out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("none.py", "no file of that name"),
        ("my topic.py", "the name 'my topic.py'"),
        ("", "a folder"),
    ],
)
def test_a_source_that_cannot_be_one_is_refused(tmp_path, name, found):
    (tmp_path / "my topic.py").touch()
    with pytest.raises(InvalidArgument, match="the notebooks of ") as error:
        build(tmp_path / name, tmp_path / "out")
    assert error.value.found == found


def test_a_folder_that_is_a_file_is_refused(own, tmp_path):
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(InvalidArgument, match="taken, which is a file") as error:
        build(own.source, tmp_path / "taken" / "deep")
    assert error.value.asked == f"write to {tmp_path}/taken/deep"
    with pytest.raises(InvalidArgument, match="taken, which is a file"):
        make_exercise(STEM, folder=tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_file_of_checks_that_is_not_there_is_refused(own, tmp_path):
    with pytest.raises(InvalidArgument, match="no file of checks none"):
        build(own.source, tmp_path / "out", checks=Path("none.py"))


def test_a_folder_in_place_of_a_lessons_source_is_told_with_the_source(tmp_path):
    (tmp_path / "20_my_topic").mkdir()
    (tmp_path / "20_my_topic" / "exercise.py").touch()
    with pytest.raises(InvalidArgument) as error:
        build(tmp_path / "20_my_topic", tmp_path / "out")
    assert error.value.do == f"give its source: {tmp_path}/20_my_topic/exercise.py"


def test_checks_that_are_not_beside_their_source_are_missed_by_name(own, tmp_path):
    own.checks.unlink()
    with pytest.raises(InvalidArgument) as error:
        build(own.source, tmp_path / "out")
    assert error.value.found.endswith(f"and no file of checks: there is no {own.checks}")
    assert error.value.do == "put it there, or name it with --checks"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("CHECKS = (", "SyntaxError: '(' was never closed"),
        ("CHECKS = [1]", "no tuple CHECKS of checks"),
        ("CHECKS = ()\nREPORTS = [1]", "REPORTS that is not a tuple of reports"),
    ],
)
def test_a_file_of_checks_that_is_none_is_told_as_that(own, tmp_path, text, found):
    own.checks.write_text(text)
    with pytest.raises(InvalidArgument) as error:
        build(own.source, tmp_path / "out")
    assert error.value.asked == f"the checks of {own.checks}"
    assert error.value.found.startswith(found)


def test_a_task_that_would_hand_out_its_answer_is_refused(own, tmp_path):
    for mark in ("### BEGIN SOLUTION", "### END SOLUTION"):
        replace_in(own.source, f"    {mark}\n", "")
    with pytest.raises(NotebookError, match=f"the cell at {STEM}.py, line 42") as error:
        build(own.source, tmp_path / "out")
    assert error.value.found.endswith("'### BEGIN SOLUTION': students would get all of it")
    assert not (tmp_path / "out").exists()


def test_a_cell_that_is_no_python_is_refused(own, tmp_path):
    replace_in(own.source, "def mean_loss(sums, counts):", "def mean_loss(sums, counts:")
    with pytest.raises(NotebookError, match=f"the cell at {STEM}.py, line 42") as error:
        build(own.source, tmp_path / "out")
    assert error.value.found == "no Python: '(' was never closed: def mean_loss(sums, counts:"
    assert not (tmp_path / "out").exists()


def test_magics_and_a_bare_await_are_python_enough(own, tmp_path):
    more = "\n# %%\n# %time np.zeros(2)\n# !ls\nawait something()\n"
    own.source.write_text(own.source.read_text() + more)
    assert build(own.source, tmp_path / "out")


def test_a_report_that_is_called_like_a_check_is_refused(own, tmp_path):
    report = 'REPORTS = (WrittenReport("mean_my_topic", "", (RubricRow("why", 1, ""),)),)\n'
    more = "from distlab.checks.rubric import RubricRow, WrittenReport\n" + report
    own.checks.write_text(own.checks.read_text() + more)
    with pytest.raises(InvalidArgument) as error:
        build(own.source, tmp_path / "out")
    assert error.value.found == "two checks or reports of the name 'mean_my_topic'"


def test_a_check_that_its_file_does_not_have_is_refused(own, tmp_path):
    replace_in(own.source, 'checks["mean_my_topic"]', 'checks["mean_my_topik"]')
    with pytest.raises(NotebookError, match=f"{STEM}.py, line 50") as error:
        build(own.source, tmp_path / "out")
    assert "did you mean 'mean_my_topic'?" in error.value.do


def test_without_jupytext_the_error_names_the_extra(own, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jupytext", None)
    with pytest.raises(UnsupportedEnvironment, match="no jupytext here") as error:
        build(own.source, tmp_path / "out")
    assert error.value.do == 'pip install "distlab[test]"'


# The command


def test_the_command_makes_and_builds(tmp_path, capsys):
    assert cli.main(["exercise", "new", STEM, "--folder", str(tmp_path)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"new  {tmp_path / STEM}.py"
    _, _, *command = said[-1].split()
    assert command[:3] == ["distlab", "exercise", "build"]
    assert cli.main(command[1:]) == 0
    out = tmp_path / "handout"
    assert capsys.readouterr().out.splitlines()[0] == f"new         {out}/exercises/{STEM}.ipynb"
    (out / "exercises" / f"{STEM}.ipynb").write_text("mine")
    assert cli.main(command[1:]) == 2
    assert "overwrite it with --force" in capsys.readouterr().err
    assert cli.main([*command[1:], "--force", "--no-solutions"]) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("overwritten ")
