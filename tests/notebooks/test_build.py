"""Notebooks from their sources: editions, drafts, builds, drift."""

import contextlib
import copy
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat import v4

from distlab.errors import InvalidArgument, NotebookError, UnsupportedEnvironment
from distlab.markup import CODE, TEXT
from distlab.notebooks.__main__ import main
from distlab.notebooks.build import build_pages
from distlab.notebooks.drift import find_drift
from distlab.notebooks.editions import answered, leaking_lines, parse_answers, stubbed
from distlab.notebooks.source import Page, draft_page, find_pages
from distlab.notebooks.storing import canonical, stable_outputs

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
    folder = root / "lessons" / stem
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
    return parse_answers(source, file="lessons/00_x/exercise.py", line=5, marks=marks)


def test_a_stub_raises_where_the_answer_stood():
    parts = parse("def f(x):\n    ### BEGIN SOLUTION\n    return x\n    ### END SOLUTION\n\nf")
    assert stubbed(parts) == ('def f(x):\n    raise NotImplementedError("your code here")\n\nf')
    assert answered(parts) == "def f(x):\n    return x\n\nf"


def test_a_stub_of_its_own_stands_in_for_the_placeholder():
    parts = parse("### BEGIN SOLUTION\na = 1\n### STUB\na = ...\n# why?\n### END SOLUTION")
    assert stubbed(parts) == "a = ...\n# why?"
    assert answered(parts) == "a = 1"


def test_one_cell_may_hold_two_answers():
    block = "    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION"
    parts = parse(f"def f():\n{block}\ndef g():\n{block}")
    assert stubbed(parts).count("NotImplementedError") == 2
    assert "###" not in answered(parts) + stubbed(parts)


@pytest.mark.parametrize(
    ("source", "line", "found"),
    [
        ("a\n    ### BEGIN SOLUTION\nb", 6, "without '### END SOLUTION'"),
        ("a\n### END SOLUTION", 6, "'### END SOLUTION' without"),
        ("  ### BEGIN SOLUTION\n  ### BEGIN SOLUTION", 6, "the block of line 5 is still open"),
        ("### STUB\na", 5, "where no solution stands before it"),
        ("### BEGIN SOLUTION\n### STUB\n### STUB\n### END SOLUTION", 7, "no solution stands"),
        ("a\n### begin solution\nb", 6, "looks like one"),
        ("  ### BEGIN SOLUTION\n  x\n  ### END SOLUTIONS", 7, "looks like one"),
        ("### BEGIN SOLUTION\na\n## stub\nb\n### END SOLUTION", 7, "looks like one"),
        ("a\n### BEGIN SOLUTION\nb\n### END SOLUTION", 6, "outside any function"),
    ],
)
def test_markers_that_do_not_fit_name_file_and_line(source, line, found):
    with pytest.raises(NotebookError) as error:
        parse(source)
    assert f"lessons/00_x/exercise.py, line {line}\n" in str(error.value)
    assert found in error.value.found


@pytest.mark.parametrize(
    ("source", "line", "found"),
    [
        ("<!-- BEGIN SOLUTION -->\na\n<!-- END SOLUTION -->", 5, "without the lines"),
        ("a\n<!-- BEGIN SOLUTION -->\nb", 6, "without '<!-- END SOLUTION -->'"),
        ("<!-- STUB -->", 5, "where no solution stands before it"),
        ("a\n<!--BEGIN SOLUTION-->", 6, "looks like one"),
        ("<!-- BEGIN SOLUTION -->\nb\n<!-- Stub -->", 7, "looks like one"),
        ("a\n<!- end solution ->", 6, "looks like one"),
        ("a\n### BEGIN SOLUTION", 6, "looks like one"),
    ],
)
def test_markers_of_a_text_that_do_not_fit_name_file_and_line(source, line, found):
    with pytest.raises(NotebookError) as error:
        parse(source, TEXT)
    assert f"lessons/00_x/exercise.py, line {line}\n" in str(error.value)
    assert found in error.value.found


def test_markers_of_a_text_are_refused_among_code():
    with pytest.raises(NotebookError, match="looks like one"):
        parse("# <!-- BEGIN SOLUTION -->\n# the answer")


def test_leaking_lines_are_the_telling_ones_that_the_exercise_does_not_show():
    parts = parse(
        "def f(a, b, c):\n    check(a, b, c)\n    ### BEGIN SOLUTION\n    check(a, b, c)\n"
        "    total = a + b + c\n    return total\n    ### END SOLUTION"
    )
    assert leaking_lines([parts]) == ["total = a + b + c"]


# Drafts


def test_a_draft_has_ids_tags_magics_and_plain_metadata(root):
    draft = draft_page(Page(root, "00_start_here", "lesson"))
    cells = draft.notebook.cells
    assert [cell.id for cell in cells] == [f"00_start_here-{n:03}" for n in (1, 2, 3)]
    assert [cell.metadata for cell in cells] == [{}, {"tags": ["hide-input"]}, {}]
    assert cells[0].source == "# Start here\n\n## Overview"
    assert cells[1].source == '%matplotlib inline\nx = 2\nprint("x is", x)'
    assert draft.lines == (1, 6, 11)
    assert draft.notebook.nbformat_minor == 5
    assert draft.notebook.metadata.language_info == {"name": "python"}
    assert draft.notebook.metadata.kernelspec.name == "python3"
    assert draft.notebook.metadata.distlab.source == "lessons/00_start_here/lesson.py"
    nbformat.validate(draft.notebook)


def test_cell_magics_survive(root):
    source = "# %%\n# %%workers\n# %time\nx = 1\n"
    add_lesson(root, "01_magics", lesson=source)
    draft = draft_page(Page(root, "01_magics", "lesson"))
    assert [cell.source for cell in draft.notebook.cells] == ["%%workers\n%time\nx = 1"]


def test_both_editions_have_the_same_cells_but_for_the_answers(root):
    exercise = draft_page(Page(root, "00_start_here", "exercise")).notebook
    solution = draft_page(Page(root, "00_start_here", "solution")).notebook
    assert [cell.id for cell in exercise.cells] == [cell.id for cell in solution.cells]
    for cell in (*exercise.cells[1:], *solution.cells[1:]):
        assert cell.source.startswith("# task: ")
    assert "twice = x + x" in solution.cells[1].source
    assert 'Twice x."""\n    raise NotImplementedError' in exercise.cells[1].source
    assert exercise.cells[2].source == "# task: rate\nrate = ..."
    assert exercise.metadata.distlab.sha256 != solution.metadata.distlab.sha256


def test_a_report_has_its_model_text_in_the_solution_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(Page, "points", lambda page: {"speed": 5})
    add_lesson(tmp_path, "00_x", exercise=EXERCISE + REPORT)
    exercise, solution = (
        draft_page(Page(tmp_path, "00_x", edition)) for edition in ("exercise", "solution")
    )
    shown = "<!-- report: speed -->\n**Which is slower?**\n\n"
    assert exercise.notebook.cells[-1].source == shown + "*Your answer.*"
    assert solution.notebook.cells[-1].source == shown + "Four replicas, for each step."
    assert "Four replicas, for each step." in leaking_lines(list(exercise.parts))


@pytest.mark.parametrize(
    ("lesson", "exercise", "found"),
    [
        ("# # Title\n\n# %%\nx\n", EXERCISE, "1 lines that start a cell, but 2 cells"),
        ("", EXERCISE, "0 lines that start a cell"),
        (LESSON + "\n# %%\n\n# %%\nx\n", EXERCISE, "an empty cell"),
        (LESSON + EXERCISE, EXERCISE, "a solution in a lesson"),
        (LESSON, EXERCISE.replace("# task: rate\n", ""), "in a cell that is no task"),
        (LESSON, EXERCISE.replace("task: rate", "task: double"), "a second '# task: double'"),
        (LESSON, EXERCISE + REPORT + REPORT, "a second '# report: speed'"),
        (LESSON, EXERCISE + REPORT.replace("# report", "# draw"), "'speed' without its picture"),
        (LESSON, EXERCISE + REPORT.replace("<!-- report", "<!-- repor"), "in a text cell"),
        (LESSON, EXERCISE + "\n# %% [markdown]\n# ### BEGIN SOLUTION\n", "looks like one"),
    ],
)
def test_a_source_that_cannot_be_meant_is_refused(tmp_path, lesson, exercise, found):
    add_lesson(tmp_path, "00_x", lesson, exercise)
    with pytest.raises(NotebookError) as error:
        for page in find_pages(tmp_path):
            draft_page(page)
    assert found in error.value.found
    assert "lessons/00_x/" in error.value.asked


def test_no_lessons_folder_says_where_to_run(tmp_path):
    with pytest.raises(InvalidArgument, match=r"no folder 'lessons' there\n.*--root"):
        find_pages(tmp_path)


def test_a_misspelt_lesson_is_answered_with_the_near_one(root):
    with pytest.raises(InvalidArgument, match="did you mean '00_start_here'"):
        find_pages(root, ["00_start_her"])


def test_a_folder_not_named_like_a_lesson_is_refused(root):
    (root / "lessons" / "Extra").mkdir()
    with pytest.raises(NotebookError, match="lessons/Extra"):
        find_pages(root)


def test_missing_tools_say_what_to_install(root, monkeypatch):
    monkeypatch.setitem(sys.modules, "jupytext", None)
    with pytest.raises(UnsupportedEnvironment, match=r'pip install "distlab\[test\]"'):
        draft_page(Page(root, "00_start_here", "lesson"))


# Builds


def test_a_build_stores_outputs_and_nothing_of_the_run(root):
    build(root)
    stored = nbformat.read(root / "notebooks/00_start_here.ipynb", as_version=4)
    assert [cell.get("execution_count") for cell in stored.cells] == [None, 1, 2]
    assert stored.cells[1].outputs[0].text == "x is 2\n"
    assert stored.cells[1].metadata == {"tags": ["hide-input"]}
    assert "version" not in stored.metadata.language_info
    text = (root / "notebooks/00_start_here.ipynb").read_text()
    assert text.startswith('{\n "cells"') and text.endswith("}\n")


def test_building_twice_gives_the_same_bytes(root):
    build(root)
    before = files(root)
    assert len(before) == 3
    build(root, force=True)
    assert files(root) == before


def test_only_what_changed_is_built_again(root):
    add_lesson(root, "01_next")
    assert set(outcomes(build(root)).values()) == {"built"}
    assert set(outcomes(build(root)).values()) == {"current"}
    replace_in(root / "lessons/01_next/exercise.py", "Twice x", "Two x")
    assert [name for name, how in outcomes(build(root)).items() if how == "built"] == [
        "exercises/01_next.ipynb",
        "solutions/01_next.ipynb",
    ]


def test_a_notebook_edited_by_hand_is_built_again(root):
    build(root)
    before = files(root)
    replace_in(root / "notebooks/00_start_here.ipynb", "x = 2", "x = 3")
    results = build(root)
    assert outcomes(results)["notebooks/00_start_here.ipynb"] == "built"
    assert files(root) == before


def test_a_failing_cell_keeps_the_old_file_and_names_the_place(root):
    add_lesson(root, "01_next")
    build(root)
    before = files(root)
    replace_in(root / "lessons/00_start_here/lesson.py", "x * 21", "x / 0")
    replace_in(root / "lessons/01_next/lesson.py", "x * 21", "x * 22")
    results = build(root, jobs=1)
    assert outcomes(results)["notebooks/00_start_here.ipynb"] == "failed"
    assert outcomes(results)["notebooks/01_next.ipynb"] == "built"
    assert str(results[0].error) == (
        "run notebooks/00_start_here.ipynb\n"
        "  found: cell 3, line 11 of lessons/00_start_here/lesson.py: "
        "ZeroDivisionError: division by zero\n"
        "  to do: mend that cell of lessons/00_start_here/lesson.py, "
        "then build again"
    )
    after = files(root)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"01_next.ipynbnotebooks"}
    assert not list(root.rglob("*.part"))


def test_an_exercise_is_in_its_place_while_it_runs(root):
    """Its checks read there which code a learner is given."""
    target = root / "exercises/00_start_here.ipynb"
    given = []

    def run(notebook, *, on_cell):
        if "rate = ..." in notebook.cells[-1].source:
            given.append([cell.source for cell in nbformat.read(target, as_version=4).cells])
        return run_here(notebook, on_cell=on_cell)

    build(root, execute=run)
    from_nothing = files(root)
    replace_in(root / "lessons/00_start_here/exercise.py", "rate = ...", "rate = ...  # of SGD")
    build(root, execute=run)
    assert [cells[-1] for cells in given] == [
        "# task: rate\nrate = ...",
        "# task: rate\nrate = ...  # of SGD",
    ]
    replace_in(root / "lessons/00_start_here/exercise.py", "  # of SGD", "")
    build(root, execute=run)
    assert files(root) == from_nothing


def test_an_exercise_that_fails_leaves_what_was_there(root):
    def fail(notebook, *, on_cell):
        raise NotebookError(asked="run", found="E: e", do="mend")

    build(root, execute=fail)
    assert files(root) == {}
    build(root)
    before = files(root)
    replace_in(root / "lessons/00_start_here/exercise.py", "rate = ...", "rate = 1 / 0")
    build(root, execute=fail)
    assert files(root) == before


def test_a_cell_that_reports_before_it_fails_is_still_the_one_named(root):
    def fail(notebook, *, on_cell):
        ran = copy.deepcopy(notebook)
        ran.cells[1].outputs = [v4.new_output("error", ename="E", evalue="e", traceback=[])]
        on_cell(1, ran.cells[1])
        raise NotebookError(asked="run", found="E: e", do="mend")

    (result, *_) = build(root, execute=fail)
    assert "cell 2, line 6 of lessons/00_start_here/lesson.py: E: e" in str(result.error)


def test_progress_says_why_and_how_long(root):
    said = []
    build(root, jobs=1, say=said.append)
    assert said[0] == "run     notebooks/00_start_here.ipynb: is missing"
    assert said[1].startswith("built   notebooks/00_start_here.ipynb  (") and said[1].endswith(
        " s)"
    )


def test_no_job_is_refused(root):
    with pytest.raises(InvalidArgument, match="jobs=0"):
        build(root, jobs=0)


def test_two_notebooks_run_at_a_time(root):
    import threading

    meeting = threading.Barrier(2, timeout=20)

    def meet(notebook, *, on_cell):
        # Of three pages the first two must be here together; the third finds it broken.
        with contextlib.suppress(threading.BrokenBarrierError):
            meeting.wait()
            meeting.abort()
            met.append(True)
        return run_here(notebook, on_cell=on_cell)

    met: list[bool] = []
    build(root, execute=meet, jobs=2)
    assert met


# Outputs


def stream(text, name="stdout"):
    return v4.new_output("stream", name=name, text=text)


def test_streams_are_merged_and_stdout_comes_first():
    picture = v4.new_output("display_data", data={"text/plain": "p"})
    outputs = [stream("w", "stderr"), stream("a"), stream("b"), picture, stream("c")]
    stable = stable_outputs(outputs, execution_count=1)
    assert [out.get("text") for out in stable] == ["ab", "w", None, "c"]
    assert outputs[1].text == "a"


def test_frames_of_packages_are_left_out_of_tracebacks():
    traceback = ["\x1b[0;31m---\x1b[0m", "Cell In[3], line 1", "\x1b[0;32mFile /x/y.py:9", "E: e"]
    error = v4.new_output("error", ename="E", evalue="e", traceback=traceback)
    (stable,) = stable_outputs([error], execution_count=1)
    assert stable.traceback == [traceback[0], traceback[1], traceback[3]]


def test_pictures_and_results_lose_what_varies():
    picture = {"image/png": "YWJj\nZGVm\n"}
    result = v4.new_output("execute_result", data=picture, execution_count=40)
    (stable,) = stable_outputs([result], execution_count=4)
    assert stable.data == {"image/png": "YWJjZGVm"}
    assert stable.execution_count == 4


def test_a_widget_is_stored_with_its_state_or_not_at_all(root):
    view = "application/vnd.jupyter.widget-view+json"

    def run(notebook, *, on_cell):
        ran = run_here(notebook, on_cell=on_cell)
        kept, lost = {view: {"model_id": "000a"}}, {view: {"model_id": "000b"}, "text/plain": "b"}
        for cell in ran.cells:
            if cell.cell_type == "code":
                cell.outputs = [v4.new_output("display_data", data=data) for data in (kept, lost)]
        ran.metadata["widgets"] = {"state": {"000a": {}}}
        return ran

    build(root, execute=run)
    stored = nbformat.read(root / "notebooks/00_start_here.ipynb", as_version=4)
    assert stored.metadata.widgets == {"state": {"000a": {}}}
    assert [output.data for output in stored.cells[1].outputs] == [
        {view: {"model_id": "000a"}},
        {"text/plain": "b"},
    ]
    assert find_drift(root) == []


# A real kernel

REAL = """\
# %%
# %matplotlib inline
import sys

import matplotlib.pyplot as plt

print("out")
print("err", file=sys.stderr)
print("out again")

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
    assert "cell 5, line 22 of lessons/01_real/lesson.py" in str(bad.error)
    assert "ZeroDivisionError: division by zero" in str(bad.error)
    before = files(tmp_path)
    assert build_pages(pages[:1], force=True)[0].outcome == "built"
    assert files(tmp_path) == before and len(before) == 1
    stored = nbformat.read(tmp_path / "notebooks/00_real.ipynb", as_version=4)
    assert [cell.execution_count for cell in stored.cells] == [1, 2, 3, None]
    assert [out.get("text") for out in stored.cells[0].outputs] == ["out\nout again\n", "err\n"]
    assert "image/png" in stored.cells[1].outputs[0].data
    assert "site-packages" not in before["00_real.ipynbnotebooks"].decode()


# Drift


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda root: None, None),
        (
            lambda root: replace_in(root / "lessons/00_start_here/lesson.py", "x is", "x was"),
            "notebooks/00_start_here.ipynb: its source has changed since it was built",
        ),
        (
            lambda root: replace_in(root / "notebooks/00_start_here.ipynb", "x = 2", "x = 3"),
            "notebooks/00_start_here.ipynb: cell 2: its source is not what the source builds",
        ),
        (
            lambda root: replace_in(root / "notebooks/00_start_here.ipynb", "here-002", "here-2"),
            "notebooks/00_start_here.ipynb: cell 2: its id is not what the source builds",
        ),
        (
            lambda root: replace_in(root / "notebooks/00_start_here.ipynb", "hide-input", "x"),
            "notebooks/00_start_here.ipynb: cell 2: its metadata is not what the source builds",
        ),
        (
            lambda root: replace_in(root / "notebooks/00_start_here.ipynb", "Python 3", "Py"),
            "notebooks/00_start_here.ipynb: its metadata is not what the builder writes",
        ),
        (
            lambda root: replace_in(root / "notebooks/00_start_here.ipynb", "}\n", "}"),
            "notebooks/00_start_here.ipynb: was not written by the builder (keys, indent or last"
            " newline)",
        ),
        (
            lambda root: (root / "exercises/00_start_here.ipynb").write_text("{"),
            "exercises/00_start_here.ipynb: is no readable notebook (NotJSONError)",
        ),
        (
            lambda root: (root / "exercises/00_start_here.ipynb").unlink(),
            "exercises/00_start_here.ipynb: is missing",
        ),
        (
            lambda root: (root / "lessons/00_start_here/exercise.py").unlink(),
            "lessons/00_start_here: has no exercise.py; write it",
        ),
        (
            lambda root: (root / "notebooks/07_old.ipynb").write_text("{}"),
            "notebooks/07_old.ipynb: has no lessons/07_old/lesson.py; write it, or delete the"
            " notebook",
        ),
        (
            lambda root: replace_in(root / "lessons/00_start_here/lesson.py", "x * 21", ""),
            "notebooks/00_start_here.ipynb: cannot be built: the cell at",
        ),
    ],
)
def test_drift_names_each_difference(root, capsys, spoil, said):
    build(root)
    spoil(root)
    lines = find_drift(root)
    code = main(["check", "--root", str(root)])
    written = capsys.readouterr().out
    if said is None:
        assert (lines, code) == ([], 0)
        assert written == "all 3 notebooks are what their sources build\n"
    else:
        assert lines[0].startswith(said)
        assert code == 1
        assert said in written and "make notebooks" in written


def test_a_cell_dropped_or_never_run_is_drift(root):
    build(root)
    path = root / "notebooks/00_start_here.ipynb"
    stored = nbformat.read(path, as_version=4)
    last = stored.cells.pop()
    path.write_text(canonical(stored))
    assert find_drift(root) == ["notebooks/00_start_here.ipynb: has 2 cells, its source 3"]
    last.execution_count = None
    stored.cells.append(last)
    path.write_text(canonical(stored))
    assert find_drift(root) == ["notebooks/00_start_here.ipynb: cell 3: was never run"]


# The command


def test_the_command_counts_and_fails_when_a_notebook_fails(root, capsys, monkeypatch):
    monkeypatch.setattr("distlab.notebooks.build._executor", lambda: run_here)
    assert main(["build", "--root", str(root)]) == 0
    assert "3 built, 0 current, 0 failed in" in capsys.readouterr().out
    replace_in(root / "lessons/00_start_here/lesson.py", "x * 21", "x / 0")
    assert main(["build", "00_start_here", "--root", str(root)]) == 1
    written = capsys.readouterr().out
    assert "ZeroDivisionError" in written and "0 built, 2 current, 1 failed" in written


def test_the_command_outside_a_clone_says_so(tmp_path, capsys):
    assert main(["build", "--root", str(tmp_path)]) == 2
    assert "no folder 'lessons' there" in capsys.readouterr().err
