"""Runs the tests that cost most first, and leaves out what a test costs beyond so many seconds.

    python -m pytest tests -p tools.cheapest_cases --secs-per-test 2

Of each test function its cheapest cases run, as far as together they take so much processor time.
tests/costs.json tells what a case took; what it does not list runs. Nothing is left out without the
option.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from tools.processor_time import known

Costs = Mapping[str, Mapping[str, float]]
_OPTION = "--secs-per-test"


def left_out(costs: Costs, secs: float) -> set[str]:
    """Returns the full names of the cases that are left out.

    Args:
        costs: Seconds by test function, and by case.
        secs: What the cases of one function may take together.
    """
    names = set()
    for function, cases in costs.items():
        total = 0.0
        for case, cost in sorted(cases.items(), key=lambda one: one[1]):
            total += cost
            if total > secs:
                names.add(f"{function}[{case}]" if case else function)
    return names


def pytest_addoption(parser):
    """Adds the option."""
    parser.addoption(
        _OPTION, type=float, metavar="SECS", help="leave out what a test costs beyond this"
    )


def pytest_report_header(config):
    """Says what does not run."""
    secs = config.getoption(_OPTION)
    if secs is None:
        return None
    names = left_out(known(), secs)
    tests = {name.partition("[")[0] for name in names}
    return f"left to `make check`: {len(names)} cases of {len(tests)} tests, beyond {secs:g} s each"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Leaves cases out, and orders the files: the last ones must not keep one process waiting."""
    costs, secs = known(), config.getoption(_OPTION)
    if secs is not None:
        names = left_out(costs, secs)
        config.hook.pytest_deselected(items=[one for one in items if one.nodeid in names])
        items[:] = [one for one in items if one.nodeid not in names]
    of_files = Counter[str]()
    for item in items:
        function, _, case = item.nodeid.partition("[")
        file = function.split("::")[0]
        of_files[file] += costs.get(function, {}).get(case.removesuffix("]"), 0.0)
    items.sort(key=lambda one: -of_files[one.nodeid.split("::")[0]])
