"""Finds checks: every `distlab/grading/lesson_NN_slug`, a module or a package, holds `CHECKS`.

    find_check("combine_gradients")
    for check in all_checks(): ...

Lesson modules are imported in order, and only until the check is found.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import distlab.grading
from distlab.errors import InvalidArgument, did_you_mean
from distlab.grading.checks import Check


def lesson_modules() -> list[str]:
    """Names of the modules that hold checks, in the order of the lessons."""
    found = pkgutil.iter_modules(distlab.grading.__path__)
    return sorted(module.name for module in found if module.name.startswith("lesson_"))


def checks_of(stem: str) -> tuple[Check, ...]:
    """The checks of one lesson, by its stem such as "01_mirrored_strategy"."""
    known = [module.removeprefix("lesson_") for module in lesson_modules()]
    if stem not in known:
        raise InvalidArgument(
            asked=f"checks_of({stem!r})",
            found="no lesson of that stem has checks",
            do=did_you_mean(stem, known),
        )
    module = importlib.import_module(f"distlab.grading.lesson_{stem}")
    return tuple(module.CHECKS)


def all_checks() -> Iterator[Check]:
    """Every check of every lesson."""
    for module in lesson_modules():
        yield from checks_of(module.removeprefix("lesson_"))


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
        found="no check of that name",
        do=did_you_mean(str(name), names),
    )
