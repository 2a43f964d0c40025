"""Code that a learner has not changed is not started, even if the stub is a bug to repair."""

import functools
import json
import linecache

import pytest

from distlab.course.checks import notebook_check, progress
from distlab.course.checks.handed_out import exercise_of, is_untouched
from distlab.course.checks.notebook_check import check
from distlab.course.checks.registry import find_check
from distlab.course.checks.report import Ending
from tests.support.lesson_checks import load_stub

BRIGHTNESS = find_check("brightness")
stub_of = functools.cache(load_stub)


@pytest.fixture(autouse=True)
def new_kernel(monkeypatch):
    monkeypatch.setattr(progress, "_kernel_results", {})
    notebook_check._failed_tries.clear()


def defined(source, name, file):
    """The function of a cell, which Python can show the source of, as a kernel defines it."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names = dict(stub_of("00_start_here"))
    exec(compile(source, file, "exec"), names)
    return names[name]


@pytest.fixture
def cell():
    """The cell of the task, as the exercise has it."""
    cells = json.loads(exercise_of("00_start_here").read_text())["cells"]
    (source,) = (s for c in cells if "# task: brightness" in (s := "".join(c["source"])))
    return source


def test_a_stub_that_is_a_bug_shows_what_it_does_and_is_no_try():
    report = check(BRIGHTNESS, stub_of("00_start_here")["brightness"])
    assert (report.ending, report.earned, report.mistake) == (Ending.NOT_STARTED, 0, "")
    assert "This is still the code that you were given." in repr(report)
    assert "not yet: the images that each replica worked on" in repr(report)
    assert not notebook_check._failed_tries
    assert progress._kernel_results == {}


def test_comments_and_blank_lines_change_nothing_and_code_does(cell):
    noted = cell.replace("    images, total", "\n    # hm\n    images, total")
    assert noted != cell
    answer = defined(noted, "brightness", "<noted>")
    assert is_untouched(BRIGHTNESS, answer)
    assert is_untouched(BRIGHTNESS, functools.partial(answer))
    changed = cell.replace("images, total = 0, 0.0", "images, total = 0, 0")
    assert changed != cell
    assert not is_untouched(BRIGHTNESS, defined(changed, "brightness", "<changed>"))
    assert check(BRIGHTNESS, defined(changed, "brightness", "<changed>")).mistake
