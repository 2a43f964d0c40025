"""Helpers for the tests of a lesson's checks (tests/course/test_NN_slug.py).

outside = edited_solution(STEM, "train", {"with strategy.scope():": "if strategy:"})

def test_loops_are_judged():
    assert_mistakes_are_caught(TRAIN, {"outside_scope": outside})
"""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from distlab.authoring.edition_loader import load_edition
from distlab.authoring.source import Page
from distlab.course.checks.check import Check, Cost
from distlab.course.checks.matchers import same_plain
from distlab.course.checks.report import Report
from distlab.course.checks.run_check import DEFAULT_SEEDS, run_check
from distlab.course.results.plain_values import to_plain
from distlab.source_lines import keep_lines
from tests.support.repository import ROOT

# What was asked, by the name of the check; functions by their ids, and kept, so that ids last.
_right: dict[str, dict[int, Callable[..., Any]]] = {}
_caught: dict[str, set[str]] = {}


def draws_of(check: Check) -> Iterable[int]:
    """What trains or starts processes is asked once; `make full-marks` asks more."""
    return check.cost.seeds if check.cost is Cost.PURE else (1,)


def assert_solution_passes(
    check: Check, function: Callable[..., Any], *, seeds: Iterable[int] = range(20)
) -> None:
    """The solution, or another right answer, earns all points on every seed."""
    _right.setdefault(check.name, {})[id(function)] = function
    report = run_check(check, function, seeds=seeds)
    assert report.passed, f"a right answer to {check.name} does not pass:\n{report!r}"
    assert report.earned == check.points


def assert_mistake_is_caught(
    check: Check,
    function: Callable[..., Any],
    mistake: str,
    *,
    seeds: Iterable[int] | None = None,
) -> Report:
    """A wrong answer does not pass, and the report names exactly this mistake.

    Unless `seeds` says which, one draw is asked, and of a pure check as many as a learner gets.
    """
    named = {m.name: m for m in check.mistakes}
    assert mistake in named, f"{check.name} names no {mistake}"
    _caught.setdefault(check.name, set()).add(mistake)
    report = run_check(check, function, seeds=draws_of(check) if seeds is None else seeds)
    assert not report.passed, f"{check.name} lets {mistake} pass"
    assert report.earned < check.points
    assert report.mistake == mistake, f"{mistake} is reported otherwise:\n{report!r}"
    return report


def assert_right_answers_pass(
    check: Check, *answers: Callable[..., Any], seeds: Iterable[int] | None = None
) -> None:
    """Answers in other forms than the solution's earn all points; names each that does not.

    The draws are those of `assert_mistake_is_caught`.
    """
    refused = []
    for number, answer in enumerate(answers, 1):
        try:
            assert_solution_passes(check, answer, seeds=draws_of(check) if seeds is None else seeds)
        except AssertionError as error:
            refused.append(f"answer {number}, {answer!r}: {error}")
    assert not refused, "\n".join(refused)


def assert_mistakes_are_caught(
    check: Check,
    wrong: Mapping[str, Callable[..., Any]],
    *,
    earned: float | Mapping[str, float] | None = None,
    seeds: Iterable[int] | None = None,
) -> None:
    """Each wrong answer is reported as the mistake under whose name it stands.

    `earned` is what all of them earn, or what those do that it names.
    """
    unnamed = []
    for mistake, answer in wrong.items():
        points = earned.get(mistake) if isinstance(earned, Mapping) else earned
        try:
            report = assert_mistake_is_caught(check, answer, mistake, seeds=seeds)
            assert points in (None, report.earned), f"earns {report.earned:g}, not {points:g}"
        except AssertionError as error:
            unnamed.append(f"{mistake}: {error}")
    assert not unnamed, "\n".join(unnamed)


def assert_feedback_says(
    check: Check,
    said: Mapping[str, Callable[..., Any]],
    *,
    earned: float = 0,
    seeds: Iterable[int] = (1,),
) -> None:
    """The report on each answer contains the text under which it stands, and these points."""
    silent = []
    for text, answer in said.items():
        report = run_check(check, answer, seeds=seeds)
        if text not in repr(report) or report.earned != earned:
            silent.append(f"{text!r} and {earned:g} points are not in\n{report!r}")
    assert not silent, "\n".join(silent)


def other_right_answers(check: Check) -> int:
    """How many answers beside the solution were held to be right, in this process."""
    return sum(not is_solution(function) for function in _right.get(check.name, {}).values())


def is_solution(function: Callable[..., Any]) -> bool:
    """Whether a function is that of a solution edition."""
    home = getattr(function, "__globals__", {})
    return str(home.get("__name__", "")).startswith("solution_of_")


def caught_mistakes(check: Check) -> set[str]:
    """Which mistakes were made and named, in this process."""
    return _caught.get(check.name, set())


def problems_of(check: Check) -> list[str]:
    """What a check lacks, in sentences; empty for a complete one."""
    problems = []
    for field in ("title", "hint", "revisit"):
        if not getattr(check, field).strip():
            problems.append(f"{check.name} has no {field}")
    if len(check.mistakes) < 3:
        problems.append(f"{check.name} names {len(check.mistakes)} mistakes, and 3 are asked for")
    problems += [f"{check.name}: {m.name} says nothing" for m in check.mistakes if not m.says]
    draws = []
    for disturbance in (1, 2):  # global state of a notebook must not matter
        random.seed(disturbance)
        np.random.seed(disturbance)
        draws.append([to_plain(check.inputs(seed)) for seed in DEFAULT_SEEDS])
    if not same_plain(draws[0], draws[1]):
        problems.append(f"{check.name}: inputs differ for the same seed")
    if same_plain(draws[0][0], draws[0][1]) and same_plain(draws[0][0], draws[0][2]):
        problems.append(f"{check.name}: inputs are the same for every seed")
    return problems


def load_solution(stem: str, *, root: Path = ROOT) -> dict[str, Any]:
    """The names that the solution edition of a lesson's exercise.py defines."""
    return load_edition(Page(root, stem, "solution"))


def load_stub(stem: str, *, root: Path = ROOT) -> dict[str, Any]:
    """The names that the exercise edition, as handed out, defines."""
    return load_edition(Page(root, stem, "exercise"))


def edited_solution(stem: str, function: str, edits: Mapping[str, str]) -> Callable[..., Any]:
    """A solution in which parts of the source are replaced: an answer as a learner writes it."""
    names = dict(_solution_names(stem))
    source = inspect.getsource(names[function])
    for old, new in edits.items():
        assert old in source, f"{old!r} is not in the solution:\n{source}"
        source = source.replace(old, new)
    file = f"<{function} with {edits}>"
    keep_lines({file: source.splitlines(keepends=True)})
    names["__name__"] = f"edited_{stem}"
    exec(compile(source, file, "exec"), names)
    answer: Callable[..., Any] = names[function]
    return answer


def edited_solutions(
    stem: str, function: str, edits: Mapping[str, Mapping[str, str]]
) -> dict[str, Callable[..., Any]]:
    """By the name of each mistake, the solution with the edits that make it."""
    return {mistake: edited_solution(stem, function, changes) for mistake, changes in edits.items()}


_solution_names = functools.cache(load_solution)
