"""The checks of a teacher's own file.

checks, reports = load_own(Path("mine/lesson_20_my_topic.py"))
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from distlab.course.checks.check import Check
from distlab.course.checks.rubric import WrittenReport
from distlab.errors import InvalidArgument


def load_own(path: Path) -> tuple[tuple[Check, ...], tuple[WrittenReport, ...]]:
    """Returns the checks of a teacher's file, and the reports that it asks for; of most none."""
    names = _names_of(path)
    checks, reports = names.get("CHECKS"), names.get("REPORTS", ())
    if not isinstance(checks, tuple) or not all(isinstance(check, Check) for check in checks):
        raise _refusal(path, "no tuple CHECKS of checks")
    if not isinstance(reports, tuple) or not all(isinstance(r, WrittenReport) for r in reports):
        raise _refusal(
            path, "REPORTS that is not a tuple of reports", do="REPORTS = (WrittenReport(...),)"
        )
    taken = [named.name for named in (*checks, *reports)]
    if twice := [name for name in taken if taken.count(name) > 1]:
        raise InvalidArgument(
            asked=f"the reports of {path}",
            found=f"two checks or reports of the name {twice[0]!r}",
            do="name each once",
        )
    return checks, reports


def _names_of(path: Path) -> dict[str, Any]:
    """Runs a teacher's file, and returns what it defines."""
    try:
        text = path.read_bytes()
    except OSError as error:
        found = f"nothing to read ({error.strerror})"
        raise InvalidArgument(
            asked=f"the checks of {path}", found=found, do="give a Python file with checks"
        ) from error
    names: dict[str, Any] = {"__name__": "extra_checks"}
    try:
        exec(compile(text, path.name, "exec"), names)
    except Exception as error:
        raise _refusal(path, f"{type(error).__name__}: {error}") from error
    return names


def _refusal(path: Path, found: str, do: str = "CHECKS = (Check(...),)") -> InvalidArgument:
    return InvalidArgument(
        asked=f"the checks of {path}",
        found=found,
        do=f"write it like a module of distlab.course.checks: {do}",
    )
