"""Code that a learner has not changed is not started, even if the stub is a bug to repair."""

import functools
import json
import linecache
import shutil

import pytest

from distlab.autograder.grade_one import GradingOptions
from distlab.autograder.gradebook.class_counts import mistakes_in
from distlab.autograder.run import grade
from distlab.checks import notebook_check, progress
from distlab.checks.endings import Ending
from distlab.checks.handed_out import exercise_of, is_handed_out, is_untouched
from distlab.checks.notebook_check import check
from distlab.checks.registry import checks_of, find_check, stems
from tests.support.lesson_checks import load_solution, load_stub
from tests.support.repository import ROOT

BRIGHTNESS = find_check("brightness")
stub_of = functools.cache(load_stub)


@pytest.fixture(autouse=True)
def new_kernel(monkeypatch):
    monkeypatch.setattr(progress, "_of_this_kernel", {})
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
    (source,) = (s for one in cells if "# task: brightness" in (s := "".join(one["source"])))
    return source


@pytest.mark.parametrize("stem", stems())
def test_each_stub_is_known_and_no_solution_is_taken_for_one(stem):
    solution = load_solution(stem)
    for one in checks_of(stem):
        assert is_untouched(one, stub_of(stem)[one.function])
        assert not is_untouched(one, solution[one.function])


def test_a_stub_that_is_a_bug_shows_what_it_does_and_is_no_try():
    report = check(BRIGHTNESS, stub_of("00_start_here")["brightness"])
    assert (report.ending, report.earned, report.mistake) == (Ending.NOT_STARTED, 0, "")
    assert "This is still the code that you were given." in repr(report)
    assert "not yet: the images that each replica worked on" in repr(report)
    assert not notebook_check._failed_tries
    assert progress._of_this_kernel == {}


def test_comments_and_blank_lines_change_nothing_and_code_does(cell):
    noted = cell.replace("    images, total", "\n    # hm\n    images, total")
    assert noted != cell
    assert is_untouched(BRIGHTNESS, defined(noted, "brightness", "<noted>"))
    changed = cell.replace("images, total = 0, 0.0", "images, total = 0, 0")
    assert changed != cell
    assert not is_untouched(BRIGHTNESS, defined(changed, "brightness", "<changed>"))
    assert check(BRIGHTNESS, defined(changed, "brightness", "<changed>")).mistake


def test_a_wrapped_stub_is_still_the_stub(cell):
    assert is_untouched(BRIGHTNESS, functools.partial(defined(cell, "brightness", "<wrapped>")))


def test_what_has_no_source_or_no_exercise_is_an_answer(tmp_path, cell):
    assert not is_untouched(BRIGHTNESS, len)
    assert not is_handed_out("brightness", cell, tmp_path / "none.ipynb")
    assert not is_handed_out("none", cell, exercise_of("00_start_here"))
    assert not is_handed_out("brightness", "def (", exercise_of("00_start_here"))


def test_an_untouched_exercise_is_not_started_in_all_that_the_autograder_writes(tmp_path):
    (tmp_path / "in" / "jane").mkdir(parents=True)
    shutil.copy(ROOT / "exercises" / "01_mirrored_strategy.ipynb", tmp_path / "in" / "jane")
    (one,) = grade(tmp_path / "in", tmp_path / "out", GradingOptions(allow_root=True)).graded
    assert {report.ending for report in one.reports} == {Ending.NOT_STARTED}
    assert mistakes_in([one]) == []
    assert "not yet" not in (tmp_path / "out" / "details.csv").read_text()
    page = (tmp_path / "out" / "feedback" / "jane" / "01_mirrored_strategy.html").read_text()
    assert page.count("not started (0 of") == len(checks_of("01_mirrored_strategy"))
