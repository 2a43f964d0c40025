"""Finds checks: each `distlab/course/lesson_NN_slug/checks`, a module or a package, has `CHECKS`.

If an exercise ends in a report that a teacher reads, the module has `REPORTS` as well.

    find_check("combine_shares")
    for check in all_checks(): ...

Lesson modules are imported in order, and only until the check is found.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import distlab.course
from distlab.course.checks.check import Check
from distlab.course.checks.rubric import WrittenReport
from distlab.errors import InvalidArgument, did_you_mean


def stems() -> list[str]:
    """The stems of the lessons that have checks, such as "01_mirrored_strategy", in their order."""
    lessons = (path for root in distlab.course.__path__ for path in Path(root).glob("lesson_*"))
    return sorted(
        path.name.removeprefix("lesson_") for path in lessons if any(path.glob("checks*"))
    )


def checks_of(stem: str) -> tuple[Check, ...]:
    """The checks of one lesson, by its stem such as "01_mirrored_strategy".

    Raises:
        InvalidArgument: No lesson of that stem has checks.
    """
    return tuple(_module(stem, f"checks_of({stem!r})").CHECKS)


def reports_of(stem: str) -> tuple[WrittenReport, ...]:
    """The reports that a lesson's exercise asks for, by its stem; of most lessons none.

    Raises:
        InvalidArgument: No lesson of that stem has checks.
    """
    return tuple(getattr(_module(stem, f"reports_of({stem!r})"), "REPORTS", ()))


def all_checks() -> Iterator[Check]:
    """Every check of every lesson."""
    for stem in stems():
        yield from checks_of(stem)


def find_check(name: str) -> Check:
    """The check of this name.

    Raises:
        InvalidArgument: No lesson has it.
    """
    names = []
    for check in all_checks():
        if check.name == name:
            return check
        names.append(check.name)
    raise InvalidArgument(
        asked=f"check({name!r})",
        found=f"no check named {name!r}",
        do=did_you_mean(str(name), names),
    )


def stem_of(check: Check) -> str:
    """Returns the stem of the lesson that has a check; "" if it is a teacher's own."""
    return next((stem for stem in stems() if check in checks_of(stem)), "")


def _module(stem: str, asked: str) -> ModuleType:
    if stem not in stems():
        raise InvalidArgument(
            asked=asked,
            found=f"no checks of a lesson {stem!r}",
            do=did_you_mean(stem, stems()),
        )
    return importlib.import_module(f"distlab.course.lesson_{stem}.checks")
