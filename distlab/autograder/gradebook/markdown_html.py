"""Renders Markdown as HTML in which every text is escaped: no link, no picture and no tag gets in.

    to_html("**1.** It is `float16`.")        # '<p><b>1.</b> It is <code>float16</code>.</p>'

It knows paragraphs, headings, lists, quotes, tables, fences, bold, italic and code. What it does
not know stays as it was written, so a reader loses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from html import escape

_FENCE = re.compile(r"^ {0,3}(```+|~~~+)")
_HEADING = re.compile(r"^ {0,3}#{1,6}\s(.*)$")
_ITEM = re.compile(r"^\s*(?:([-*+])|\d{1,9}[.)])\s+(.*)$")
_RULE = re.compile(r"^ {0,3}([-*_])(?:\s*\1){2,}\s*$")
_DASHES = re.compile(r"^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$")
# Whatever a learner writes, these take a time in proportion to it.
_CODE = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"!?\[([^\[\]]*)\]\(([^()]*)\)")
_BOLD = re.compile(r"\*\*([^*]+)\*\*|__([^_]+)__")
_ITALIC = re.compile(r"\*([^*\s](?:[^*]*[^*\s])?)\*|(?<!\w)_([^_\s](?:[^_]*[^_\s])?)_(?!\w)")

_ASIDE = "\x00"
_PUT_ASIDE = re.compile(f"{_ASIDE}(\\d+){_ASIDE}")


def to_html(text: str) -> str:
    """Returns the HTML of a Markdown text."""
    return "\n".join(_html_of(block) for block in blocks_of(text))


def blocks_of(text: str) -> list[str]:
    """Returns the blocks of a Markdown text: what is between blank lines, and fences as a whole."""
    blocks: list[list[str]] = [[]]
    fence = ""
    for line in text.splitlines():
        mark = _FENCE.match(line)
        if fence:
            blocks[-1].append(line)
            if mark and mark[1].startswith(fence):
                fence = ""
                blocks.append([])
        elif mark:
            fence = mark[1]
            blocks.append([line])
        elif not line.strip():
            blocks.append([])
        elif _HEADING.match(line):
            blocks += [[line], []]
        else:
            blocks[-1].append(line)
    return ["\n".join(lines) for lines in blocks if lines]


def _html_of(block: str) -> str:
    lines = block.split("\n")
    if _FENCE.match(lines[0]):
        closed = len(lines) > 1 and _FENCE.match(lines[-1])
        return f"<pre>{escape(chr(10).join(lines[1 : -1 if closed else None]))}</pre>"
    if heading := _HEADING.match(lines[0]):
        return f"<h4>{_inline(heading[1].strip().rstrip('#').strip())}</h4>"
    if len(lines) == 1 and _RULE.match(lines[0]):
        return "<hr>"
    if len(lines) > 1 and "|" in lines[0] and _DASHES.match(lines[1]):
        return _table([lines[0], *lines[2:]])
    if lines[0].lstrip().startswith(">"):
        inside = "\n".join(line.lstrip().removeprefix(">").lstrip() for line in lines)
        return f"<blockquote><p>{_inline(inside)}</p></blockquote>"
    if _ITEM.match(lines[0]):
        return _list(lines)
    first = next((at for at, line in enumerate(lines) if _ITEM.match(line)), 0)
    if first:  # a list right below its introduction
        return f"<p>{_inline(chr(10).join(lines[:first]))}</p>{_list(lines[first:])}"
    return f"<p>{_inline(block)}</p>"


def _list(lines: Iterable[str]) -> str:
    items: list[str] = []
    is_numbered = False
    for line in lines:
        if item := _ITEM.match(line):
            is_numbered = is_numbered or (not items and item[1] is None)
            items.append(item[2])
        else:
            items[-1] += "\n" + line.strip()
    tag = "ol" if is_numbered else "ul"
    return f"<{tag}>" + "".join(f"<li>{_inline(item)}</li>" for item in items) + f"</{tag}>"


def _table(lines: Iterable[str]) -> str:
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    kinds = ["th", *["td"] * len(rows)]
    return "<table>" + "".join(map(_table_row, kinds, rows)) + "</table>"


def _table_row(kind: str, cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{kind}>{_inline(cell)}</{kind}>" for cell in cells) + "</tr>"


def _inline(text: str) -> str:
    """A run of text: its code is put aside first, because nothing in code is Markdown."""
    code: list[str] = []

    def put_aside(found: re.Match[str]) -> str:
        code.append(found[1])
        return f"{_ASIDE}{len(code) - 1}{_ASIDE}"

    text = _CODE.sub(put_aside, text.replace(_ASIDE, ""))
    text = escape(_LINK.sub(_words_of_link, text), quote=False)
    text = _ITALIC.sub(_tagged("i"), _BOLD.sub(_tagged("b"), text))
    return _PUT_ASIDE.sub(lambda found: f"<code>{escape(code[int(found[1])])}</code>", text)


def _words_of_link(found: re.Match[str]) -> str:
    target = found[2].partition(" ")[0]
    is_web = target.startswith(("https://", "http://"))
    return f"{found[1]} ({target})" if is_web and found[1] != target else found[1]


def _tagged(tag: str) -> Callable[[re.Match[str]], str]:
    return lambda found: f"<{tag}>{found[1] or found[2]}</{tag}>"
