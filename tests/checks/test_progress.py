"""Where a learner stands is read from what their notebooks keep."""

import json
import re
import shutil

import pytest

import distlab as dl
from distlab import cli, errors
from distlab.checks import lesson_00_start_here
from distlab.checks import progress as module
from distlab.checks.check import Check, Verdict
from distlab.checks.endings import Ending
from distlab.checks.matchers import expect_equal
from distlab.checks.progress import progress
from distlab.checks.registry import all_checks, checks_of
from distlab.checks.report import Report
from distlab.checks.rubric import RubricRow, WrittenReport
from tests.support.repository import ROOT

STEM = "00_start_here"
CHECKS = checks_of(STEM)


@pytest.fixture(autouse=True)
def new_kernel(monkeypatch):
    monkeypatch.setattr(module, "_of_this_kernel", {})


def save(path, *texts):
    outputs = [[{"data": {"text/plain": text.splitlines(True)}}] for text in texts]
    cells = [{"cell_type": "markdown"}, *({"outputs": one} for one in outputs)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"cells": cells}))


def said(check, status, earned):
    return repr(Report(check.name, check.function, check.title, status, earned, check.points))


def lesson(folder, stem=STEM):
    return next(one for one in progress(folder).lessons if one.stem == stem)


def test_of_the_solutions_all_is_passed():
    there = progress(ROOT / "solutions")
    assert [one.next_task for one in there.lessons if one.next_task] == []
    points = sum(check.points for check in all_checks())
    assert f", {points:g} of {points:g} points" in repr(there).splitlines()[-1]


def test_an_untouched_exercise_has_nothing_passed(tmp_path):
    shutil.copy(ROOT / "exercises" / f"{STEM}.ipynb", tmp_path)
    there = lesson(tmp_path)
    assert there.passed == () and there.next_task == CHECKS[0].name


def test_partial_credit_counts_and_the_next_task_is_named(tmp_path):
    save(
        tmp_path / "a.ipynb",
        said(CHECKS[0], Ending.PASSED, 2.0),
        said(CHECKS[1], Ending.NOT_YET, 0.5),
    )
    there = lesson(tmp_path)
    assert (there.passed, there.earned) == ((CHECKS[0].name,), 2.5)
    assert there.next_task == CHECKS[1].name
    row = repr(progress(tmp_path)).splitlines()[0]
    assert re.split(r"  +", row) == [
        STEM,
        "#" * 6 + "." * 14,
        "1 of 4 passed; next: file_slices",
    ]


def test_of_several_answers_the_best_counts_wherever_they_lie(tmp_path):
    save(tmp_path / "deep" / "a.ipynb", said(CHECKS[0], Ending.PASSED, 2.0))
    save(tmp_path / "b.ipynb", said(CHECKS[0], Ending.NOT_YET, 1.0))
    save(tmp_path / ".ipynb_checkpoints" / "c.ipynb", said(CHECKS[1], Ending.PASSED, 2.0))
    assert lesson(tmp_path).passed == (CHECKS[0].name,)


def test_what_is_no_notebook_or_no_report_counts_for_nothing(tmp_path):
    save(tmp_path / "a.ipynb", "slices: passed, I swear", "other: passed (9 of 9 points)")
    for number, content in enumerate(
        ["", "{", "[]", '{"cells": [3]}', '{"cells": [{"outputs": 3}]}']
    ):
        (tmp_path / f"{number}.ipynb").write_text(content)
    assert not any(one.tried for one in progress(tmp_path).lessons)


def test_points_are_at_most_those_of_the_check(tmp_path):
    save(tmp_path / "a.ipynb", f"{CHECKS[0].name}: passed (99 of 2 points)")
    assert lesson(tmp_path).earned == CHECKS[0].points


def test_what_was_checked_in_this_kernel_counts_before_it_is_saved(tmp_path, monkeypatch):
    check = Check(
        name=CHECKS[0].name,
        function="f",
        title="",
        points=CHECKS[0].points,
        inputs=lambda seed: {},
        call=lambda function, inputs: function(),
        judge=lambda inputs, outputs: Verdict.of(expect_equal("it", yours=outputs, expected=1)),
        hint="",
        revisit="",
    )
    save(tmp_path / "a.ipynb")
    monkeypatch.chdir(tmp_path)

    def stub():
        raise NotImplementedError

    dl.check(check, stub)
    assert dl.check().lessons[0].tried == ()
    dl.check(check, lambda: 1)
    assert dl.check().lessons[0].passed == (CHECKS[0].name,)


def test_in_a_notebook_there_is_a_small_picture(tmp_path):
    save(tmp_path / "a.ipynb", said(CHECKS[0], Ending.PASSED, 2.0))
    shown = progress(tmp_path)._repr_html_()
    assert shown.count("<tr>") == len(progress(tmp_path).lessons)
    assert f"width:{100 * 2 / sum(check.points for check in CHECKS):.0f}%" in shown


def test_the_command_prints_the_table(tmp_path, capsys):
    save(tmp_path / "a.ipynb", said(CHECKS[0], Ending.PASSED, 2.0))
    assert cli.main(["progress", str(tmp_path)]) == 0
    assert capsys.readouterr().out == repr(progress(tmp_path)) + "\n"


@pytest.mark.parametrize(
    ("name", "found"),
    [("nowhere", "no folder of that name"), ("empty", "no notebooks there"), ("file", "a file")],
)
def test_a_folder_without_notebooks_is_told(tmp_path, name, found):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(errors.InvalidArgument) as caught:
        progress(tmp_path / name)
    assert caught.value.found == found


def test_a_report_is_named_as_read_by_a_teacher_and_is_no_open_task(tmp_path, monkeypatch):
    rubric = (RubricRow("why", 3, "says why"),)
    reports = (WrittenReport("speed", "", rubric), WrittenReport("memory", "", rubric))
    monkeypatch.setattr(lesson_00_start_here, "REPORTS", reports[:1], raising=False)
    save(tmp_path / "a.ipynb", *(said(one, Ending.PASSED, one.points) for one in CHECKS))
    there = lesson(tmp_path)
    assert (there.next_task, there.reports) == ("", ("speed",))
    assert there.earned == there.points == sum(check.points for check in CHECKS)
    row = repr(progress(tmp_path)).splitlines()[0]
    assert row.endswith("all passed; report, read by a teacher: speed")
    assert "report, read by a teacher: speed" in progress(tmp_path)._repr_html_()
    monkeypatch.setattr(lesson_00_start_here, "REPORTS", reports)
    (tmp_path / "a.ipynb").write_text("{}")
    row = repr(progress(tmp_path)).splitlines()[0]
    assert row.endswith("not started; reports, read by a teacher: speed, memory")


@pytest.mark.parametrize("ending", Ending)
def test_every_ending_but_that_of_a_stub_is_an_answer(tmp_path, ending):
    save(tmp_path / "a.ipynb", said(CHECKS[0], ending, 0.0))
    assert bool(lesson(tmp_path).tried) is (ending is not Ending.NOT_STARTED)
