"""The strict regression: each trap that stock nbval falls into, as a tiny notebook."""

import copy
import functools
import os
import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from distlab.authoring.execute import execute, kernel_environment
from distlab.cluster.warm.process import ADDRESS_VARIABLE, WarmServer, can_fork

pytest_plugins = ["pytester"]

LIGHT = ("ipykernel.kernelapp", "ipykernel.ipkernel", "ipykernel.zmqshell")

# A figure as matplotlib shows one, without the second it takes to import.
DRAW = """\
from IPython.display import Image as Shown
from PIL import Image, ImageDraw
import io
def draw(shade=0, width=64):
    picture = Image.new("L", (width, 48), 255)
    ImageDraw.Draw(picture).rectangle((8, 8, 40, 40), fill=shade)
    file = io.BytesIO(); picture.save(file, "PNG")
    return Shown(file.getvalue())"""


@pytest.fixture(scope="module", autouse=True)
def kernels():
    """A warm process with only the kernel imported, for the kernels of all tests here."""
    if not can_fork():
        yield
        return
    process, patches = WarmServer(preload=LIGHT, env=kernel_environment()), pytest.MonkeyPatch
    with process as warm, patches.context() as patch:
        patch.setenv(ADDRESS_VARIABLE, warm.address)
        yield


def notebook(*sources, tags=()):
    """Returns a notebook of code cells; the tags are the last one's."""
    cells = [new_code_cell(source, id=f"cell-{number}") for number, source in enumerate(sources)]
    cells[-1].metadata["tags"] = list(tags)
    return new_notebook(cells=cells)


def executed(*sources, tags=()):
    return copy.deepcopy(_executed(sources, tags))


@functools.cache
def _executed(sources, tags):
    return execute(notebook(*sources, tags=tags))


@pytest.fixture
def check(pytester):
    """Returns what the regression says of a notebook as it is stored."""

    def run(stored, *options):
        for number, one in enumerate(stored if isinstance(stored, list) else [stored]):
            nbformat.write(one, pytester.path / f"tiny_{number}.ipynb")
        arguments = ("-p", "distlab.authoring.regression", "--nbval", "-p", "no:cacheprovider")
        return pytester.runpytest_inprocess(*arguments, *options)

    return run


def outcomes(result):
    """What became of each cell, as "passed", "skipped" or what is said of its failure."""
    reports = [report for group in result.reprec.listoutcomes() for report in group]
    texts = {
        report.nodeid: str(report.longrepr) if report.failed else report.outcome
        for report in reports
    }
    return [texts[name] for name in sorted(texts, key=lambda name: [len(name), name])]


def assert_said(texts, expected):
    """Compares what became of each cell with an outcome, or with parts of what is said."""
    wrong = [
        (number, parts, text)
        for number, (text, parts) in enumerate(zip(texts, expected, strict=True))
        if (text != parts if isinstance(parts, str) else any(part not in text for part in parts))
    ]
    assert wrong == []


STREAMS = "import sys\nfor n in range(3):\n    print(n); print(-n, file=sys.stderr)"
# What passes as it was executed, whatever it does.
UNCHANGED = (
    *("a = 1", "print(a)", "a + 1", DRAW, "draw()", "1 + 1;", STREAMS),
    "import os; os.listdir()",
    "import subprocess\nos.system('echo child $$'); os.write(2, str(os.getpid()).encode())",
    "import ipywidgets\n@ipywidgets.interact(x=3)\ndef f(x): print('x is', x)",
    "out = ipywidgets.Output()\nout",
    "with out: print('inside')",
    "from IPython.display import clear_output\nprint('gone')\nclear_output()\nprint('left')",
    "for n in range(3):\n    clear_output(wait=True)\n    print(n)",
    "handle = display('first', display_id=True)",
    "handle.update('second')",
    "handle.update('last')",
)
DIFFER = ("stored outputs are",)
NEVER = ("the stored cell was never executed",)


def stored_as(**changes):
    """Returns what changes the first output of a stored cell."""
    return lambda cell: cell.outputs[0].update(changes)


def stored_data(**changes):
    return lambda cell: cell.outputs[0].data.update(
        {name.replace("_", "/"): value for name, value in changes.items()}
    )


def without_outputs(cell):
    cell.outputs = []


def with_an_output(cell):
    cell.outputs = [new_output("display_data", {"text/plain": "'a'"})]


def without_picture(cell):
    del cell.outputs[0].data["image/png"]


def never_executed(cell):
    cell.execution_count = None


def with_source(source):
    return lambda cell: cell.update(source=source)


def with_another_stderr(cell):
    (errors,) = [output for output in cell.outputs if output.name == "stderr"]
    errors.text = "0\n"


RAISES, IGNORED = ("raises-exception",), ("nbval-ignore-output",)
ROW = "print('batch  8:  9.5* 81.2')"
# Each with its tags, the change after it was executed, and what is then said of it.
CHANGED = (
    ("b = 1", (), never_executed, NEVER),
    (
        "print('accuracy', 0.92)\nprint('steps', 8)",
        (),
        stored_as(text="accuracy 0.91\nsteps 8\n"),
        (
            *("to give its stored outputs:", "print('accuracy', 0.92)", "stored | accuracy 0.91"),
            *("fresh  | accuracy 0.92", "       | steps 8"),
        ),
    ),
    ("print(1)", (), without_outputs, ("the texts differ",)),
    *((source, (), without_outputs, DIFFER) for source in ("1", "display('a')", "draw()")),
    *((source, (), with_an_output, DIFFER) for source in ("pass", "1;")),
    ("1", (), with_an_output, DIFFER),
    ("draw()", (), without_picture, ("execute_result text/plain, fresh ones execute_result im",)),
    ("draw()", (), stored_data(image_png="Z2FyYmFnZQ=="), ("the stored one is no picture",)),
    ("draw()", (), with_source("draw(shade=40)"), ("image/png 0: mean difference",)),
    ("ipywidgets.IntSlider(value=3)", (), stored_data(text_plain="4"), ("stored | 4",)),
    ("two = display('first', display_id=True)", (), stored_data(text_plain="'first'"), ("'last'",)),
    ("two.update('last')", (), None, "passed"),
    (STREAMS, (), with_another_stderr, ("[stderr]", "fresh  | -2")),
    ("print('took 3 s')", (), stored_as(text="took 5 s\n"), "passed"),  # as clean.cfg says
    (ROW, ("numbers-within-5%",), stored_as(text="batch  8: 9.3* 80.0\n"), "passed"),
    (
        ROW,
        ("numbers-within-5%",),
        stored_as(text="batch  8: 8.3* 80.0\n"),
        ("stored | batch  8: 8",),
    ),
    (ROW, ("numbers-vary",), stored_as(text="batch  8: 9.5 81.2*\n"), ("81.2*",)),
    ("draw()", ("numbers-vary",), with_source("draw(shade=40)"), "passed"),
    ("1 / 0", ("nbval-skip",), None, "skipped"),
    ("print(1)", IGNORED, without_outputs, "passed"),
    ("print(1)", IGNORED, never_executed, NEVER),
    ("1 / 0", RAISES, stored_as(evalue="by something else"), ("by something else",)),
    ("1 / 0", RAISES, stored_as(ename="ValueError"), ("stored | ValueError",)),
    ("1 / 0", RAISES, stored_as(traceback=["another one, which does not matter"]), "passed"),
    ("1 / 0", ("nbval-raises-exception",), None, "passed"),
    ("1 / 0", RAISES, with_source("1"), ("it raised nothing, and is tagged raises-exception",)),
)


def test_a_cell_passes_as_it_was_executed_and_fails_if_anything_differs(check, pytester):
    given = notebook(*UNCHANGED, *(source for source, *_ in CHANGED))
    changed = given.cells[len(UNCHANGED) :]
    for cell, (_, tags, _, _) in zip(changed, CHANGED, strict=True):
        cell.metadata["tags"] = list(tags)
    stored = execute(given)
    assert stored.cells[UNCHANGED.index("1 + 1;")].outputs == []
    assert stored.cells[12].outputs[0].text == "left\n"
    assert stored.cells[14].outputs[0].data["text/plain"] == "'last'"
    for cell, (_, _, change, _) in zip(stored.cells[len(UNCHANGED) :], CHANGED, strict=True):
        if change:
            change(cell)
    pytester.makefile(".cfg", clean="[times]\nregex: took \\d+ s\nreplace: took N s\n")
    texts = outcomes(check(stored, "--nbval-sanitize-with=clean.cfg"))
    assert_said(texts, [*["passed"] * len(UNCHANGED), *(said for *_, said in CHANGED)])


def test_with_other_versions_versions_and_what_a_picture_shows_may_differ_and_nothing_else(check):
    words = "print('Keras 3.15.1, loss 0.25')"
    stored = executed(DRAW, "draw()", "draw()", words, words)
    stored.cells[1].source = "draw(shade=40)"
    without_picture(stored.cells[2])
    stored.cells[3].outputs[0].text = "Keras 3.10.0, loss 0.25\n"
    stored.cells[4].outputs[0].text = "Keras 3.10.0, loss 0.26\n"
    texts = outcomes(check(stored, "--other-versions"))
    assert_said(
        texts, ["passed", "passed", DIFFER, "passed", ("stored | Keras 3.10.0, loss 0.26",)]
    )


def unexecuted(*sources):
    """A notebook whose stored cells print nothing, as if they had been executed."""
    stored = notebook(*sources)
    for number, cell in enumerate(stored.cells, 1):
        cell.execution_count = number
    return stored


def test_after_a_cell_that_raised_or_ended_the_kernel_no_later_cell_runs(check, pytester):
    mark = pytester.path / "ran"
    mark_it = f"open({str(mark)!r}, 'w').close()"
    dead = unexecuted("import os", "os.write(2, b'the reason'); os._exit(1)", mark_it)
    raised = unexecuted("a = 1", "1 / 0", mark_it)
    result = check([dead, raised], "-ra")
    assert_said(
        outcomes(result),
        [
            *("passed", ("it ended the kernel", "the reason"), "skipped"),
            *("passed", ("it raised ZeroDivisionError: division by zero",), "skipped"),
        ],
    )
    result.stdout.fnmatch_lines(["SKIPPED*not run: Cell 1 before it failed*"])
    assert not mark.exists()


@pytest.mark.skipif(not can_fork(), reason="nothing may be forked here")
def test_a_notebook_is_not_split_over_two_workers_which_share_one_warm_process(check, monkeypatch):
    monkeypatch.delenv(ADDRESS_VARIABLE)
    started = []
    real = WarmServer.start
    monkeypatch.setattr(WarmServer, "start", lambda self: started.append(self) or real(self))
    monkeypatch.setattr("distlab.authoring.regression._PRELOAD", LIGHT)
    stored = unexecuted("a = 0", *["a += 1"] * 8, "assert a == 8")
    result = check([stored, stored], "-n2", "--dist=load", "-v")
    result.assert_outcomes(passed=20)
    lines = "\n".join(result.outlines)
    workers = set(re.findall(r"^\[(gw\d)\] .*PASSED (tiny_\d)\S*::Cell", lines, re.MULTILINE))
    assert sorted(name for _, name in workers) == ["tiny_0", "tiny_1"]
    [warm] = started
    assert not warm.folder.exists()
    assert ADDRESS_VARIABLE not in os.environ
