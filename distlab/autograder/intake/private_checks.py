"""Finds a check by its name, first in a teacher's own file that learners never see.

check_named("slices", None)
check_named("slices_again", Path("private.py"))      # a file with a tuple CHECKS
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from distlab.course.checks.check import Check
from distlab.course.checks.registry import find_check
from distlab.course.checks.rubric import WrittenReport
from distlab.errors import InvalidArgument


def check_named(name: str, extra_checks: Path | None) -> Check:
    """Returns the check of this name; a teacher's own comes before one of distlab's."""
    if extra_checks is not None:
        for check in load_checks(extra_checks):
            if check.name == name:
                return check
    return find_check(name)


def load_checks(path: Path) -> tuple[Check, ...]:
    """Returns the checks of a file."""
    checks = _names_of(path).get("CHECKS")
    if not isinstance(checks, tuple) or not all(isinstance(check, Check) for check in checks):
        raise _refusal(path, "no tuple CHECKS of checks")
    return checks


def load_reports(path: Path) -> tuple[WrittenReport, ...]:
    """Returns the reports that a teacher's own exercise asks for; of most none."""
    names = _names_of(path)
    reports = names.get("REPORTS", ())
    if not isinstance(reports, tuple) or not all(isinstance(r, WrittenReport) for r in reports):
        raise _refusal(
            path, "REPORTS that is not a tuple of reports", do="REPORTS = (WrittenReport(...),)"
        )
    taken = [one.name for one in (*names.get("CHECKS", ()), *reports)]
    if twice := [name for name in taken if taken.count(name) > 1]:
        raise InvalidArgument(
            asked=f"the reports of {path}",
            found=f"two checks or reports of the name {twice[0]!r}",
            do="name each once",
        )
    return reports


def _names_of(path: Path) -> dict[str, Any]:
    """Runs a teacher's file, and returns what it defines."""
    try:
        text = path.read_bytes()
    except OSError as error:
        found = f"nothing to read ({error.strerror})"
        raise InvalidArgument(
            asked=f"the checks of {path}", found=found, do="give a Python file with checks"
        ) from error
    # Its name is not told: where learners' code runs, nothing leads to the file.
    names: dict[str, Any] = {"__name__": "extra_checks"}
    try:
        exec(compile(text, "<extra checks>", "exec"), names)
    except Exception as error:
        raise _refusal(path, f"{type(error).__name__}: {error}") from error
    return names


def _refusal(path: Path, found: str, do: str = "CHECKS = (Check(...),)") -> InvalidArgument:
    return InvalidArgument(
        asked=f"the checks of {path}",
        found=found,
        do=f"write it like a module of distlab.course.checks: {do}",
    )
