"""Each fault of each check, without TensorFlow: the reference, changed, is named by that alone."""

import pytest

from distlab.checks.criteria import judge_by
from distlab.checks.mistakes import Fault
from distlab.checks.registry import all_checks
from distlab.results.plain_values import to_plain

SEEDS = range(1, 9)
STATED = [check for check in all_checks() if check.reference is not None]
WAYS = [
    pytest.param(check, mistake, changes, id=f"{check.name}-{mistake.name}-{number}")
    for check in STATED
    for mistake in check.mistakes
    if isinstance(mistake, Fault)
    for number, changes in enumerate(mistake.ways, 1)
]


@pytest.fixture(scope="session", autouse=True)
def devices():
    """No devices: nothing here needs TensorFlow."""


def drawn(check, seed):
    return to_plain(check.inputs(seed))


def named(check, given, outputs):
    """The mistakes that explain outputs in the form that is judged."""

    def explains(mistake):
        try:
            return mistake.explains(check, given, outputs)
        except Exception:  # as when a learner's answer is judged
            return False

    return [mistake.name for mistake in check.mistakes if explains(mistake)]


@pytest.mark.parametrize("check", STATED, ids=lambda check: check.name)
def test_the_reference_passes_its_own_check(check):
    for seed in SEEDS:
        given = drawn(check, seed)
        right = check.expected(given)
        verdict = judge_by(check.criteria, given, right, right)
        assert verdict.passed, [row for row in verdict.criteria if not row.passed]
        assert verdict.share == pytest.approx(1)


@pytest.mark.parametrize(("check", "fault", "changes"), WAYS)
def test_a_fault_fails_and_is_named_by_that_alone(check, fault, changes):
    failed = 0
    for seed in SEEDS:
        given = drawn(check, seed)
        right, wrong = check.expected(given), check.expected(given, **changes)
        if judge_by(check.criteria, given, wrong, right).passed:
            continue  # such as a mean of nothing, where every replica has an example
        failed += 1
        assert named(check, given, wrong) == [fault.name], f"seed {seed}"
    assert failed, "an answer with this fault passes on every seed"


def test_nothing_of_this_needs_tensorflow(run_python):
    code = """
import sys
from distlab.checks.registry import all_checks
for check in all_checks():
    if check.reference is not None:
        check.expected(check.inputs(1))
print("tensorflow" in sys.modules)
"""
    assert run_python(code) == "False\n"
