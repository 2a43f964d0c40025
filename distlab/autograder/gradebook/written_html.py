"""Shows what a learner wrote for a report: the answers in full, the questions folded.

written_html(reading.written.text, handed_out=lessons.handed_out(stem))
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Set
from html import escape

from distlab.autograder.gradebook.markdown_html import blocks_of, to_html

_LONGEST_SUMMARY = 80
_NOTHING = '<p class="quiet">Nothing is written here.</p>'


def written_html(text: str, *, handed_out: Set[str]) -> str:
    """Returns the HTML of a report's text. Instructions of the exercise are left out."""
    parts: list[str] = []
    own: list[str] = []
    is_asked = False
    for block in blocks_of(text):
        if not _lines(block) <= handed_out:
            own.append(block)
        elif "?" in block:
            parts += _answer(own, is_asked=is_asked)
            parts.append(_question(block))
            own, is_asked = [], True
    parts += _answer(own, is_asked=is_asked)
    return "\n".join(parts)


def _answer(blocks: Iterable[str], *, is_asked: bool) -> list[str]:
    if text := "\n\n".join(blocks):
        return [f'<div class="written" dir="auto">{to_html(text)}</div>']
    return [_NOTHING] * is_asked


def _question(block: str) -> str:
    words = " ".join(block.replace("*", "").replace("`", "").split())
    short = textwrap.shorten(words, _LONGEST_SUMMARY, placeholder=" ...")
    return f"<details><summary>{escape(short)}</summary>{to_html(block)}</details>"


def _lines(text: str) -> set[str]:
    return {line.strip() for line in text.splitlines() if line.strip()}
