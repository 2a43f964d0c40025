"""The minutes and hours of docs/teaching.md, as notebooks and exercises have them.

    text = with_minutes(text, read_map(ROOT))

Everything else on the page is written by hand: needs, points, and which lessons make a week.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from distlab.course.course_map import MapEntry, in_minutes

# A lesson with three cells of its minutes at the end; a week or an evening with its lessons.
_LESSON = re.compile(r"(?m)^(\| (\d\d) [^|]+\|[^|]+\|[^|]+\|[^|]+\|)[^|\n]*\|[^|\n]*\|[^|\n]*\|$")
_GROUP = re.compile(r"(?m)^(\| (?:\d|first|second) \| ((?:\d\d, )*\d\d) \|)[^|\n]*\|[^|\n]*\|(.*)$")


def with_minutes(text: str, entries: Sequence[MapEntry]) -> str:
    """Returns the page's text with the minutes of its lessons, and the hours of groups of them."""
    known = {entry.number: entry for entry in entries}

    def of_lesson(row: re.Match[str]) -> str:
        entry = known[row[2]]
        lesson = in_minutes(entry.lesson_minutes).removesuffix("\u00a0min")
        cells = (lesson, entry.exercise_minutes or "", entry.extra_task_minutes or "")
        return f"{row[1]} {' | '.join(map(str, cells))} |".replace("|  |", "| |")

    def of_group(row: re.Match[str]) -> str:
        group = [known[number] for number in row[2].split(", ")]
        lessons = sum((entry.lesson_minutes or (0, 0))[1] for entry in group)
        tasks = sum(entry.exercise_minutes or 0 for entry in group)
        return f"{row[1]} {_hours(lessons)} | {_hours(tasks)} |{row[3]}"

    return _GROUP.sub(of_group, _LESSON.sub(of_lesson, text))


def _hours(minutes: int) -> str:
    return f"{round(minutes / 60, 1):g}"
