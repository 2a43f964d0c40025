"""`distlab exercise`: what `new` makes works at once; `build` makes editions, and keeps yours."""

import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from distlab import cli
from distlab.authoring.exercise.new_exercise import make_exercise
from distlab.authoring.exercise.own_editions import BuildOptions, build_editions, own_page
from distlab.authoring.lint.lint_rules import fixed_sections, one_title, sentence_case
from distlab.authoring.source import draft_page
from distlab.course.checks.own_checks import load_own
from distlab.course.checks.registry import all_checks
from distlab.errors import InvalidArgument, NotebookError
from tests.support.limits import HANG_SECS

STEM = "20_my_topic"


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


def test_a_new_exercise_of_ones_own_is_a_private_one(own):
    (check,), _ = load_own(own.checks)
    assert (check.name, check.function, check.points) == ("mean_my_topic", "mean_loss", 2)
    # The grader knows an answer whose line `# task: name` is gone by its function.
    assert check.function not in {other.function for other in all_checks()}
    notebook = draft_page(own_page(own.source, "exercise")).notebook
    problems = [*one_title(notebook), *sentence_case(notebook)]
    assert problems + fixed_sections(notebook, edition="exercise") == []


def test_its_test_passes_and_notices_a_wrong_solution_and_a_stub_that_earns(own, tmp_path):
    wrong = make_exercise("21_wrong", folder=tmp_path / "wrong")
    right, end = "    return np.sum(sums) / np.sum(counts)\n", "    ### END SOLUTION"
    mean_of_means = "    return np.mean(sums / counts)\n"
    replace_in(wrong.source, f"{right}{end}", f"{mean_of_means}    ### STUB\n{right}{end}")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["--import-mode=importlib", own.test, wrong.test]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_SECS)
    assert "2 failed, 12 passed" in done.stdout, done.stdout + done.stderr
    failed = re.findall(r"(?m)^FAILED (\S+)::(\w+)", done.stdout)
    assert failed == [
        (wrong.test.relative_to(tmp_path).as_posix(), test)
        for test in ("test_the_solution_passes", "test_the_stub_earns_nothing")
    ]


def test_nothing_is_overwritten_and_a_wrong_name_is_refused(tmp_path):
    for name in ("my_topic", "20-my-topic", "20_My", "../20_x", "20_"):
        with pytest.raises(InvalidArgument, match="a name that is not two digits"):
            make_exercise(name, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
    first = make_exercise(STEM, here=tmp_path)
    assert first.is_own
    for path in first.files[:2]:
        path.unlink()
    first.test.write_text("mine")
    with pytest.raises(InvalidArgument) as error:
        make_exercise(STEM, here=tmp_path)
    assert f"found: {first.test}, which would be overwritten" in str(error.value)
    assert first.test.read_text() == "mine"
    assert not first.source.exists() and not first.checks.exists()
    # In a clone of the course, a package of checks takes the name, too.
    checks = tmp_path / f"distlab/course/lesson_{STEM}/checks"
    checks.mkdir(parents=True)
    with pytest.raises(InvalidArgument, match=f"{checks}, which would be overwritten"):
        make_exercise(STEM, here=tmp_path)


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


def test_checks_that_a_source_does_not_import_are_not_handed_out(own, tmp_path):
    replace_in(own.source, f"from lesson_{STEM} import CHECKS", "CHECKS = ()")
    built = build(own.source, tmp_path / "private")
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


def test_what_cannot_be_built_is_told_and_leaves_nothing(own, tmp_path):
    out, other = tmp_path / "out", make_exercise(STEM, folder=tmp_path / "other")
    (tmp_path / "my topic.py").touch()
    (tmp_path / "20_my_topic").mkdir()
    (tmp_path / "20_my_topic" / "exercise.py").touch()
    (tmp_path / "taken").write_text("mine")
    two = [own.source, other.source]
    cases = {
        "another source that makes": lambda: build_editions(two, BuildOptions(out=out)),
        "no file of that name": lambda: build(tmp_path / "none.py", out),
        "the name 'my topic.py'": lambda: build(tmp_path / "my topic.py", out),
        f"name its source: {tmp_path}/20_my_topic/exercise.py": lambda: build(
            tmp_path / "20_my_topic", out
        ),
        "taken, which is a file": lambda: build(own.source, tmp_path / "taken" / "deep"),
        "taken, which is a file ": lambda: make_exercise(STEM, folder=tmp_path / "taken"),
    }
    wrong = {}
    for told, call in cases.items():
        with pytest.raises(InvalidArgument) as error:
            call()
        if told.strip() not in str(error.value):
            wrong[told] = str(error.value)
    assert wrong == {} and not out.exists()
    assert (tmp_path / "taken").read_text() == "mine"


def test_what_is_wrong_in_a_source_or_its_checks_is_told_by_its_place(own, tmp_path):
    source, checks, out = own.source.read_text(), own.checks.read_text(), tmp_path / "out"
    marks = ("    ### BEGIN SOLUTION\n", "    ### END SOLUTION\n")
    report = (
        "from distlab.course.checks.rubric import RubricRow, WrittenReport\n"
        'REPORTS = (WrittenReport("mean_my_topic", "", (RubricRow("why", 1, ""),)),)\n'
    )
    sources = {
        "students would get all of it": source.replace(marks[0], "").replace(marks[1], ""),
        "no Python: '(' was never closed: def mean_loss(sums, counts:": source.replace(
            "def mean_loss(sums, counts):", "def mean_loss(sums, counts:"
        ),
        "no function 'mean_loss', which the check": source.replace("mean_loss(", "mean_losses("),
        "the task 'mean', and no check of that name": source.replace(
            "# task: mean_my_topic", "# task: mean"
        ),
        "an import of lesson_21_other": source.replace(own.checks.stem, "lesson_21_other"),
    }
    fault = 'Fault("mean_of_means", mean='
    line = {start: checks[: checks.index(start)].count("\n") + 1 for start in ("criteria=", fault)}
    one = 'criteria=Close("equal", "", atol=1),\n    hint="", revisit="")\nCHECKS = (_MEAN,)\n'
    texts = {
        "no tuple CHECKS of checks": "CHECKS = [1]",
        "found: CHECKS = (Check(...)): a comma is missing": checks.replace("(_MEAN,)", "(_MEAN)"),
        f"{own.checks}, line {line['criteria=']}\n  "
        "found: criteria=(Close(...)): a comma is missing\n  "
        "to do: write (Close(...),)": checks[: checks.index("criteria=")] + one,
        f"Check(name='mean_my_topic') in {own.checks}, line {line[fault] - 1}\n  "
        "found: mistakes=Fault('mean_of_means', means=...), and a reference without means\n  "
        "to do: did you mean 'mean'? Or choose one of 'mean'": checks.replace(
            fault, fault.replace("mean=", "means=")
        ),
        "NameError in line 1: name 'Check' is not defined": "CHECKS = (Check(),)",
        "two checks or reports of the name 'mean_my_topic'": checks + report,
    }
    cases = [(told, text, checks) for told, text in sources.items()]
    cases += [(told, source, text) for told, text in texts.items()]
    wrong = {}
    for told, of_source, of_checks in cases:
        own.source.write_text(of_source)
        own.checks.write_text(of_checks)
        with pytest.raises((NotebookError, InvalidArgument)) as error:
            build(own.source, out)
        place = f"{STEM}.py, line" if of_checks == checks else str(own.checks)
        if told not in str(error.value) or (of_checks == checks and place not in str(error.value)):
            wrong[told] = str(error.value)
    assert wrong == {} and not out.exists()
    own.checks.unlink()
    with pytest.raises(InvalidArgument, match="no file of checks: there is no"):
        build(own.source, out)


# The command


def test_the_command_makes_and_builds(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["exercise", "new", STEM, "--folder", str(tmp_path)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"new  {tmp_path / STEM}.py"
    _, _, *command = said[-1].split()
    assert command[:3] == ["distlab", "exercise", "build"]
    assert cli.main(command[1:]) == 0
    out = Path("handout")
    assert capsys.readouterr().out.splitlines()[0] == f"new         {out}/exercises/{STEM}.ipynb"
    mine = out / "exercises" / f"{STEM}.ipynb"
    mine.write_text("mine")
    assert cli.main(command[1:]) == 2
    assert "overwrite it with --force" in capsys.readouterr().err
    assert mine.read_text() == "mine"
    assert cli.main([*command[1:], "--force", "--no-solutions"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("overwritten ") and "solutions" not in "".join(said)
    assert json.loads(mine.read_text())["nbformat"] == 4
