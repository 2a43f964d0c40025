"""Each fault of each check, without TensorFlow: the reference, changed, is named by that alone."""

import pytest

from distlab.course.checks.criteria import judge_by
from distlab.course.checks.mistakes import Fault
from distlab.course.checks.registry import all_checks
from distlab.course.results.plain_values import to_plain

SEEDS, ENOUGH = range(1, 9), 2  # draws, and how many of them must show a fault
STATED = [check for check in all_checks() if check.reference is not None]


@pytest.fixture(scope="session", autouse=True)
def devices():
    """No devices: nothing here needs TensorFlow."""


def named(check, given, outputs):
    """The mistakes that explain outputs in the form that is judged."""

    def explains(mistake):
        try:
            return mistake.explains(check, given, outputs)
        except Exception:  # as when a learner's answer is judged
            return False

    return [mistake.name for mistake in check.mistakes if explains(mistake)]


@pytest.mark.parametrize("check", STATED, ids=lambda check: check.name)
def test_the_reference_passes_and_each_fault_fails_and_is_named_by_that_alone(check):
    draws = {seed: to_plain(check.inputs(seed)) for seed in SEEDS}
    right = {seed: check.expected(given) for seed, given in draws.items()}
    problems = []
    for seed, given in draws.items():
        verdict = judge_by(check.criteria, given, right[seed], right[seed])
        if not verdict.passed or verdict.share != pytest.approx(1):
            problems.append(f"seed {seed}: the reference does not pass: {verdict}")
    variants = [
        (m, changes) for m in check.mistakes if isinstance(m, Fault) for changes in m.variants
    ]
    for fault, changes in variants:
        failed = 0
        for seed, given in draws.items():
            wrong = check.expected(given, **changes)
            if judge_by(check.criteria, given, wrong, right[seed]).passed:
                continue  # such as a mean of nothing, where every replica has an example
            failed += 1
            if (names := named(check, given, wrong)) != [fault.name]:
                problems.append(f"{fault.name} by {changes}, seed {seed}: named {names}")
            if failed == ENOUGH:
                break
        if not failed:
            problems.append(f"{fault.name} by {changes}: passes on every seed")
    assert problems == []
