"""Reads the text cells of a notebook: headings, links and anchors.

for heading in headings_of(notebook):
    print(heading.cell, heading.level, heading.text)
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it.token import Token
    from nbformat import NotebookNode

_HTML_TARGET = re.compile(r"""<(?:a|img)\b[^>]*?\b(?:href|src)\s*=\s*["']([^"']*)["']""", re.I)
_HTML_ANCHOR = re.compile(r"""<\w+\b[^>]*?\b(?:id|name)\s*=\s*["']([^"']+)["']""", re.I)


@dataclass(frozen=True)
class Finding:
    """One thing a notebook must not be."""

    cell: int | None
    message: str
    file: str = ""

    def __str__(self) -> str:
        places = [self.file, f"cell {self.cell}" if self.cell else "", self.message]
        return ": ".join(place for place in places if place)


@dataclass(frozen=True)
class Heading:
    """A heading of a text cell."""

    cell: int
    level: int
    text: str
    prose: str


def code_cells(notebook: NotebookNode) -> Iterator[tuple[int, NotebookNode]]:
    """Yields each code cell with its number, from 1."""
    for number, cell in enumerate(notebook.cells, 1):
        if cell.cell_type == "code":
            yield number, cell


def runs(cell: NotebookNode) -> bool:
    """Returns whether a build runs a cell: all code but what is tagged to be skipped."""
    return cell.cell_type == "code" and "nbval-skip" not in tags_of(cell)


def unexpected_errors(cell: NotebookNode) -> list[NotebookNode]:
    """Returns the exceptions that a code cell ended in and is not tagged to raise."""
    if {"raises-exception", "nbval-raises-exception"} & set(tags_of(cell)):
        return []
    return [output for output in cell.outputs if output.output_type == "error"]


def tags_of(cell: NotebookNode) -> list[str]:
    """Returns a cell's tags."""
    return list(cell.metadata.get("tags", []))


def plain_python(source: str) -> str:
    """Returns a code cell's source with an empty line for each that only IPython understands."""
    return "\n".join("" if line.startswith(("%", "!")) else line for line in source.splitlines())


def headings_of(notebook: NotebookNode) -> list[Heading]:
    """Returns all headings, in order; a '#' inside a code fence is none."""
    anchors = []
    for number, tokens in _parsed(notebook):
        for opening, inline in pairwise(tokens):
            if opening.type == "heading_open":
                parts = inline.children or []
                texts = [part for part in parts if part.type in ("text", "code_inline")]
                text = "".join(part.content for part in texts)
                prose = "".join("`" if p.type == "code_inline" else p.content for p in texts)
                anchors.append(Heading(number, int(opening.tag[1]), text, prose))
    return anchors


def links_of(notebook: NotebookNode) -> list[tuple[int, str]]:
    """Returns the target of each link and image, with the number of its cell."""
    links = []
    for number, tokens in _parsed(notebook):
        for token in _flat(tokens):
            target = token.attrGet("href" if token.type == "link_open" else "src")
            if target is not None:
                links.append((number, str(target)))
            if token.type in ("html_inline", "html_block"):
                links += [(number, target) for target in _HTML_TARGET.findall(token.content)]
    return links


def anchors_of(notebook: NotebookNode) -> set[str]:
    """Returns what a link's '#...' may name: headings, as Jupyter writes them, and HTML ids."""
    anchors = {heading.text.replace(" ", "-") for heading in headings_of(notebook)}
    for _, tokens in _parsed(notebook):
        for token in _flat(tokens):
            if token.type in ("html_inline", "html_block"):
                anchors.update(_HTML_ANCHOR.findall(token.content))
    return anchors


def _parsed(notebook: NotebookNode) -> Iterator[tuple[int, list[Token]]]:
    for number, cell in enumerate(notebook.cells, 1):
        if cell.cell_type == "markdown":
            yield number, _tokens_of(cell.source)


@functools.cache
def _tokens_of(text: str) -> list[Token]:
    """Returns parsed Markdown, cached for each rule of the lint and each link: do not modify it."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark")
    # By default it takes 'file:' links for plain text, and the lint would never see them.
    parser.validateLink = lambda url: True  # type: ignore[method-assign]
    return parser.parse(text)


def _flat(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _flat(token.children or [])
