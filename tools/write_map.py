"""Writes the course's map into README.md and into the first page of the site.

python tools/write_map.py             # writes; the notebooks say how many minutes
python tools/write_map.py --check     # ends with 1 if a page has an older map
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = (ROOT / "README.md", ROOT / "docs" / "index.md")
BEGIN, END = "<!-- map of the course -->", "<!-- end of the map -->"


def with_map(text: str) -> str:
    """Returns a page's text with the map as it is now.

    Args:
        text: The page, with both marks.
    """
    from distlab.course_map import map_table, read_map, total_minutes

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


def main(argv: list[str]) -> int:
    """Writes or compares. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args(argv)
    old = [page for page in PAGES if with_map(_read(page)) != _read(page)]
    for page in old:
        if options.check:
            print(f"{page.relative_to(ROOT)} has an older map: python tools/write_map.py")
        else:
            page.write_text(with_map(_read(page)), encoding="utf-8")
    return int(options.check and bool(old))


def _in_hours(minutes: int) -> str:
    """Returns hours to the half, as "4.5"."""
    return f"{round(minutes / 30) / 2:g}"


def _read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
