"""Knows the code of a task as the exercise hands it out, so that an untouched stub is no answer.

    is_handed_out("scope", source, exercise)   # of the cell with the line `# task: scope`
    is_cell_of(exercise, source)               # of any cell
    is_untouched(find_check("scope"), make_model)

Code counts as untouched if it has the same syntax tree: comments and blank lines may differ.
"""

from __future__ import annotations

import ast
import functools
import json
import linecache
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distlab.course.checks.check import Check
from distlab.course.checks.registry import stem_of
from distlab.course.markup import TASK_LINE
from distlab.course.results.failures import unwrapped
from distlab.shipped import shipped_root


def is_untouched(check: Check, function: Callable[..., Any]) -> bool:
    """Returns whether a function is defined by the very cell that the exercise hands out."""
    code = getattr(unwrapped(function), "__code__", None)
    if code is None:
        return False
    stem = stem_of(check)
    return bool(stem) and is_handed_out(
        check.name, "".join(linecache.getlines(code.co_filename)), exercise_of(stem)
    )


def exercise_of(stem: str) -> Path:
    """Returns where the exercise of a lesson is, as it is handed out."""
    return shipped_root() / "exercises" / f"{stem}.ipynb"


def is_handed_out(task: str, source: str, exercise: Path) -> bool:
    """Returns whether a cell has the code that the exercise has for a task."""
    handed_out = _handed_out_code(exercise).get(task, "")
    return bool(handed_out) and _tree(source) == handed_out


def is_cell_of(exercise: Path, source: str) -> bool:
    """Returns whether the exercise, as it is handed out, has a cell of this code."""
    return _tree(source) in {_tree(own) for own in _sources(exercise)}


@functools.cache
def _handed_out_code(exercise: Path) -> dict[str, str]:
    """The syntax tree of each task's cell, by the name of the task."""
    sources = _sources(exercise)
    return {name: _tree(source) for source in sources for name in TASK_LINE.findall(source)}


@functools.cache
def _sources(exercise: Path) -> tuple[str, ...]:
    """The code of each cell."""
    try:
        cells = json.loads(exercise.read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError, KeyError, TypeError):  # as in a clone without notebooks
        return ()
    return tuple("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


@functools.lru_cache(maxsize=256)
def _tree(source: str) -> str:
    try:
        return ast.dump(ast.parse(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
