"""Recognises which exercise a notebook is, by what the course has written into its cells.

    lessons = recognised(notebook.cells, exercises)     # {} of a notebook of another course
    doubles_in(submissions, exercises)                  # names with two notebooks of an exercise

A function's name is no such mark: `train`, `save` or `split` are in notebooks of other courses.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from distlab.autograder.intake.exercises import Exercises
from distlab.autograder.intake.notebook import MOST_BYTES, source_of
from distlab.autograder.intake.submissions import Person, Submission
from distlab.course.checks.check import Check
from distlab.course.markup import TASK_LINE

_CHECKED = re.compile(r"\bcheck\(\s*['\"](\w+)['\"]")
_TASK_IN_FILE = re.compile(rb"# task: (\w+)")  # as JSON has the line
_KINDS = ("code", "markdown", "raw")


def recognised(
    cells: Sequence[Mapping[str, Any]], exercises: Exercises
) -> dict[str, Sequence[Check]]:
    """Returns the checks of each exercise that a notebook's cells have marks of.

    Marks are `# task: NAME`, `check("NAME")`, nbgrader's names of cells, and the title.
    """
    sources = [source_of(dict(cell), kind) for cell in cells for kind in _KINDS]
    tasks = {name for source in sources for name in TASK_LINE.findall(source)}
    tasks |= {name for source in sources for name in _CHECKED.findall(source)}
    tasks |= {_grade_id(cell).removesuffix("-check") for cell in cells}
    known: dict[str, Sequence[Check]] = {
        stem: checks
        for stem, checks in exercises.checks.items()
        if tasks & {check.name for check in checks}
    }
    if known:
        return known
    lines = {line.strip() for source in sources for line in source.splitlines()}
    titled = (stem for stem, titles in exercises.titles.items() if titles & lines)
    return {stem: exercises.checks[stem] for stem in titled}


def doubles_in(
    submissions: Iterable[Submission], exercises: Exercises
) -> dict[Person, list[Submission]]:
    """Returns names with more than one notebook of an exercise, which may be several people.

    Where a platform numbers its learners, a name is one person's. Files are searched as they are,
    and not opened as notebooks.
    """
    stems = {c.name.encode(): stem for stem, checks in exercises.checks.items() for c in checks}
    own: dict[Person, list[Submission]] = defaultdict(list)
    for handed in submissions:
        if not handed.user:
            own[handed.person].append(handed)
    doubles: dict[Person, list[Submission]] = {}
    for person, all_of in own.items():
        same: dict[str, list[Submission]] = defaultdict(list)
        for handed in all_of if len(all_of) > 1 else ():
            if stem := _exercise_in(handed.path, stems):
                same[stem].append(handed)
        if more := [handed for group in same.values() if len(group) > 1 for handed in group]:
            doubles[person] = more
    return doubles


def _grade_id(cell: Mapping[str, Any]) -> str:
    """Returns nbgrader's name of a cell; "" if it has none."""
    with contextlib.suppress(KeyError, TypeError):
        return str(cell["metadata"]["nbgrader"]["grade_id"])
    return ""


def _exercise_in(path: Path, stems: Mapping[bytes, str]) -> str:
    """Returns the exercise with the most tasks in a file; "" if it has none."""
    with contextlib.suppress(OSError):
        if path.stat().st_size <= MOST_BYTES:
            tasks = set(_TASK_IN_FILE.findall(path.read_bytes()))
            counted = Counter(stems[task] for task in tasks if task in stems)
            return counted.most_common(1)[0][0] if counted else ""
    return ""
