"""What every exercise has: a bug to find, a thing to build, and for each task all that it needs.

The solution passes its check, and the exercise as handed out earns nothing.
"""

import functools
import re

import pytest

from distlab.checks.registry import checks_of, reports_of, stems
from distlab.checks.run_check import run_check
from distlab.markup import CODE, TASK
from tests.support.lesson_checks import (
    assert_solution_passes,
    assert_stub_earns_nothing,
    load_solution,
    load_stub,
)
from tests.support.repository import ROOT

STEMS = stems()
each_check = pytest.mark.parametrize(
    ("stem", "check"),
    [pytest.param(stem, check, id=check.name) for stem in STEMS for check in checks_of(stem)],
)
# Of a check that trains, saves or starts workers: these draws differ in more than the numbers. The
# others have 20 here, and all have in tools/full_marks.py.
FEWER_SEEDS = {
    **dict.fromkeys(("train_in_calls", "train", "train_float16"), 6),
    **dict.fromkeys(("equal_runs", "replica_masks"), 4),
    **dict.fromkeys(("move_model", "partial_restore", "export_service"), 4),
    **dict.fromkeys(("unfreeze_from", "numbers_sent"), 3),
    **dict.fromkeys(("my_part", "train_on_two_workers", "save_from_many", "end_of_epoch"), 2),
    **dict.fromkeys(("coordinate", "survive_kill", "compare_strategies"), 3),
    **dict.fromkeys(("whole_state", "save_atomically", "leave_when_told"), 6),
    "recovers": 2,
}
solution_of, stub_of = functools.cache(load_solution), functools.cache(load_stub)
# The classics end in a report of the learner's own runs.
WITH_REPORT = {
    "02_batch_scaling",
    "07_mixed_precision",
    "09_multi_worker",
    "11_fault_tolerance",
    "13_performance",
}
AMOUNT = re.compile(r"\b([Aa]bout|Change) (\d+|one) lines?\b|(line is|lines are) enough")
ROW = r"^# \| (?:\d+\. |report )`{name}` \| .+ \| \d+ \| (?:easy|medium|hard) \|$"


def source_of(stem):
    return (ROOT / "lessons" / stem / "exercise.py").read_text(encoding="utf-8")


def tasks_of(stem):
    """For each task its name, and the source from its heading to the next one's."""
    parts = re.split(
        r"(?m)^# ## (?=Task)|^# ## (?=Your report)|^# ## (?=Next steps)", source_of(stem)
    )
    return {TASK.search(part)[1]: part for part in parts if TASK.search(part)}


@pytest.mark.parametrize("stem", STEMS)
def test_each_task_has_a_check_and_each_check_a_task_in_their_order(stem):
    assert list(tasks_of(stem)) == [check.name for check in checks_of(stem)]


@pytest.mark.parametrize("stem", STEMS)
def test_each_task_has_a_row_with_minutes_and_difficulty_hint_check_and_try_next(stem):
    lacking = []
    for name, text in tasks_of(stem).items():
        prose = " ".join(word for word in text.split() if word != "#")
        has = {
            "a row of the table": re.search(ROW.format(name=name), source_of(stem), re.MULTILINE),
            "a folded hint": "<details><summary>Hint" in text,
            "its check": f'\ndl.check("{name}")\n' in text,
            "how many lines": AMOUNT.search(prose),
            "a thing to try next": "\n# **Try next:** " in text,
        }
        lacking += [f"{name}: {what}" for what, there in has.items() if not there]
    assert lacking == []


@pytest.mark.parametrize("stem", STEMS)
def test_one_task_is_a_bug_to_find_and_one_a_thing_to_build(stem):
    """Code to repair stands behind a stub marker, in a function; the others raise."""
    repaired = {name: CODE.stub in text for name, text in tasks_of(stem).items()}
    assert set(repaired.values()) == {True, False}


@each_check
def test_each_solution_passes(stem, check):
    seeds = range(FEWER_SEEDS.get(check.name, 20))
    assert_solution_passes(check, solution_of(stem)[check.function], seeds=seeds)


@each_check
def test_each_exercise_as_handed_out_earns_nothing(stem, check):
    status = "not yet" if CODE.stub in tasks_of(stem)[check.name] else "not started"
    if check.name == "end_of_epoch":
        status = "error in your code"  # it hangs
    assert_stub_earns_nothing(check, stub_of(stem)[check.function], status=status)


@each_check
@pytest.mark.parametrize(
    "answer", [lambda *given: None, lambda *given: given[0]], ids=["none", "its_own"]
)
def test_what_does_nothing_earns_nothing(stem, check, answer):
    assert run_check(check, answer).earned == 0


@pytest.mark.parametrize("stem", STEMS)
def test_reports_are_asked_for_as_their_rubric_says(stem):
    asked = re.findall(r"(?m)^# report: (\S+)$", source_of(stem))
    assert asked == [report.name for report in reports_of(stem)]
    assert bool(asked) == (stem in WITH_REPORT)
    for report in reports_of(stem):
        assert 3 <= len(report.rubric) <= 4
        assert 4 <= report.points <= 6
        assert re.search(ROW.format(name=report.name), source_of(stem), re.MULTILINE)


@pytest.mark.parametrize("stem", STEMS)
def test_the_page_for_teachers_adds_up_the_minutes(stem):
    minutes = re.findall(r"(?m)^# \| .+ \| (\d+) \| (?:easy|medium|hard) \|$", source_of(stem))
    page = (ROOT / "docs" / "teaching.md").read_text(encoding="utf-8")
    row = re.search(rf"(?m)^\| {stem[:2]} .+ \| \**(\d+)\** \|$", page)
    assert int(row[1]) == sum(map(int, minutes))
