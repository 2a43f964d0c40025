"""Shows where a learner is in the course: the last result of each check.

    progress("my-lab")            # a table of the lessons; in a notebook a small picture of it
    distlab progress my-lab       # the same in a terminal

It reads the outputs that the notebooks in the folder were saved with, and it knows what was checked
in this kernel since. It runs nothing and writes nothing. If a task was answered several times, the
best answer counts. A report that a teacher reads is named, and is no open task.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from distlab.course.checks.check import Check
from distlab.course.checks.registry import checks_of, reports_of, stems
from distlab.course.checks.report import WORDINGS, Ending
from distlab.errors import InvalidArgument

# What a report shows first.
_HEADING = re.compile(
    r"^(?P<name>\w+): (?P<label>.+) \((?P<earned>\d+(?:\.\d+)?) of [\d.]+ points?\)"
)
# A stub that was checked is no answer.
_ANSWERED = {WORDINGS[ending].label for ending in Ending if ending.is_answered}
_BAR = 20
_GREEN = "#2e9e4f"
_kernel_results: dict[str, float] = {}


@dataclass(frozen=True, kw_only=True)
class LessonProgress:
    """How far a learner is in one exercise.

    Attributes:
        stem: The lesson's, as "09_multi_worker".
        checks: The names of its checks.
        passed: Those of them that are passed.
        tried: Those that were answered, passed or not.
        earned: Points.
        points: Points that can be earned.
        reports: The names of its reports, which a teacher reads; their points are not among these.
    """

    stem: str
    checks: tuple[str, ...]
    passed: tuple[str, ...]
    tried: tuple[str, ...]
    earned: float
    points: float
    reports: tuple[str, ...] = ()

    @property
    def next_task(self) -> str:
        """The first task that is not passed; "" if all are."""
        return next((name for name in self.checks if name not in self.passed), "")


@dataclass(frozen=True, repr=False)
class Progress:
    """How far a learner is in the course.

    Attributes:
        lessons: One for each exercise, in order.
    """

    lessons: tuple[LessonProgress, ...]

    def __repr__(self) -> str:
        width = max(len(lesson.stem) for lesson in self.lessons)
        lines = []
        for lesson in self.lessons:
            full = round(_BAR * _share(lesson))
            bar = "#" * full + "." * (_BAR - full)
            lines.append(f"{lesson.stem:<{width}}  {bar}  {_in_words(lesson)}")
        return "\n".join([*lines, "", self._total()])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td style='text-align:left'>{escape(lesson.stem)}</td>"
            "<td><div style='width:10em;height:0.8em;border:1px solid currentColor'>"
            f"<div style='width:{100 * _share(lesson):.0f}%;height:100%;background:{_GREEN}'></div>"
            f"</div></td><td style='text-align:left'>{escape(_in_words(lesson))}</td></tr>"
            for lesson in self.lessons
        )
        return f"<table>{rows}</table><div>{escape(self._total())}</div>"

    def _total(self) -> str:
        passed = sum(len(lesson.passed) for lesson in self.lessons)
        tasks = sum(len(lesson.checks) for lesson in self.lessons)
        earned = sum(lesson.earned for lesson in self.lessons)
        points = sum(lesson.points for lesson in self.lessons)
        return f"{passed} of {tasks} tasks passed, {earned:g} of {points:g} points"


def progress(folder: str | os.PathLike[str] = ".") -> Progress:
    """Returns how far a learner is.

    Args:
        folder: With their notebooks, at whatever depth; in a notebook, its own by default.

    Raises:
        InvalidArgument: There is no such folder, or it has no notebooks.
    """
    root = Path(folder)
    notebooks = list(_notebooks(root))
    if not notebooks:
        found = "no notebooks there" if root.is_dir() else "no folder of that name"
        raise InvalidArgument(
            asked=f"progress({str(folder)!r})",
            found="a file" if root.is_file() else found,
            do="name the folder that holds your notebooks, as you gave it to `distlab lab`",
        )
    best: dict[str, float] = {}
    saved = (item for path in notebooks for item in _saved_results(path))
    for name, earned in (*saved, *_kernel_results.items()):
        best[name] = max(earned, best.get(name, 0.0))
    return Progress(tuple(_lesson(stem, checks_of(stem), best) for stem in stems()))


def note_result(name: str, earned: float) -> None:
    """Keeps the best result of a check that ran in this kernel."""
    _kernel_results[name] = max(earned, _kernel_results.get(name, 0.0))


def _lesson(stem: str, checks: tuple[Check, ...], best: dict[str, float]) -> LessonProgress:
    return LessonProgress(
        stem=stem,
        checks=tuple(check.name for check in checks),
        passed=tuple(check.name for check in checks if best.get(check.name, -1.0) >= check.points),
        tried=tuple(check.name for check in checks if check.name in best),
        earned=sum(min(best.get(check.name, 0.0), check.points) for check in checks),
        points=sum(check.points for check in checks),
        reports=tuple(report.name for report in reports_of(stem)),
    )


def _share(lesson: LessonProgress) -> float:
    return lesson.earned / lesson.points


def _in_words(lesson: LessonProgress) -> str:
    plural = "s" * (len(lesson.reports) > 1)
    read = f"; report{plural}, read by a teacher: {', '.join(lesson.reports)}"
    return _of_tasks(lesson) + (read if lesson.reports else "")


def _of_tasks(lesson: LessonProgress) -> str:
    if not lesson.tried:
        return "not started"
    if not lesson.next_task:
        return "all passed"
    return f"{len(lesson.passed)} of {len(lesson.checks)} passed; next: {lesson.next_task}"


def _notebooks(root: Path) -> Iterator[Path]:
    for folder, below, files in os.walk(root):
        below[:] = sorted(name for name in below if not name.startswith("."))
        yield from (Path(folder, name) for name in sorted(files) if name.endswith(".ipynb"))


def _saved_results(path: Path) -> Iterator[tuple[str, float]]:
    """Yields the names of checks, and the points that a notebook's outputs show."""
    for output in saved_outputs(path):
        heading = _HEADING.match("".join(output["data"].get("text/plain", "")))
        if heading and heading["label"] in _ANSWERED:
            yield heading["name"], float(heading["earned"])


def saved_outputs(path: Path) -> Iterator[dict[str, Any]]:
    """Yields a notebook's results; of a file that is no notebook, nothing."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        yield from [out for cell in cells for out in cell.get("outputs", ()) if out.get("data")]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return
