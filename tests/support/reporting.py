"""A pytest plugin: a failure is told when it happens, and the last line says how the run ended.

    == 1535 passed, 12 skipped (9 of them: no Chromium) in 1399 s
    == 2 failed, 1533 passed in 1399 s: test_a, test_b

The seconds are those of the command that was typed, `make test`, if it says when it began.
"""

import os
import time
from collections import Counter
from typing import Any

import pytest

# Set by the Makefile to when its command began, in seconds since 1970.
STARTED_VARIABLE = "DISTLAB_STARTED"
# Why a test of the browser is skipped (`tests.support.browser`), and what the last line calls that.
NO_BROWSER = "no Chromium"
_MOST_NAMES = 8

_loaded_at = time.time()


def pytest_configure(config: pytest.Config) -> None:
    """Reports where the reports of all processes arrive."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Reporting(config.pluginmanager))


class _Reporting:
    def __init__(self, plugins: pytest.PytestPluginManager) -> None:
        self._plugins = plugins

    @property
    def _terminal(self) -> Any:
        return self._plugins.getplugin("terminalreporter")  # it comes after this

    @pytest.hookimpl(trylast=True)  # the terminal's own letter comes first
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._tell(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._tell(report)

    def _tell(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if self._terminal._tw.width_of_current_line:  # behind the letters of what ran before
            self._terminal.write("\n")
        self._terminal.write_line(f"!! {report.nodeid}: {first_line(report)}", red=True)

    @pytest.hookimpl(trylast=True)  # after all that pytest itself has to say
    def pytest_unconfigure(self) -> None:
        stats = self._terminal.stats
        if not any(stats.get(kind) for kind in ("passed", "failed", "error", "skipped")):
            return
        seconds = time.time() - float(os.environ.get(STARTED_VARIABLE, _loaded_at))
        self._terminal.write_line(last_line(stats, seconds))


def first_line(report: pytest.TestReport | pytest.CollectReport) -> str:
    """What a failure says first: the message of its error, not the frames before it."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr)
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def last_line(stats: dict[str, list[pytest.TestReport]], seconds: float) -> str:
    """How a run ended, with the names of what failed."""
    counts = Counter({kind: len(stats.get(kind, ())) for kind in ("failed", "error", "passed")})
    parts = [f"{count} {_WORDS[kind]}" for kind, count in counts.items() if count]
    if skipped := stats.get("skipped", []):
        without = sum(NO_BROWSER in str(report.longrepr) for report in skipped)
        reason = f" ({without} of them: {NO_BROWSER})" if without else ""
        parts.append(f"{len(skipped)} skipped{reason}")
    broken = dict.fromkeys(
        report.nodeid.rpartition("::")[2] or report.nodeid
        for kind in ("failed", "error")
        for report in stats.get(kind, ())
    )
    names = ", ".join(list(broken)[:_MOST_NAMES])
    if len(broken) > _MOST_NAMES:
        names += f" and {len(broken) - _MOST_NAMES} more"
    return f"== {', '.join(parts)} in {seconds:.0f} s" + (f": {names}" if names else "")


_WORDS = {"failed": "failed", "error": "with an error", "passed": "passed"}
