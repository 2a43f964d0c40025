"""Renders Markdown as HTML in which every text is escaped: no link, picture or tag gets in.

to_html("**1.** It is `float16`.")        # '<p><strong>1.</strong> It is <code>...'
written_html(text, handed_out=lines)      # a report: answers in full, questions folded
section_html(section)                     # what a lesson's notebook has below a heading
"""

from __future__ import annotations

import functools
import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Set
from html import escape
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from distlab.course.checks.help_steps import Section
from distlab.shipped import shipped_root

_LONGEST_SUMMARY = 80
_NOTHING = '<p class="quiet">Nothing is written here.</p>'
_HEADING = re.compile(r"(#{1,6}) (.*)")
_TAG = re.compile(r"</?(?:details|summary)>")
_PREDICTION = {"predict", "reveal"}  # tags of cells whose code is not for reading


@functools.cache
def _markdown() -> MarkdownIt:
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    return markdown.disable(["link", "image", "autolink", "reference"])


def to_html(text: str) -> str:
    """Returns the HTML of a Markdown text; its headings are below those of the page."""
    markdown = _markdown()
    tokens = markdown.parse(text)
    for token in tokens:
        if token.type.startswith("heading"):
            token.tag = "h4"
    html: str = markdown.renderer.render(tokens, markdown.options, {})
    return html.strip()


def blocks_of(text: str) -> list[str]:
    """Returns the blocks of a Markdown text, such as paragraphs, lists and fences."""
    lines = text.splitlines()
    tokens = _markdown().parse("\n".join(lines))
    places = [token.map for token in tokens if token.level == 0 and token.map]
    return ["\n".join(lines[first:end]).rstrip() for first, end in places]


def written_html(text: str, *, handed_out: Set[str]) -> str:
    """Returns the HTML of a report's text. Instructions of the exercise are left out."""
    parts: list[str] = []
    own: list[str] = []
    is_asked = False
    for block in blocks_of(text):
        if not {line.strip() for line in block.splitlines() if line.strip()} <= handed_out:
            own.append(block)
        elif "?" in block:
            parts += _answer(own, is_asked=is_asked)
            words = " ".join(block.replace("*", "").replace("`", "").split())
            short = escape(textwrap.shorten(words, _LONGEST_SUMMARY, placeholder=" ..."))
            parts.append(f"<details><summary>{short}</summary>{to_html(block)}</details>")
            own, is_asked = [], True
    parts += _answer(own, is_asked=is_asked)
    return "\n".join(parts)


def _answer(blocks: Iterable[str], *, is_asked: bool) -> list[str]:
    if text := "\n\n".join(blocks):
        return [f'<div class="written" dir="auto">{to_html(text)}</div>']
    return [_NOTHING] * is_asked


def section_html(section: Section) -> str:
    """Returns the HTML of a section; "" if the lesson has no such heading."""
    cells = _cells(shipped_root() / "notebooks" / f"{section.stem}.ipynb")
    return "\n".join(html for cell in _below(cells, section.heading) for html in _cell_html(*cell))


_LessonCell = tuple[str, str, tuple[dict[str, Any], ...]]


@functools.cache
def _cells(notebook: Path) -> tuple[_LessonCell, ...]:
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


def _below(cells: Iterable[_LessonCell], heading: str) -> Iterator[_LessonCell]:
    """Yields what is below a heading, down to the next one of its level."""
    level = 0
    for kind, source, outputs in cells:
        if kind != "markdown":
            if level:
                yield kind, source, outputs
            continue
        for block in blocks_of(source):  # a "#" in a fence is no heading
            title = _HEADING.fullmatch(block)
            if title and title[2].strip().replace("`", "") == heading:
                level = len(title[1])
            elif title and level and len(title[1]) <= level:
                return
            if level:
                yield kind, block, ()


def _cell_html(kind: str, source: str, outputs: Iterable[dict[str, Any]]) -> Iterator[str]:
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
