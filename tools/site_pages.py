"""Puts the pages of the site into a folder, for Sphinx: `make docs` runs it.

    python tools/site_pages.py build/docs

The folder gets docs/, notebooks/ and exercises/ from the Makefile. This adds the first page and the
project's own pages at the top, lists all pages in the order of the course, and makes the notebooks
answer without a kernel (`site_notebooks.py`).
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from site_notebooks import rewrite

from distlab.course.course_map import read_map

ROOT = Path(__file__).resolve().parent.parent
_SHOWN_BY = re.compile(r"^- \*\*Shown by:.*\n(  .*\n)*", re.MULTILINE)
PROJECT = ("CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md")


def lay_pages(folder: Path) -> None:
    """Adds what the Makefile did not copy."""
    first = folder / "docs" / "index.md"
    text = first.read_text(encoding="utf-8")
    first.unlink()
    for name in PROJECT:
        shutil.copyfile(ROOT / name, folder / name)
    pitfalls = folder / "docs" / "pitfalls.md"  # the tests that show them are for the repository
    pitfalls.write_text(_SHOWN_BY.sub("", pitfalls.read_text(encoding="utf-8")), encoding="utf-8")
    for notebook in sorted(folder.glob("*/??_*.ipynb")):
        rewrite(notebook)
    (folder / "index.md").write_text(f"{text}\n{_order(folder)}", encoding="utf-8")


def _order(folder: Path) -> str:
    """Returns the hidden list of all pages, which gives "previous" and "next" their order."""
    sys.path.insert(0, str(ROOT / "docs"))
    from course_sidebar import SECTIONS

    course = [path for entry in read_map(ROOT) for path in (entry.lesson, entry.exercise)]
    pages = [path.removesuffix(".ipynb") for path in course if path]
    pages += [page for section in SECTIONS.values() for page in section]
    there = [page for page in pages if list(folder.glob(f"{page}.*"))]
    return "\n".join(["```{toctree}", ":hidden:", "", *there, "```", ""])


if __name__ == "__main__":
    lay_pages(Path(sys.argv[1]))
