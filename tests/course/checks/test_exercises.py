"""What every exercise has: a bug to find, a thing to build, and for each task all that it needs.

The solution passes its check; the exercise as handed out, and answers that do nothing, earn none.
"""

import functools
import os
import re

import nbformat
import pytest

from distlab.course.checks.check import Cost
from distlab.course.checks.handed_out import is_untouched
from distlab.course.checks.registry import checks_of, reports_of, stems
from distlab.course.checks.run_check import run_check
from distlab.course.markup import CODE, TASK
from tests.support.lesson_checks import load_solution, load_stub
from tests.support.repository import ROOT, lesson_text

STEMS = stems()
each_check = pytest.mark.parametrize(
    ("stem", "check"),
    [pytest.param(stem, check, id=check.name) for stem in STEMS for check in checks_of(stem)],
)
# Checks that train nothing are asked on a few draws. `make full-marks` sets the number, and asks
# the other checks as well.
SEEDS = range(int(os.environ.get("DISTLAB_SEEDS", "3")))
ALL_COSTS = "DISTLAB_SEEDS" in os.environ
solution_of, stub_of = functools.cache(load_solution), functools.cache(load_stub)
# The classics end in a report of the learner's own runs.
WITH_REPORT = {
    "02_batch_scaling",
    "07_mixed_precision",
    "09_multi_worker",
    "11_fault_tolerance",
    "14_scaling",
}
AMOUNT = re.compile(r"\b([Aa]bout|Change) (\d+|one) lines?\b|(line is|lines are) enough")
VERDICT = re.compile(r"(?m)^(\w+): ([a-z ]+) \(([\d.]+) of ([\d.]+) points\)")
ROW = r"^# \| (?:\d+\. |report )`{name}` \| .+ \| \d+ \| (?:easy|medium|hard) \| (?:core|extra) \|$"


def source_of(stem):
    return lesson_text(stem, "exercise.py")


def tasks_of(stem):
    """For each task its name, and the source from its heading to the next one's."""
    headings = r"(?m)^# ## (?=Task)|^# ## (?=Your report)|^# ## (?=Next steps)"
    parts = re.split(headings, source_of(stem))
    return {TASK.search(part)[1]: part for part in parts if TASK.search(part)}


@pytest.mark.parametrize("stem", STEMS)
def test_an_exercise_is_complete(stem):
    source, tasks = source_of(stem), tasks_of(stem)
    assert list(tasks) == [check.name for check in checks_of(stem)]
    lacking = []
    for name, text in tasks.items():
        prose = " ".join(word for word in text.split() if word != "#")
        parts = {
            "a row of the table": re.search(ROW.format(name=name), source, re.MULTILINE),
            "a folded hint": "<details><summary>Hint" in text,
            "its check": f'\ndl.check("{name}")\n' in text,
            "how many lines": AMOUNT.search(prose),
            "a thing to try next": "\n# **Try next:** " in text,
        }
        lacking += [f"{name}: {part}" for part, is_given in parts.items() if not is_given]
    assert lacking == []
    # Code to repair stands behind a stub marker, in a function; the other stubs raise.
    assert {CODE.stub in text for text in tasks.values()} == {True, False}

    reports = reports_of(stem)
    assert re.findall(r"(?m)^# report: (\S+)$", source) == [report.name for report in reports]
    assert bool(reports) == (stem in WITH_REPORT)
    for report in reports:
        assert 3 <= len(report.rubric) <= 4 <= report.points <= 6
        assert re.search(ROW.format(name=report.name), source, re.MULTILINE)


def test_no_two_checks_or_reports_have_one_name():
    names = [item.name for stem in STEMS for item in (*checks_of(stem), *reports_of(stem))]
    assert sorted(set(names)) == sorted(names)


@functools.cache
def verdicts_shown(stem, edition):
    """What each check says in a stored notebook, which `make regression` runs again."""
    notebook = nbformat.read(ROOT / edition / f"{stem}.ipynb", as_version=4)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    text = "\n".join(output.get("data", {}).get("text/plain", "") for output in outputs)
    return {name: verdict for name, *verdict in VERDICT.findall(text)}


@each_check
def test_each_solution_passes(stem, check):
    solution = solution_of(stem)[check.function]
    assert not is_untouched(check, solution)
    points = f"{check.points:g}"
    assert verdicts_shown(stem, "solutions")[check.name] == ["passed", points, points]
    if check.cost is Cost.PURE or ALL_COSTS:
        seeds = SEEDS[::4] if check.cost is Cost.CLUSTER else SEEDS
        report = run_check(check, solution, seeds=seeds)
        assert (report.passed, report.earned) == (True, check.points), report


@each_check
def test_what_is_handed_out_and_what_does_nothing_earns_nothing(stem, check):
    stub = stub_of(stem)[check.function]
    assert is_untouched(check, stub)
    shown = verdicts_shown(stem, "exercises")[check.name]
    assert shown == ["not started", "0", f"{check.points:g}"]
    if check.cost is Cost.CLUSTER and not ALL_COSTS:
        return
    # An answer earns in many draws no more than in one.
    answers = [lambda *given: None]
    if check.cost is Cost.PURE:
        answers.append(lambda *given: given[0])
        status = "not yet" if CODE.stub in tasks_of(stem)[check.name] else "not started"
        handed_out = run_check(check, stub, seeds=SEEDS)
        assert (handed_out.earned, handed_out.status) == (0, status), handed_out
    for answer in answers:
        report = run_check(check, answer, seeds=(1,))
        assert report.earned == 0, report
