"""Writes what comes from code or tables: the course's map, two cards and two pictures.

python tools/write_tables.py             # `make map`, after `make notebooks`: it counts minutes
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from distlab.course.course_map import MapEntry, map_table, read_map, short_paths, total_minutes
from distlab.course.lesson_21_choosing_a_strategy.strategy_card import card_table, order_table
from tools import fit_questions, teaching_page
from tools.page_pictures import pictures

ROOT = Path(__file__).resolve().parent.parent
INDEX = ROOT / "docs" / "index.md"
WITH_MAP = (ROOT / "README.md", INDEX)
TEACHING = ROOT / "docs" / "teaching.md"
WITH_CARD = ROOT / "docs" / "decision_card.md"


def with_map(text: str) -> str:
    """Returns a page's text with the map as it is now."""
    entries = read_map(ROOT)
    available = sum(bool(entry.lesson) for entry in entries)
    coming = len(entries) - available
    counted = f"{available} lessons."
    if coming:
        verb = "is" if coming == 1 else "are"
        counted = f"{available} lessons are here, and {coming} {verb} coming."
    return replace_between(
        ("<!-- map of the course -->\n", "\n<!-- end of the map -->"),
        f"{counted} {hours_in_words(entries)}\n\n{map_table(entries)}",
        text,
    )


def hours_in_words(entries: Sequence[MapEntry]) -> str:
    """Returns the sentences on how long all lessons and their exercises take."""
    total = total_minutes(entries)
    low, high, tasks, extra = (
        f"{round(minutes / 30) / 2:g}"
        for minutes in (*total.lessons, total.tasks, total.extra_tasks)
    )
    return (
        f"By their words and lines of code they take {low} to {high} hours, the second number with "
        f"all folds open. We estimate {tasks} hours for the exercises' core tasks and {extra} for "
        "their extra ones; no class has been timed yet."
    )


def with_lessons(text: str) -> str:
    """Returns the text of the page for teachers with the lessons as they are now."""
    entries = read_map(ROOT)
    text = teaching_page.with_minutes(text, entries)
    marks = ("<!-- hours of the course -->\n\n", "\n\n<!-- end of the hours -->")
    hours = f"{sum(bool(entry.lesson) for entry in entries)} lessons. {hours_in_words(entries)}"
    return with_short_paths(replace_between(marks, hours, text), root="../")


def with_short_paths(text: str, *, root: str) -> str:
    """Returns a page's text with the three lessons of each kind of reader; `root` is the clone."""
    marks = ("<!-- three lessons -->\n\n", "\n\n<!-- end of the three lessons -->")
    return replace_between(marks, short_paths(read_map(ROOT), root=root), text)


def with_card(text: str) -> str:
    """Returns the page's text with the card and the order as they are now."""
    for name, table in {"card": card_table(), "order": order_table()}.items():
        marks = (f"<!-- the {name} -->\n", f"\n<!-- end of the {name} -->")
        text = replace_between(marks, f"\n{table}\n", text)
    return text


def replace_between(marks: tuple[str, str], table: str, text: str) -> str:
    """Returns a page's text with something new between two marks."""
    begin, end = marks
    pattern = f"(?<={re.escape(begin)}).*?(?={re.escape(end)})"
    text, count = re.subn(pattern, lambda _: table, text, flags=re.DOTALL)
    if count != 1:
        raise ValueError(
            f"a page must have {begin.strip()} and {end.strip()} once, not {count} times"
        )
    return text


if __name__ == "__main__":
    for page in WITH_MAP:
        page.write_text(with_map(page.read_text(encoding="utf-8")), encoding="utf-8")
    first = with_short_paths(INDEX.read_text(encoding="utf-8"), root="")
    INDEX.write_text(first, encoding="utf-8")
    TEACHING.write_text(with_lessons(TEACHING.read_text(encoding="utf-8")), encoding="utf-8")
    WITH_CARD.write_text(with_card(WITH_CARD.read_text(encoding="utf-8")), encoding="utf-8")
    for path, picture in pictures().items():
        path.write_text(picture, encoding="utf-8")
    fit_questions.write_again()
