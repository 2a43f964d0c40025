"""A lesson's tests hold another right answer to each check, and a wrong one for each mistake.

A `Fault` needs none: tests/course/checks/test_faults.py asks for each of them, without TensorFlow.
"""

import pytest

from distlab.course.checks.check import Check, Cost
from distlab.course.checks.mistakes import Fault
from distlab.course.checks.registry import checks_of
from tests.support.lesson_checks import caught_mistakes, other_right_answers

_collected: dict[str, set[str]] = {}  # by module, before -k and the like
_ran: dict[str, set[str]] = {}


def pytest_configure(config):
    for cost in Cost:
        config.addinivalue_line("markers", f"{cost.value}: asks checks of this cost")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        _collected.setdefault(item.module.__name__, set()).add(item.nodeid)
        for cost in costs_of(item.function):
            item.add_marker(cost.value)


def costs_of(test):
    """The costs of the checks that a test function names, such as SLICES of its module."""
    named = [test.__globals__.get(name) for name in test.__code__.co_names]
    return {check.cost for check in named if isinstance(check, Check)}


@pytest.fixture(autouse=True)
def _note_that_it_runs(request):
    _ran.setdefault(request.module.__name__, set()).add(request.node.nodeid)


@pytest.fixture(scope="module", autouse=True)
def each_check_has_its_answers(request):
    """Counts, at the end of a lesson's tests, what they asked of each of its checks."""
    yield
    name = request.module.__name__
    stem = getattr(request.module, "STEM", None)
    is_of_lesson = request.path.stem == f"test_{stem}"
    is_whole = not any("::" in arg for arg in request.config.args)
    if not is_of_lesson or not is_whole or _ran[name] != _collected[name]:
        return
    lacking = [text for check in checks_of(stem) for text in lacking_of(check)]
    assert not lacking, "\n".join(lacking)


def lacking_of(check):
    if not other_right_answers(check):
        yield (
            f"{check.name}: no right answer beside the solution is tested; "
            "give one to assert_right_answers_pass"
        )
    without_reference = {m.name for m in check.mistakes if not isinstance(m, Fault)}
    if uncaught := without_reference - caught_mistakes(check):
        yield (
            f"{check.name}: no test makes the mistakes {sorted(uncaught)}; "
            "give a wrong answer for each to assert_mistakes_are_caught"
        )
