"""Extracts from a notebook what a learner wrote for the reports of an exercise.

    for written in find_written(notebook.cells, reports_of(stem), handed_out=lines):
        written.text, written.pictures            # "" if nothing was written

A report's text is the markdown cell with the first line `<!-- report: NAME -->`, with cells that
the learner has put below it. Its pictures are those that the code cell with the first line
`# report: NAME` has among its saved outputs, taken as they were saved: nothing is run.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distlab.autograder.intake.notebook import open_notebook, source_of, text_of
from distlab.course.checks.rubric import WrittenReport
from distlab.errors import InvalidArgument

_TEXT = re.compile(r"\s*<!--\s*report:\s*(\w+)\s*-->[ \t]*\n?")
_PICTURE = re.compile(r"\s*#\s*report:\s*(\w+)\s*$", re.MULTILINE)
_MOST_LETTERS = 20_000
_MOST_PICTURES, _MOST_BYTES = 4, 5_000_000
_PNG = b"\x89PNG\r\n\x1a\n"

Cells = Sequence[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Written:
    """A learner's text and pictures for one report."""

    report: str
    text: str = ""  # with the questions; "" if nothing was added to them
    pictures: tuple[str, ...] = ()  # PNG files in base64
    notes: tuple[str, ...] = ()  # what is not shown, and why
    is_marked: bool = True  # without its marker, the text cannot be found


def find_written(
    cells: Cells, reports: Iterable[WrittenReport], *, handed_out: Set[str]
) -> tuple[Written, ...]:
    """Returns what a learner handed in for each report."""
    return tuple(_written(cells, report.name, handed_out) for report in reports)


def text_lines(notebook: Path) -> frozenset[str]:
    """Returns the lines of text of a notebook; none if there is no such one."""
    try:
        cells = open_notebook(notebook).cells
    except (InvalidArgument, OSError):  # as in a clone in which no notebook was built
        return frozenset()
    return frozenset(line for cell in cells for line in _lines(source_of(cell, "markdown")))


def _written(cells: Cells, name: str, handed_out: Set[str]) -> Written:
    texts = _texts(cells, name, handed_out)
    text, notes = "\n\n".join(dict.fromkeys(texts)), []
    if _lines(text) <= handed_out:
        text = ""
    if len(text) > _MOST_LETTERS:
        text = text[:_MOST_LETTERS]
        notes.append(f"Only the first {_MOST_LETTERS:,} letters are shown.")
    saved = [data for cell in cells if _picture_of(cell) == name for data in _saved(cell)]
    pictures = [picture for data in saved if (picture := _png(data))]
    if len(pictures) < len(saved) or len(pictures) > _MOST_PICTURES:
        notes.append(
            f"Of {len(saved)} pictures some are not shown: only {_MOST_PICTURES} PNG files of at "
            f"most {_MOST_BYTES:,} bytes are."
        )
    if not saved:
        notes.append(f"The cell '# report: {name}' has no picture among its saved outputs.")
    return Written(
        report=name,
        text=text,
        pictures=tuple(pictures[:_MOST_PICTURES]),
        notes=tuple(notes),
        is_marked=bool(texts),
    )


def _texts(cells: Cells, name: str, handed_out: Set[str]) -> list[str]:
    """Returns the texts of a report: of the marked cells, and of cells that were put below them."""
    texts: list[str] = []
    is_ours = False
    for cell in cells:
        source = source_of(cell, "markdown")
        marker = _TEXT.match(source)
        if marker or cell.get("cell_type") != "markdown":
            is_ours = marker is not None and marker[1] == name
        if is_ours and (marker or (handed_out and not _lines(source) <= handed_out)):
            texts.append(source[marker.end() if marker else 0 :].strip())
    return texts


def _picture_of(cell: dict[str, Any]) -> str:
    marker = _PICTURE.match(source_of(cell, "code"))
    return marker[1] if marker else ""


def _lines(text: str) -> set[str]:
    return {line.strip() for line in text.splitlines() if line.strip()}


def _saved(cell: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields what a cell has among its outputs beside text, by kind."""
    outputs = cell.get("outputs")
    for output in outputs if isinstance(outputs, list) else ():
        data = output.get("data") if isinstance(output, dict) else None
        if isinstance(data, dict) and data.keys() - {"text/plain"}:
            yield data


def _png(data: dict[str, Any]) -> str:
    """Returns a picture's file in base64; "" if it is no PNG that a page should hold."""
    try:
        file = base64.b64decode(text_of(data.get("image/png")))
    except ValueError:
        return ""
    is_shown = file.startswith(_PNG) and len(file) <= _MOST_BYTES
    return base64.b64encode(file).decode() if is_shown else ""
