"""The strict regression: each trap that stock nbval falls into, as a tiny notebook."""

import copy
import functools
import os

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from distlab.notebooks.execute import execute
from distlab.notebooks.kernel_environment import kernel_environment
from distlab.warm.process import ADDRESS_VARIABLE, WarmProcess, can_fork

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
    process, patches = WarmProcess(preload=LIGHT, env=kernel_environment()), pytest.MonkeyPatch
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
        arguments = ("-p", "distlab.notebooks.regression", "--nbval", "-p", "no:cacheprovider")
        return pytester.runpytest_inprocess(*arguments, *options)

    return run


def test_a_notebook_as_it_was_executed_passes(check):
    check(executed("a = 1", "print(a)", "a + 1", DRAW, "draw()")).assert_outcomes(passed=5)


def test_a_notebook_that_was_never_executed_fails(check):
    result = check(notebook("a = 1"))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the stored cell was never executed*"])


def test_one_cell_that_was_never_executed_fails(check):
    stored = executed("a = 1", "b = 2")
    stored.cells[1].execution_count = None
    check(stored).assert_outcomes(passed=1, failed=1)


def test_a_changed_number_fails_and_is_shown_beside_the_stored_one(check):
    stored = executed("print('accuracy', 0.92)\nprint('steps', 8)")
    stored.cells[0].outputs[0].text = "accuracy 0.91\nsteps 8\n"
    result = check(stored)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*Cell 0 to give its stored outputs:",
            "*print('accuracy', 0.92)",
            "*stored | accuracy 0.91",
            "*fresh  | accuracy 0.92",
            "*       | steps 8",
        ]
    )


@pytest.mark.parametrize("source", ["print(1)", "1", "display('a')", DRAW + "\ndraw()"])
def test_a_removed_output_fails(check, source):
    stored = executed(source)
    stored.cells[0].outputs = []
    check(stored).assert_outcomes(failed=1)


@pytest.mark.parametrize("source", ["pass", "1;"])
def test_an_output_that_was_added_fails(check, source):
    stored = executed(source)
    stored.cells[0].outputs = [new_output("display_data", {"text/plain": "'a'"})]
    check(stored).assert_outcomes(failed=1)


def test_an_output_of_another_kind_fails(check):
    stored = executed("1")
    stored.cells[0].outputs = [new_output("display_data", {"text/plain": "1"})]
    check(stored).assert_outcomes(failed=1)


def test_a_removed_picture_fails(check):
    stored = executed(DRAW + "\ndraw()")
    del stored.cells[0].outputs[0].data["image/png"]
    result = check(stored)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*stored outputs are execute_result text/plain, fresh ones *png*"])


def test_a_garbage_picture_fails(check):
    stored = executed(DRAW + "\ndraw()")
    stored.cells[0].outputs[0].data["image/png"] = "Z2FyYmFnZQ=="
    result = check(stored)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*image/png 0: the stored one is no picture"])


def test_a_picture_drawn_otherwise_fails(check):
    stored = executed(DRAW + "\ndraw()")
    stored.cells[0].source = DRAW + "\ndraw(shade=40)"
    result = check(stored)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*image/png 0: mean difference * of 255"])


def test_with_other_versions_a_picture_may_show_something_else_and_must_be_there(check):
    stored = executed(DRAW + "\ndraw()")
    stored.cells[0].source = DRAW + "\ndraw(shade=40)"
    check(stored, "--other-versions").assert_outcomes(passed=1)
    del stored.cells[0].outputs[0].data["image/png"]
    check(stored, "--other-versions").assert_outcomes(failed=1)


def test_with_other_versions_a_version_may_be_another_and_no_other_number(check):
    stored = executed("print('Keras 3.15.1, loss 0.25')")
    stored.cells[0].outputs[0].text = "Keras 3.10.0, loss 0.25\n"
    check(stored, "--other-versions").assert_outcomes(passed=1)
    check(stored).assert_outcomes(failed=1)
    stored.cells[0].outputs[0].text = "Keras 3.10.0, loss 0.26\n"
    check(stored, "--other-versions").assert_outcomes(failed=1)


def test_on_a_gpu_a_cell_tagged_so_may_have_other_numbers_and_no_other_words(check):
    stored = executed("print('batch  8:  9.5* 81.2')", DRAW + "\ndraw()")
    for cell in stored.cells:
        cell.metadata.tags = ["cpu-numbers"]
    stored.cells[0].outputs[0].text = "batch  8: 10.25* 9.0\n"
    stored.cells[1].source = DRAW + "\ndraw(shade=40)"
    check(stored, "--on-gpu").assert_outcomes(passed=2)
    check(stored).assert_outcomes(failed=2)
    stored.cells[0].outputs[0].text = "batch  8:  9.5 81.2*\n"
    check(stored, "--on-gpu").assert_outcomes(passed=1, failed=1)
    stored.cells[0].outputs[0].text = "batch  8: 10.25* 9.0\n"
    del stored.cells[0].metadata["tags"]
    check(stored, "--on-gpu").assert_outcomes(passed=1, failed=1)


def test_a_cell_that_ends_in_a_semicolon_passes(check):
    stored = executed("1 + 1;")
    assert stored.cells[0].outputs == []
    check(stored).assert_outcomes(passed=1)


def test_output_of_child_processes_and_of_c_does_not_matter(check):
    source = (
        "import os, subprocess\n"
        "os.system('echo child $$'); os.write(2, str(os.getpid()).encode())\n"
        "print('mine')"
    )
    check(executed(source)).assert_outcomes(passed=1)


def test_widgets_and_displays_that_change_pass(check):
    stored = executed(
        "import ipywidgets\n@ipywidgets.interact(x=3)\ndef f(x): print('x is', x)",
        "out = ipywidgets.Output()\nout",
        "with out: print('inside')",
        "from IPython.display import clear_output\nprint('gone')\nclear_output()\nprint('left')",
        "for n in range(3):\n    clear_output(wait=True)\n    print(n)",
        "handle = display('first', display_id=True)",
        "handle.update('second')",
        "handle.update('last')",
    )
    assert stored.cells[3].outputs[0].text == "left\n"
    assert stored.cells[5].outputs[0].data["text/plain"] == "'last'"
    check(stored).assert_outcomes(passed=8)


def test_an_update_that_comes_out_otherwise_fails(check):
    stored = executed("handle = display('first', display_id=True)", "handle.update('last')")
    stored.cells[0].outputs[0].data["text/plain"] = "'first'"
    check(stored).assert_outcomes(failed=1, passed=1)


def test_what_a_widget_says_is_compared(check):
    stored = executed("import ipywidgets\nipywidgets.IntSlider(value=3)")
    stored.cells[0].outputs[0].data["text/plain"] = "IntSlider(value=4)"
    check(stored).assert_outcomes(failed=1)


def test_a_dead_kernel_fails_at_once_and_no_later_cell_runs(check):
    stored = executed("import os", "pass", "print(1)")
    stored.cells[1].source = "os.write(2, b'the reason'); os._exit(1)"
    result = check(stored)
    result.assert_outcomes(passed=1, failed=1, skipped=1)
    result.stdout.fnmatch_lines(["*it ended the kernel*", "*the reason"])
    assert result.duration < 30


def test_a_cell_that_takes_too_long_fails_and_no_later_cell_runs(check):
    stored = executed("pass", "print(1)")
    stored.cells[0].source = "while True: pass"
    result = check(stored, "--nbval-cell-timeout=1")
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(["*it still ran after 1 s*"])


def test_after_a_cell_that_raised_no_later_cell_runs(check, pytester):
    mark = pytester.path / "ran"
    stored = executed("a = 1", "print(a)", f"open({str(mark)!r}, 'w').close()")
    mark.unlink()
    stored.cells[1].source = "1 / 0"
    result = check(stored, "-ra")
    result.assert_outcomes(passed=1, failed=1, skipped=1)
    result.stdout.fnmatch_lines(["*it raised ZeroDivisionError: division by zero*"])
    result.stdout.fnmatch_lines(["SKIPPED*not run: Cell 1 before it failed*"])
    assert not mark.exists()


def test_a_cell_chosen_alone_fails_with_the_one_before_it(check):
    stored = executed("a = 1", "print(a)")
    stored.cells[0].source = "1 / 0"
    result = check(stored, "-k", "1")
    result.assert_outcomes(failed=1, deselected=1)
    result.stdout.fnmatch_lines(["*not run: Cell 0 before it failed*"])


def test_after_outputs_that_differ_later_cells_run(check):
    stored = executed("print(1)", "print(2)", "print(3)")
    stored.cells[0].outputs[0].text = stored.cells[2].outputs[0].text = "0\n"
    check(stored).assert_outcomes(failed=2, passed=1)


def test_a_cell_tagged_to_raise_must_raise_the_same(check):
    given = notebook(*["1 / 0"] * 5)
    for cell in given.cells:
        cell.metadata["tags"] = ["raises-exception"]
    given.cells[3].metadata["tags"] = ["nbval-raises-exception"]
    stored = execute(given)
    stored.cells[0].outputs[0].evalue = "by something else"
    stored.cells[1].outputs[0].ename = "ValueError"
    stored.cells[2].outputs[0].traceback = ["another one, which does not matter"]
    stored.cells[4].source = "1"
    result = check(stored)
    result.assert_outcomes(passed=2, failed=3)
    result.stdout.fnmatch_lines([f"FAILED tiny_0.ipynb::Cell {n} *" for n in (0, 1, 4)])
    result.stdout.fnmatch_lines(["*it raised nothing, and is tagged raises-exception"])


def test_the_tags_of_nbval_hold(check):
    skipped = executed("1 / 0", tags=("nbval-skip",))
    ignored = executed("print(1)", tags=("nbval-ignore-output",))
    ignored.cells[0].outputs = []
    never = notebook("print(1)", tags=("nbval-ignore-output",))
    check([skipped, ignored, never]).assert_outcomes(skipped=1, passed=1, failed=1)


def test_the_sanitising_of_nbval_holds(check, pytester):
    stored = executed("print('took 3 s')")
    stored.cells[0].outputs[0].text = "took 5 s\n"
    pytester.makefile(".cfg", clean="[times]\nregex: \\d+ s\nreplace: N s\n")
    check(stored, "--nbval-sanitize-with=clean.cfg").assert_outcomes(passed=1)


def test_the_streams_are_merged(check):
    source = "import sys\nfor n in range(3):\n    print(n); print(-n, file=sys.stderr)"
    stored = executed(source)
    check(stored).assert_outcomes(passed=1)
    for output in stored.cells[0].outputs:
        if output.name == "stderr":
            output.text = "0\n"
    check(stored).assert_outcomes(failed=1)


def test_a_notebook_runs_in_an_empty_folder(check):
    check(executed("import os; os.listdir()")).assert_outcomes(passed=1)


def test_a_notebook_is_not_split_over_two_workers(check):
    stored = executed("a = 0", *["a += 1; a"] * 9)
    result = check(stored, "-n2", "--dist=load", "-v")
    result.assert_outcomes(passed=10)
    reported = [line for line in result.outlines if "PASSED" in line]
    assert len(reported) == 10
    assert len({line.split()[0] for line in reported}) == 1  # "[gw0] [ 10%] PASSED ..."


def test_nothing_changes_without_nbval(pytester):
    nbformat.write(notebook("1"), pytester.path / "tiny.ipynb")
    result = pytester.runpytest_inprocess("-p", "distlab.notebooks.regression")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.skipif(not can_fork(), reason="nothing may be forked here")
@pytest.mark.parametrize("options", [(), ("-n2",)])
def test_one_warm_process_serves_a_run_and_ends_with_it(check, monkeypatch, options):
    stored = executed("1")
    monkeypatch.delenv(ADDRESS_VARIABLE)
    started = []
    real = WarmProcess.start
    monkeypatch.setattr(WarmProcess, "start", lambda self: started.append(self) or real(self))
    monkeypatch.setattr(WarmProcess.__init__, "__kwdefaults__", {"preload": LIGHT, "env": None})
    check([stored, stored], *options).assert_outcomes(passed=2)
    [warm] = started
    assert warm.pid is None
    assert ADDRESS_VARIABLE not in os.environ
