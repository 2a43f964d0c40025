"""The checks of a teacher's own file.

checks, reports = load_own(Path("mine/lesson_20_my_topic.py"))
"""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

from distlab.course.checks.check import Check
from distlab.course.checks.rubric import WrittenReport
from distlab.errors import DistlabError, InvalidArgument


def load_own(path: Path) -> tuple[tuple[Check, ...], tuple[WrittenReport, ...]]:
    """Returns the checks of a teacher's file, and the reports that it asks for; of most none."""
    names = _names_of(path)
    checks, reports = names.get("CHECKS"), names.get("REPORTS", ())
    if isinstance(checks, Check):
        raise _refusal(path, "CHECKS = (Check(...)): a comma is missing")
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
            asked=f"the checks of {path}", found=found, do="name a Python file with checks"
        ) from error
    names: dict[str, Any] = {"__name__": "extra_checks"}
    try:
        exec(compile(text, path.name, "exec"), names)
    except DistlabError as error:
        asked = f"{error.asked} in {path}, line {_line_of(error, path, error.found)}"
        raise InvalidArgument(asked=asked, found=error.found, do=error.do) from error
    except SyntaxError as error:
        raise _refusal(path, f"{type(error).__name__}: {error}") from error
    except Exception as error:
        line = _line_of(error, path)
        raise _refusal(path, f"{type(error).__name__} in line {line}: {error}") from error
    return names


def _line_of(error: Exception, path: Path, found: str = "") -> int:
    """The line of a file that raised; if it calls something, that of the argument in question."""
    frames = traceback.extract_tb(error.__traceback__)
    line = next(frame.lineno or 1 for frame in reversed(frames) if frame.filename == path.name)
    if argument := re.match(r"(\w+)=", found):
        texts = path.read_text(encoding="utf-8").splitlines()
        begins = re.compile(rf"\s*{argument[1]}=")
        return next(
            (n for n, text in enumerate(texts, 1) if n >= line and begins.match(text)), line
        )
    return line


def _refusal(path: Path, found: str, do: str = "CHECKS = (Check(...),)") -> InvalidArgument:
    return InvalidArgument(
        asked=f"the checks of {path}",
        found=found,
        do=f"write it like a module of distlab.course.checks: {do}",
    )
