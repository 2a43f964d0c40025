"""The test of a new exercise, as text: in a clone of distlab, and anywhere else."""

from __future__ import annotations

from distlab.authoring.exercise.skeleton import filled

_TEST = '''\
"""<stem>: right answers pass, the stub earns nothing, mistakes are named."""

import numpy as np
import pytest

from distlab.course.checks.registry import checks_of
from tests.support.lesson_checks import (
    assert_mistake_is_caught,
    assert_solution_passes,
    assert_stub_earns_nothing,
    load_solution,
    load_stub,
    problems_of,
)

STEM = "<stem>"
CHECKS = checks_of(STEM)
(MEAN,) = CHECKS


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_each_check_is_complete(check):
    assert problems_of(check) == []


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_the_solution_passes(check):
    assert_solution_passes(check, load_solution(STEM)[check.function])


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_the_stub_earns_nothing(check):
    assert_stub_earns_nothing(check, load_stub(STEM)[check.function])


@pytest.mark.parametrize(
    "answer",
    [
        lambda sums, counts: np.average(sums / counts, weights=counts),
        lambda sums, counts: sum(sums.tolist()) / sum(counts.tolist()),
    ],
    ids=["weighted_mean_of_means", "plain_python"],
)
def test_other_right_answers_pass_too(answer):
    assert_solution_passes(MEAN, answer)


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (lambda sums, counts: np.mean(sums / counts), "mean_of_means"),
        (lambda sums, counts: np.mean(sums), "mean_of_sums"),
        (lambda sums, counts: np.sum(sums), "not_divided"),
    ],
)
def test_mistakes_are_named(answer, mistake):
    assert_mistake_is_caught(MEAN, answer, mistake)
'''

_OWN_TEST = '''\
"""<stem>: right answers pass, the stub earns nothing, mistakes are named."""

import sys
from pathlib import Path

import numpy as np
import pytest

from distlab.authoring.exercise.pages import own_page
from distlab.course.checks.run_check import run_check
from distlab.authoring.edition_loader import load_edition

sys.path.insert(0, str(Path(__file__).parent))
from lesson_<stem> import CHECKS

SOURCE = Path(__file__).with_name("<stem>.py")
(MEAN,) = CHECKS


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_the_solution_passes(check):
    answers = load_edition(own_page(SOURCE, "solution"))
    report = run_check(check, answers[check.function], seeds=range(20))
    assert report.passed, repr(report)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_the_stub_earns_nothing(check):
    stubs = load_edition(own_page(SOURCE, "exercise"))
    report = run_check(check, stubs[check.function])
    assert (report.ending, report.earned) == ("not_started", 0), repr(report)


@pytest.mark.parametrize(
    "answer",
    [
        lambda sums, counts: np.average(sums / counts, weights=counts),
        lambda sums, counts: sum(sums.tolist()) / sum(counts.tolist()),
    ],
    ids=["weighted_mean_of_means", "plain_python"],
)
def test_other_right_answers_pass_too(answer):
    report = run_check(MEAN, answer)
    assert report.passed, repr(report)


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (lambda sums, counts: np.mean(sums / counts), "mean_of_means"),
        (lambda sums, counts: np.mean(sums), "mean_of_sums"),
        (lambda sums, counts: np.sum(sums), "not_divided"),
    ],
)
def test_mistakes_are_named(answer, mistake):
    report = run_check(MEAN, answer)
    assert report.mistake == mistake, repr(report)
    assert report.earned < MEAN.points
'''


def test_text(stem: str, *, own: bool) -> str:
    """Returns the test of its checks."""
    return filled(_OWN_TEST if own else _TEST, stem)
