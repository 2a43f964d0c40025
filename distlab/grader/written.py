"""Takes out of a notebook what a learner wrote for the reports of an exercise.

    for one in find_written(notebook.cells, reports_of(stem), handed_out=handed_out(stem)):
        one.text, one.pictures            # "" where nothing was written

A report's text is the markdown cell with the first line `<!-- report: NAME -->`, and its pictures
are those that the code cell with the first line `# report: NAME` has among its saved outputs. They
are taken as they were saved: nothing is run.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distlab.course import course_root
from distlab.errors import InvalidArgument
from distlab.grader.opening import open_notebook, source_of, text_of
from distlab.grader.pixels import MOST_BYTES, only_pixels
from distlab.grading.written import WrittenReport

_TEXT = re.compile(r"\s*<!--\s*report:\s*(\w+)\s*-->[ \t]*\n?")
_PICTURE = re.compile(r"\s*#\s*report:\s*(\w+)\s*$", re.MULTILINE)
_MOST_LETTERS = 20_000
_MOST_PICTURES = 4
_LONGEST = 2 * MOST_BYTES  # of base64, line ends included; what is cut off is broken

Cells = Sequence[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Written:
    """What a learner handed in for one report.

    Attributes:
        report: The report's name.
        text: What the learner wrote, with the questions; "" where nothing was added to them.
        pictures: PNG files in base64, made anew by `only_pixels`.
        notes: What is not shown, and why.
    """

    report: str
    text: str = ""
    pictures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def find_written(
    cells: Cells, reports: Iterable[WrittenReport], *, handed_out: Mapping[str, str]
) -> tuple[Written, ...]:
    """Returns what a learner handed in for each report.

    Args:
        cells: All cells of the notebook.
        reports: The reports of its exercise.
        handed_out: The text that the exercise has in the place of each.
    """
    return tuple(
        _written(cells, report.name, handed_out.get(report.name, "")) for report in reports
    )


def handed_out(stem: str) -> dict[str, str]:
    """Returns the texts that an exercise has where reports are to be written, by report.

    Args:
        stem: Of the lesson.
    """
    try:
        cells = open_notebook(course_root() / "exercises" / f"{stem}.ipynb").cells
    except (InvalidArgument, OSError):  # a clone in which no notebook was built
        return {}
    return {name: text for cell in cells for name, text in _text_of(cell)}


def _written(cells: Cells, name: str, handed_out: str) -> Written:
    texts = [text.strip() for cell in cells for found, text in _text_of(cell) if found == name]
    text, notes = "\n\n".join(dict.fromkeys(texts)), []
    if not texts:
        notes.append(f"No cell begins with the line '<!-- report: {name} -->'.")
    if _lines(text) <= _lines(handed_out):
        text = ""
    if len(text) > _MOST_LETTERS:
        text = text[:_MOST_LETTERS]
        notes.append(f"Only the first {_MOST_LETTERS:,} letters are shown.")
    saved = [one for cell in cells if _picture_of(cell) == name for one in _pictures(cell)]
    pictures = [picture for picture, _ in saved if picture]
    notes += [why_not for _, why_not in saved if why_not]
    if len(pictures) > _MOST_PICTURES:
        notes.append(f"Of {len(pictures)} pictures the first {_MOST_PICTURES} are shown.")
    if not saved:
        notes.append(f"The cell '# report: {name}' has no picture among its saved outputs.")
    return Written(
        report=name,
        text=text,
        pictures=tuple(pictures[:_MOST_PICTURES]),
        notes=tuple(dict.fromkeys(notes)),
    )


def _text_of(cell: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the name of the report that a cell is the text of, and the text below its marker."""
    source = source_of(cell, "markdown")
    if marker := _TEXT.match(source):
        yield marker[1], source[marker.end() :]


def _picture_of(cell: dict[str, Any]) -> str:
    marker = _PICTURE.match(source_of(cell, "code"))
    return marker[1] if marker else ""


def _lines(text: str) -> set[str]:
    return {line.strip() for line in text.splitlines() if line.strip()}


def _pictures(cell: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields of each picture that a cell has saved the file in base64, or why it is not shown."""
    outputs = cell.get("outputs")
    for output in outputs if isinstance(outputs, list) else ():
        data = output.get("data") if isinstance(output, dict) else None
        if not isinstance(data, dict):
            continue
        if "image/png" in data:
            try:
                file = base64.b64decode(text_of(data["image/png"])[:_LONGEST])
                yield base64.b64encode(only_pixels(file)).decode(), ""
            except ValueError as problem:
                found = problem.found if isinstance(problem, InvalidArgument) else "no base64"
                yield "", f"A picture is not shown: {found}."
        elif others := sorted(str(kind)[:50] for kind in data if kind != "text/plain"):
            yield "", f"An output ({', '.join(others)}) is not shown: only PNG pictures are."
