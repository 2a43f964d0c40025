"""How long a lesson takes: from its words, its new lines of code and its predictions.

Folded text does not count, and neither does code that the course has shown before: no reader has
to read them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from distlab.course_map import read_map
from distlab.notebooks.notebook_text import Finding, code_cells, tags_of

if TYPE_CHECKING:
    from nbformat import NotebookNode

WORDS_A_MINUTE = 200
SECS_A_LINE = 20
MINUTES_A_PREDICTION = 1
_MOST_APART = 5  # minutes: lessons state round numbers

_FOLDED = re.compile(r"<details>.*?</details>", re.DOTALL)
_ADDRESS = re.compile(r"\]\([^)]*\)")
# Lines that ask for no thought: imports, comments, what only shows a result.
_PASSED_OVER = re.compile(r"#|import |from |%%|display\(|dl\.show\(|\W*$")


def lint_reading_time(root: Path) -> list[Finding]:
    """Returns the lessons whose stated minutes are far from what their text takes."""
    import nbformat

    found = []
    shown: set[str] = set()  # the lines of code of the lessons so far
    for entry in read_map(root):
        if not entry.lesson:
            continue
        notebook = nbformat.read(root / entry.lesson, as_version=4)  # type: ignore[no-untyped-call]
        minutes = minutes_of(notebook, shown=shown)
        stated = entry.lesson_minutes
        if stated is None or abs(stated - minutes) > _MOST_APART:
            message = f"states {stated} minutes; by its words, code and predictions {minutes:.0f}"
            found.append(Finding(None, message, entry.lesson))
    return found


def minutes_of(notebook: NotebookNode, *, shown: set[str]) -> float:
    """Returns the minutes that a lesson takes."""
    text = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    words = len(_ADDRESS.sub("]", _FOLDED.sub("", text)).split())
    predictions = sum("predict" in tags_of(cell) for _, cell in code_cells(notebook))
    lines = set(_lines_to_read(notebook)) - shown
    shown.update(lines)
    return (
        words / WORDS_A_MINUTE + len(lines) * SECS_A_LINE / 60 + predictions * MINUTES_A_PREDICTION
    )


def _lines_to_read(notebook: NotebookNode) -> Iterator[str]:
    for _, cell in code_cells(notebook):
        if not {"predict", "reveal", "hide-input"} & set(tags_of(cell)):
            lines = (line.partition("  #")[0].strip() for line in cell.source.splitlines())
            yield from (line for line in lines if not _PASSED_OVER.match(line))
