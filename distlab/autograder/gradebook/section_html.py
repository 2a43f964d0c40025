"""Copies a section of a lesson into a page of feedback, so that the page needs no other file.

    section_html(Section("00_start_here", "The trap: an ordinary tensor"))

Text, code, and outputs that are text or pictures are shown as the lesson's notebook has them. Of a
prediction only what it says is shown.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from distlab.autograder.gradebook.markdown_html import blocks_of, to_html
from distlab.checks.sections import Section
from distlab.course import course_root

_HEADING = re.compile(r"(#{1,6}) (.*)")
_TAG = re.compile(r"</?(?:details|summary)>")
_PREDICTION = {"predict", "reveal"}  # tags of cells whose code is not for reading


def section_html(section: Section) -> str:
    """Returns the HTML of a section; "" if the lesson has no such heading."""
    cells = _cells(course_root() / "notebooks" / f"{section.stem}.ipynb")
    return "\n".join(html for cell in _of_section(cells, section.heading) for html in _html(cell))


@functools.cache
def _cells(notebook: Path) -> tuple[tuple[str, str, tuple[dict[str, Any], ...]], ...]:
    """The cells of a notebook of ours: kind, source without a prediction's code, and outputs."""
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError, KeyError):  # as in a clone in which no notebook was built
        return ()
    return tuple(
        (cell["cell_type"], _source(cell), tuple(cell.get("outputs", ()))) for cell in cells
    )


def _source(cell: dict[str, Any]) -> str:
    is_prediction = _PREDICTION & set(cell.get("metadata", {}).get("tags", ()))
    return "" if is_prediction else "".join(cell["source"])


def _of_section(cells: Any, heading: str) -> Iterator[Any]:
    """Yields what is below a heading, down to the next one of its level."""
    level = 0
    for kind, source, outputs in cells:
        if kind != "markdown":
            if level:
                yield kind, source, outputs
            continue
        for block in blocks_of(source):  # a "#" in a fence is no heading
            found = _HEADING.fullmatch(block)
            if found and found[2].strip().replace("`", "") == heading:
                level = len(found[1])
            elif found and level and len(found[1]) <= level:
                return
            if level:
                yield kind, block, ()


def _html(cell: Any) -> Iterator[str]:
    kind, source, outputs = cell
    if kind == "markdown":
        yield to_html(_TAG.sub("", source))
        return
    if source:
        yield f"<pre>{escape(source)}</pre>"
    for output in outputs:
        data = output.get("data", {})
        text = "".join(output.get("text", "") or data.get("text/plain", ""))
        if "image/png" in data:
            picture = escape("".join(data["image/png"]).replace("\n", ""))
            yield f'<p><img alt="a figure of the lesson" src="data:image/png;base64,{picture}"></p>'
        elif text:
            yield f'<pre class="output">{escape(text)}</pre>'
