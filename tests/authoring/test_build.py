"""Notebooks from their sources: editions, drafts, builds, drift."""

import copy
import shutil
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat import v4

from distlab.authoring.__main__ import main
from distlab.authoring.build import build_pages, find_drift
from distlab.authoring.source import Page, draft_page, find_pages
from distlab.authoring.stored_form import canonical, stable_outputs
from distlab.course.editions import answered, leaking_lines, parse_answers, stubbed
from distlab.course.markup import CODE, TEXT
from distlab.errors import InvalidArgument, NotebookError, UnsupportedEnvironment

LESSON = """\
# %% [markdown]
# # Start here
#
# ## Overview

# %% tags=["hide-input"]
# %matplotlib inline
x = 2
print("x is", x)

# %%
x * 21
"""
EXERCISE = '''\
# %% [markdown]
# # Exercise

# %%
# task: double
def double(x):
    """Twice x."""
    ### BEGIN SOLUTION
    twice = x + x
    return twice
    ### END SOLUTION

# %%
# task: rate
### BEGIN SOLUTION
rate = 0.1 * 4
### STUB
rate = ...
### END SOLUTION
'''
REPORT = """
# %%
# report: speed
x = 2

# %% [markdown]
# <!-- report: speed -->
# **Which is slower?**
#
# <!-- BEGIN SOLUTION -->
# Four replicas, for each step.
# <!-- STUB -->
# *Your answer.*
# <!-- END SOLUTION -->
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    add_lesson(tmp_path, "00_start_here")
    return tmp_path


def add_lesson(root: Path, stem: str, lesson: str = LESSON, exercise: str = EXERCISE) -> None:
    folder = root / f"distlab/course/lesson_{stem}"
    folder.mkdir(parents=True)
    (folder / "lesson.py").write_text(lesson)
    (folder / "exercise.py").write_text(exercise)


def run_here(notebook, *, on_cell):
    """Stands in for a kernel: runs cells in this process, and notes times as nbclient does."""
    ran = copy.deepcopy(notebook)
    names = {}
    for index, cell in enumerate(ran.cells):
        if cell.cell_type != "code":
            continue
        texts = []
        names["print"] = lambda *words, texts=texts: texts.append(" ".join(map(str, words)) + "\n")
        source = "\n".join(line for line in cell.source.splitlines() if not line.startswith("%"))
        exec(source, names)
        # Counts with a gap, and one stream a line, as kernels may well send them.
        cell.execution_count = 10 + index
        cell.outputs = [v4.new_output("stream", name="stdout", text=text) for text in texts]
        cell.metadata["execution"] = {"iopub.status.busy": "now"}
        on_cell(index, cell)
    ran.metadata["language_info"] = {"name": "python", "version": sys.version}
    return ran


def build(root, *stems, execute=run_here, force=False, jobs=2, say=lambda line: None):
    pages = find_pages(root, stems)
    return build_pages(pages, execute=execute, force=force, jobs=jobs, say=say)


def outcomes(results):
    return {result.page.target: result.outcome for result in results}


def files(root):
    return {path.name + path.parent.name: path.read_bytes() for path in root.glob("*/*.ipynb")}


def replace_in(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


# Editions


def parse(source, marks=CODE):
    return parse_answers(source, file="distlab/course/lesson_00_x/exercise.py", line=5, marks=marks)


def test_a_stub_stands_where_the_answer_stood():
    block = "### BEGIN SOLUTION\n    return x\n    ### END SOLUTION"
    two = parse(f"def f(x):\n    {block}\n\ndef g(x):\n    {block}\n\nf")
    raising = 'raise NotImplementedError("your code here")'
    assert stubbed(two) == f"def f(x):\n    {raising}\n\ndef g(x):\n    {raising}\n\nf"
    assert answered(two) == "def f(x):\n    return x\n\ndef g(x):\n    return x\n\nf"
    own = parse("### BEGIN SOLUTION\na = 1\n### STUB\na = ...\n# why?\n### END SOLUTION")
    assert (stubbed(own), answered(own)) == ("a = ...\n# why?", "a = 1")


def test_markers_that_do_not_fit_name_file_and_line():
    for marks, source, line, found in (
        (CODE, "a\n    ### BEGIN SOLUTION\nb", 6, "without '### END SOLUTION'"),
        (CODE, "a\n### END SOLUTION", 6, "'### END SOLUTION' without"),
        (CODE, "### STUB\na", 5, "where no solution stands before it"),
        (CODE, "### BEGIN SOLUTION\na\n## stub\nb\n### END SOLUTION", 7, "looks like one"),
        (CODE, "a\n### BEGIN SOLUTION\nb\n### END SOLUTION", 6, "outside any function"),
        (CODE, "# <!-- BEGIN SOLUTION -->\n# the answer", 5, "looks like one"),
        (TEXT, "<!-- BEGIN SOLUTION -->\na\n<!-- END SOLUTION -->", 5, "without the lines"),
        (TEXT, "a\n<!--BEGIN SOLUTION-->", 6, "looks like one"),
    ):
        with pytest.raises(NotebookError) as error:
            parse(source, marks)
        assert f"distlab/course/lesson_00_x/exercise.py, line {line}\n" in str(error.value), source
        assert found in error.value.found, source


# Drafts


def test_both_editions_have_the_same_cells_but_for_the_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(Page, "points", lambda page: {"speed": 5})
    add_lesson(tmp_path, "00_x", exercise=EXERCISE + REPORT)
    drafts = [draft_page(Page(tmp_path, "00_x", name)) for name in ("exercise", "solution")]
    exercise, solution = (draft.notebook for draft in drafts)
    assert [cell.id for cell in exercise.cells] == [cell.id for cell in solution.cells]
    assert "twice = x + x" in solution.cells[1].source
    assert 'Twice x."""\n    raise NotImplementedError' in exercise.cells[1].source
    assert exercise.cells[2].source == "# task: rate\nrate = ..."
    question = "<!-- report: speed -->\n**Which is slower?**\n\n"
    assert exercise.cells[-1].source == question + "*Your answer.*"
    assert solution.cells[-1].source == question + "Four replicas, for each step."
    assert "Four replicas, for each step." in leaking_lines(list(drafts[0].parts))
    assert exercise.metadata.distlab.sha256 != solution.metadata.distlab.sha256


def test_a_source_that_cannot_be_meant_is_refused(tmp_path):
    cases = {
        "1 lines that start a cell, but 2 cells": ("# # Title\n\n# %%\nx\n", EXERCISE),
        "an empty cell": (LESSON + "\n# %%\n\n# %%\nx\n", EXERCISE),
        "a solution in a lesson": (LESSON + EXERCISE, EXERCISE),
        "in a cell that is no task": (LESSON, EXERCISE.replace("# task: rate\n", "")),
        "a second '# task: double'": (LESSON, EXERCISE.replace("task: rate", "task: double")),
        "'speed' without its picture": (LESSON, EXERCISE + REPORT.replace("# rep", "# x")),
    }
    for number, (found, sources) in enumerate(cases.items()):
        root = tmp_path / str(number)
        add_lesson(root, "00_x", *sources)
        with pytest.raises(NotebookError) as error:
            for page in find_pages(root):
                draft_page(page)
        assert found in error.value.found
        assert "distlab/course/lesson_00_x/" in error.value.asked


def test_lessons_that_are_not_there_are_refused(root, tmp_path_factory, monkeypatch):
    with pytest.raises(InvalidArgument, match=r"no distlab/course/lesson_\* there\n.*--root"):
        find_pages(tmp_path_factory.mktemp("empty"))
    with pytest.raises(InvalidArgument, match="did you mean '00_start_here'"):
        find_pages(root, ["00_start_her"])
    (root / "distlab/course/lesson_Extra").mkdir()
    with pytest.raises(NotebookError, match="lesson_Extra"):
        find_pages(root)
    monkeypatch.setitem(sys.modules, "jupytext", None)
    with pytest.raises(UnsupportedEnvironment, match=r'pip install "distlab\[test\]"'):
        draft_page(Page(root, "00_start_here", "lesson"))


# Builds


def test_a_build_stores_cells_and_outputs_and_nothing_of_the_run_in_the_same_bytes_twice(root):
    lines = []
    build(root, jobs=1, say=lines.append)
    assert lines[0] == "run     notebooks/00_start_here.ipynb: is missing"
    stored = nbformat.read(root / "notebooks/00_start_here.ipynb", as_version=4)
    nbformat.validate(stored)
    title, code, result = stored.cells
    assert [cell.id for cell in stored.cells] == [f"00_start_here-{n:03}" for n in (1, 2, 3)]
    assert title.source == "# Start here\n\n## Overview"
    assert code.source == '%matplotlib inline\nx = 2\nprint("x is", x)'
    assert code.metadata == {"tags": ["hide-input"], "jupyter": {"source_hidden": True}}
    assert (code.outputs[0].text, code.execution_count) == ("x is 2\n", 1)
    assert (result.source, result.metadata, result.execution_count) == ("x * 21", {}, 2)
    assert stored.metadata.language_info == {"name": "python"}
    before = files(root)
    assert len(before) == 3
    assert all(text.startswith(b'{\n "cells"') and text[-2:] == b"}\n" for text in before.values())
    build(root, force=True)
    assert files(root) == before


def test_only_what_changed_is_built_again(root):
    add_lesson(root, "01_next")
    assert set(outcomes(build(root)).values()) == {"built"}
    before = files(root)
    assert set(outcomes(build(root)).values()) == {"current"}
    replace_in(root / "notebooks/00_start_here.ipynb", "x = 2", "x = 3")  # by hand
    replace_in(root / "distlab/course/lesson_01_next/exercise.py", "Twice x", "Two x")
    assert [name for name, how in outcomes(build(root)).items() if how == "built"] == [
        "notebooks/00_start_here.ipynb",
        "exercises/01_next.ipynb",
        "solutions/01_next.ipynb",
    ]
    after = files(root)
    assert {name for name in before if before[name] != after[name]} == {
        "01_next.ipynbexercises",
        "01_next.ipynbsolutions",
    }
    with pytest.raises(InvalidArgument, match="--jobs 0"):
        build(root, jobs=0)


def test_a_failing_cell_keeps_the_old_file_and_names_the_place(root, capsys, monkeypatch):
    add_lesson(root, "01_next")
    monkeypatch.setattr("distlab.authoring.build._executor", lambda: run_here)
    assert main(["build", "--root", str(root)]) == 0
    assert "6 built, 0 current, 0 failed in" in capsys.readouterr().out
    before = files(root)
    replace_in(root / "distlab/course/lesson_00_start_here/lesson.py", "x * 21", "x / 0")
    replace_in(root / "distlab/course/lesson_01_next/lesson.py", "x * 21", "x * 22")
    assert main(["build", "--root", str(root)]) == 1
    written = capsys.readouterr().out
    assert "1 built, 4 current, 1 failed in" in written
    assert (
        "run notebooks/00_start_here.ipynb\n"
        "  found: cell 3, line 11 of distlab/course/lesson_00_start_here/lesson.py: "
        "ZeroDivisionError: division by zero\n"
        "  to do: mend that cell of distlab/course/lesson_00_start_here/lesson.py, "
        "then build again"
    ) in written
    after = files(root)
    assert {name for name in before if before[name] != after[name]} == {"01_next.ipynbnotebooks"}
    assert not list(root.rglob("*.part"))
    assert main(["build", "--root", str(root / "distlab")]) == 2
    assert "no distlab/course/lesson_* there" in capsys.readouterr().err


def test_an_exercise_is_in_its_place_while_it_runs_and_not_after_it_failed(root):
    """Its checks read there which code a learner is given."""
    target = root / "exercises/00_start_here.ipynb"
    source = root / "distlab/course/lesson_00_start_here/exercise.py"
    given = []

    def run(notebook, *, on_cell):
        if "rate = ..." in notebook.cells[-1].source:
            given.append(nbformat.read(target, as_version=4).cells[-1].source)
        return run_here(notebook, on_cell=on_cell)

    def fail(notebook, *, on_cell):
        raise NotebookError(asked="run", found="E: e", do="mend")

    build(root, execute=fail)
    assert files(root) == {}
    build(root, execute=run)
    before = files(root)
    replace_in(source, "rate = ...", "rate = ...  # of SGD")
    build(root, execute=fail)
    assert files(root) == before
    build(root, execute=run)
    assert given == ["# task: rate\nrate = ...", "# task: rate\nrate = ...  # of SGD"]


# Outputs


def stream(text, name="stdout"):
    return v4.new_output("stream", name=name, text=text)


def test_outputs_lose_what_varies_and_streams_are_merged_with_stdout_first():
    picture = v4.new_output("execute_result", {"image/png": "YWJj\nZGVm\n"}, execution_count=40)
    traceback = ["\x1b[0;31m---\x1b[0m", "Cell In[3], line 1", "\x1b[0;32mFile /x/y.py:9", "E: e"]
    error = v4.new_output("error", ename="E", evalue="e", traceback=traceback)
    outputs = [stream("w", "stderr"), stream("a"), stream("b"), picture, stream("c"), error]
    stable = stable_outputs(outputs, execution_count=4)
    assert [output.get("text") for output in stable] == ["ab", "w", None, "c", None]
    assert (stable[2].data, stable[2].execution_count) == ({"image/png": "YWJjZGVm"}, 4)
    assert stable[4].traceback == [traceback[0], traceback[1], traceback[3]]  # none of packages
    assert outputs[1].text == "a"


# A real kernel

REAL = """\
# %%
# %matplotlib inline
import sys

import matplotlib.pyplot as plt

print("out")
print("err", file=sys.stderr)
print("1 of 2\\r2 of 2\\nout agaim\\bn")

# %%
_ = plt.plot([1, 2])

# %% tags=["raises-exception"]
import json

json.loads("{")

# %% tags=["nbval-skip"]
stop
"""


def test_a_real_kernel_gives_the_same_bytes_twice_two_at_a_time(tmp_path):
    add_lesson(tmp_path, "00_real", lesson=REAL)
    add_lesson(tmp_path, "01_real", lesson=REAL + "\n# %%\n1 / 0\n")
    pages = [page for page in find_pages(tmp_path) if page.edition == "lesson"]
    good, bad = build_pages(pages)
    assert good.outcome == "built", good.error
    assert "cell 5, line 22 of distlab/course/lesson_01_real/lesson.py" in str(bad.error)
    assert "ZeroDivisionError: division by zero" in str(bad.error)
    before = files(tmp_path)
    assert build_pages(pages[:1], force=True)[0].outcome == "built"
    assert files(tmp_path) == before and len(before) == 1
    stored = nbformat.read(tmp_path / "notebooks/00_real.ipynb", as_version=4)
    assert [cell.execution_count for cell in stored.cells] == [1, 2, 3, None]
    assert [out.get("text") for out in stored.cells[0].outputs] == [
        *("out\n2 of 2\nout again\n", "err\n")
    ]
    assert "image/png" in stored.cells[1].outputs[0].data
    assert "site-packages" not in before["00_real.ipynbnotebooks"].decode()


# Drift

FOLDER = "distlab/course/lesson_00_start_here"
LESSON_PY, EXERCISE_PY = f"{FOLDER}/lesson.py", f"{FOLDER}/exercise.py"
NOTEBOOK, OLD = "notebooks/00_start_here.ipynb", "notebooks/07_old.ipynb"


def edit(old, new):
    return lambda path: replace_in(path, old, new)


def drop_a_cell(path):
    stored = nbformat.read(path, as_version=4)
    stored.cells.pop()
    path.write_text(canonical(stored))


# What is spoilt, and what is then said.
SPOILT = (
    (LESSON_PY, edit("x is", "x was"), f"{NOTEBOOK}: its source has changed since it was built"),
    (LESSON_PY, edit("x * 21", ""), f"{NOTEBOOK}: cannot be built: the cell at"),
    (NOTEBOOK, edit("x = 2", "x = 3"), f"{NOTEBOOK}: cell 2: its source is not what the source"),
    (NOTEBOOK, edit("hide-input", "x"), f"{NOTEBOOK}: cell 2: its metadata is not what the source"),
    (NOTEBOOK, edit("}\n", "}"), f"{NOTEBOOK}: was not written by the builder (keys, indent or"),
    (NOTEBOOK, drop_a_cell, f"{NOTEBOOK}: has 2 cells, its source 3"),
    (NOTEBOOK, edit('"execution_count": 2', '"execution_count": null'), f"{NOTEBOOK}: cell 3: was"),
    (NOTEBOOK, lambda path: path.write_text("{"), f"{NOTEBOOK}: is no readable notebook (NotJSON"),
    (NOTEBOOK, Path.unlink, f"{NOTEBOOK}: is missing"),
    (EXERCISE_PY, Path.unlink, f"{FOLDER}: has no exercise.py; write it"),
    (
        OLD,
        lambda path: path.write_text("{}"),
        f"{OLD}: has no distlab/course/lesson_07_old/lesson.py; write it",
    ),
)


def test_drift_names_each_difference(root, tmp_path_factory, capsys):
    build(root)
    assert main(["check", "--root", str(root)]) == 0
    assert capsys.readouterr().out == "all 3 notebooks are what their sources build\n"
    for place, spoil, said in SPOILT:
        other = tmp_path_factory.mktemp("spoilt") / "root"
        shutil.copytree(root, other)
        spoil(other / place)
        assert find_drift(other)[0].startswith(said)
        assert main(["check", "--root", str(other)]) == 1
        written = capsys.readouterr().out
        assert said in written and "make notebooks" in written
