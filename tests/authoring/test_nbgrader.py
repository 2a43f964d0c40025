"""nbgrader: its metadata in the student edition, and the points that it reads."""

import os
import sys

import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import v4

from distlab.authoring.nbgrader import mark_cells
from distlab.authoring.source import Page, draft_page
from distlab.errors import NotebookError
from tests.support.limits import HANG_SECS


def marks_of(*sources, points=None, kind="code"):
    new = v4.new_code_cell if kind == "code" else v4.new_markdown_cell
    cells = [new(source) for source in sources]
    places = [f"exercise.py, line {n}" for n in range(len(cells))]
    mark_cells(cells, points_of=lambda: points or {}, places=places)
    return [cell.metadata.get("nbgrader") for cell in cells]


# The metadata


def test_answers_and_checks_are_marked_and_nothing_else():
    answer, given, check = marks_of(
        "# task: double\ndef double(x): ...",
        "# given\ndl.show(1)",
        'dl.check("double")',
        points={"double": 2},
    )
    common = {"schema_version": 3, "task": False}
    solution, grade = (
        {"solution": way, "grade": not way, "locked": not way} for way in (True, False)
    )
    assert answer == {**common, "grade_id": "double", **solution}
    assert check == {**common, "grade_id": "double-check", **grade, "points": 2}
    assert given is None


def test_only_a_cell_that_ends_in_a_check_and_shows_its_report_gives_points():
    for source in ('dl.check("a")', "check('a')", 'x = 1\ndl.check("a")\n', 'dl.check(own["a"])'):
        assert marks_of(source, points={"a": 1.5})[0]["points"] == 1.5, source
    for source in ("dl.check()", 'report = dl.check("a")', 'dl.check("a")\nx = 1'):
        assert marks_of(source, points={"a": 1}) == [None], source


def test_a_report_is_for_a_person_to_grade():
    (text,) = marks_of("<!-- report: speed -->\n*Yours*", points={"speed": 5}, kind="markdown")
    assert (text["grade_id"], text["points"]) == ("speed", 5)
    assert text["grade"] and text["solution"] and not text["locked"]
    (picture,) = marks_of("# report: speed\nplot()", points={"speed": 5})
    assert picture["solution"] and not picture["grade"]
    assert picture["grade_id"] != text["grade_id"]


def test_a_check_that_would_count_wrongly_is_refused(tmp_path):
    for sources, found, do in (
        (['dl.check("doubel")'], "'doubel', of which no check and no report", "mean 'double'?"),
        (['dl.check("double")'] * 2, "a second cell that checks 'double'", "in one cell"),
    ):
        with pytest.raises(NotebookError) as error:
            marks_of(*sources, points={"double": 2})
        assert error.value.asked == f"the cell at exercise.py, line {len(sources) - 1}"
        assert found in error.value.found and do in error.value.do
    source = tmp_path / "distlab/course/lesson_99_none/exercise.py"
    source.parent.mkdir(parents=True)
    source.write_text('# %%\ndl.check("double")\n')
    with pytest.raises(NotebookError, match="no checks of a lesson"):
        draft_page(Page(tmp_path, "99_none", "exercise"))


# What nbgrader reads: a kernel as it runs one, without nbgrader itself

CHECKS = """\
import logging
from distlab.course.checks import Check, Holds
import distlab as dl
logging.basicConfig()  # its handler writes past what is redirected later
half = Check(
    name="half", function="answer", title="t", points=3, hint="", revisit="",
    inputs=lambda seed: {}, call=lambda answer, inputs: answer(),
    criteria=(
        Holds("it is even", lambda given, out: out % 2 == 0, "odd", points=1),
        Holds("it is large", lambda given, out: out > 10, "small", points=2),
    ),
)
"""
NOISY = """\
def answer():
    import os, sys
    assert os.path.samestat(os.fstat(2), os.stat(os.devnull))  # where C++ writes its remarks
    print("a remark", file=sys.stderr)
    logging.error("another")
    return {}
"""


def shown(*sources):
    """The outputs of each cell, as nbgrader's kernel gives them."""
    notebook = v4.new_notebook(cells=[v4.new_code_cell(source) for source in sources])
    manager = AsyncKernelManager()
    manager.kernel_spec.argv[0] = sys.executable
    client = NotebookClient(notebook, km=manager, timeout=HANG_SECS, allow_errors=True)
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    client.execute(env=env | {"NBGRADER_EXECUTION": "autograde"})
    return [cell.outputs for cell in notebook.cells]


def test_a_report_shows_its_points_alone_and_the_page_all_of_it():
    sources = [CHECKS]
    for value in ("12", "13", "1", "1 / 0"):
        sources += [NOISY.format(value), "dl.check(half)"]
    sources += ["def answer():\n    raise NotImplementedError", "dl.check(half)"]
    checked = shown(*sources)[2::2]
    assert [[output.output_type for output in outputs] for outputs in checked] == [
        ["execute_result"]
    ] * 5
    assert [outputs[0].data["text/plain"] for outputs in checked] == ["3", "2", "0", "0", "0"]
    assert "half: not yet (2 of 3 points)" in checked[1][0].data["text/html"]
    assert "ZeroDivisionError" in checked[3][0].data["text/html"]
