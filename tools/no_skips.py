"""Makes a skipped test fail, for a machine on which every test must run.

pytest -p tools.no_skips tests
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

import pytest

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turns the report of a skipped test into a failed one."""
    return _refuse((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a module that is skipped as a whole."""
    return _refuse((yield))


def _refuse(report: Report) -> Report:
    # A test that is expected to fail reports itself as skipped too: that is no skip.
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped, where nothing may be: {reason}"
    return report
