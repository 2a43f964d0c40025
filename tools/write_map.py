"""Writes the course's map into README.md and into the first page of the site.

python tools/write_map.py             # `make map`; the notebooks say how many minutes
"""

from __future__ import annotations

import re
from pathlib import Path

from distlab.course.course_map import map_table, read_map, total_minutes

ROOT = Path(__file__).resolve().parent.parent
PAGES = (ROOT / "README.md", ROOT / "docs" / "index.md")
BEGIN, END = "<!-- map of the course -->", "<!-- end of the map -->"


def with_map(text: str) -> str:
    """Returns a page's text with the map as it is now."""
    entries = read_map(ROOT)
    here = sum(bool(entry.lesson) for entry in entries)
    lessons, exercises = (_in_hours(minutes) for minutes in total_minutes(entries))
    coming = len(entries) - here
    counted = f"{here} lessons."
    if coming:
        counted = f"{here} lessons are here, and {coming} {'is' if coming == 1 else 'are'} coming."
    part = (
        f"{BEGIN}\n{counted} The notebooks estimate about {lessons} hours for the lessons and "
        f"{exercises} hours for the exercises; no class has been timed yet.\n\n"
        f"{map_table(entries)}\n{END}"
    )
    pattern = f"{re.escape(BEGIN)}.*?{re.escape(END)}"
    found, count = re.subn(pattern, lambda _: part, text, flags=re.DOTALL)
    if count != 1:
        raise ValueError(
            f"a page must have the marks {BEGIN} and {END} once; they are there {count} times"
        )
    return found


def _in_hours(minutes: int) -> str:
    """Returns hours to the half, as "4.5"."""
    return f"{round(minutes / 30) / 2:g}"


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(with_map(page.read_text(encoding="utf-8")), encoding="utf-8")
