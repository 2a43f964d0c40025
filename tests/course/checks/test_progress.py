"""Where a learner stands is read from what their notebooks keep."""

import json
import re
import shutil

import pytest

import distlab as dl
from distlab import cli, errors
from distlab.course.checks import Check, Holds
from distlab.course.checks import progress as module
from distlab.course.checks.progress import progress
from distlab.course.checks.registry import all_checks, checks_of
from distlab.course.checks.report import Ending, Report
from tests.support.repository import ROOT

STEM = "00_start_here"
CHECKS = checks_of(STEM)
FIRST = CHECKS[0]
POINTS = sum(check.points for check in CHECKS)


@pytest.fixture(autouse=True)
def new_kernel(monkeypatch):
    monkeypatch.setattr(module, "_kernel_results", {})


def save(path, *texts):
    outputs = [{"data": {"text/plain": text.splitlines(True)}} for text in texts]
    cells = [{"cell_type": "markdown"}, *({"outputs": [output]} for output in outputs)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"cells": cells}))


def shown(check, ending, earned):
    return repr(Report(check.name, check.function, check.title, ending, earned, check.points))


def lesson(folder):
    return next(item for item in progress(folder).lessons if item.stem == STEM)


def first_row(folder):
    return repr(progress(folder)).splitlines()[0]


def test_solutions_have_all_passed_and_an_untouched_exercise_nothing(tmp_path):
    whole = progress(ROOT / "solutions")
    assert [item.next_task for item in whole.lessons if item.next_task] == []
    points = sum(check.points for check in all_checks())
    assert f", {points:g} of {points:g} points" in repr(whole).splitlines()[-1]
    shutil.copy(ROOT / "exercises" / f"{STEM}.ipynb", tmp_path)
    untouched = lesson(tmp_path)
    assert (untouched.passed, untouched.tried, untouched.next_task) == ((), (), FIRST.name)


def test_partial_credit_counts_and_the_next_task_is_named_in_all_forms(tmp_path, capsys):
    save(
        tmp_path / "a.ipynb",
        shown(FIRST, Ending.PASSED, FIRST.points),
        shown(CHECKS[1], Ending.NOT_YET, 0.5),
    )
    half = lesson(tmp_path)
    assert (half.passed, half.earned) == ((FIRST.name,), FIRST.points + 0.5)
    assert half.next_task == CHECKS[1].name
    bar = "#" * 6 + "." * 14
    row = [STEM, bar, f"1 of {len(CHECKS)} passed; next: {CHECKS[1].name}"]
    assert re.split(r"  +", first_row(tmp_path)) == row
    html = progress(tmp_path)._repr_html_()
    assert html.count("<tr>") == len(progress(tmp_path).lessons)
    assert f"width:{100 * half.earned / POINTS:.0f}%" in html
    assert cli.main(["progress", str(tmp_path)]) == 0
    assert capsys.readouterr().out == repr(progress(tmp_path)) + "\n"


def test_of_several_answers_the_best_counts_up_to_the_points_of_the_check(tmp_path):
    save(tmp_path / "deep" / "a.ipynb", f"{FIRST.name}: passed (99 of 2 points)")
    save(tmp_path / "b.ipynb", shown(FIRST, Ending.NOT_YET, 1.0), "slices: passed, I swear")
    (tmp_path / "c.ipynb").write_text('{"cells": [3, {"outputs": 3}]}')
    (tmp_path / "d.ipynb").write_text("{")
    save(tmp_path / ".ipynb_checkpoints" / "c.ipynb", shown(CHECKS[1], Ending.PASSED, 2.0))
    best = lesson(tmp_path)
    assert (best.passed, best.earned) == ((FIRST.name,), FIRST.points)


def test_what_was_checked_in_this_kernel_counts_before_it_is_saved(tmp_path, monkeypatch):
    def stub():
        raise NotImplementedError

    check = Check(
        name=FIRST.name,
        function="f",
        title="",
        points=FIRST.points,
        inputs=lambda seed: {},
        call=lambda function, inputs: function(),
        criteria=(Holds("it", lambda given, out: out == 1, "not 1"),),
        hint="",
        revisit="",
    )
    save(tmp_path / "a.ipynb")
    monkeypatch.chdir(tmp_path)
    dl.check(check, stub)
    assert dl.check().lessons[0].tried == ()
    dl.check(check, lambda: 1)
    assert dl.check().lessons[0].passed == (FIRST.name,)


def test_a_folder_without_notebooks_is_told(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    cases = {
        "nowhere": "no folder of that name",
        "empty": "no notebooks there",
        "file": "a file",
    }
    for name, told in cases.items():
        with pytest.raises(errors.InvalidArgument) as caught:
            progress(tmp_path / name)
        assert caught.value.found == told
