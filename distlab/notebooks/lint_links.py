"""Rule for links and images: what a notebook points to is there, also in a learner's copy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from distlab.course import FOLDERS, PAGES
from distlab.notebooks.notebook_text import Finding, anchors_of, links_of
from distlab.notebooks.source import EDITIONS, Edition

if TYPE_CHECKING:
    from nbformat import NotebookNode

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")


def links_resolve(notebook: NotebookNode, *, edition: Edition, root: Path) -> list[Finding]:
    """Relative links lead to a file, '#' links to a heading; web addresses are not visited."""
    found = []
    for number, target in links_of(notebook):
        message = _problem(notebook, unquote(target), edition, root.resolve())
        if message:
            found.append(Finding(number, f"link {target!r} {message}"))
    return found


def _problem(notebook: NotebookNode, target: str, edition: Edition, root: Path) -> str:
    if _SCHEME.match(target):
        local = target.lower().startswith(("file:", "attachment:"))
        return "is no web address and no path" if local else ""
    if target.startswith("/"):
        return "is absolute; write it from the notebook's own folder"
    path, _, anchor = target.partition("#")
    if not path:
        known = anchors_of(notebook)
    else:
        there = (root / EDITIONS[edition][0] / path).resolve()
        # A solution is read in the repository, where everything is.
        # `distlab lab` lays these folders and pages, and nothing else, into a learner's copy.
        laid = [root] if edition == "solution" else [root / name for name in (*FOLDERS, *PAGES)]
        if not any(there.is_relative_to(place) for place in laid):
            return "leaves notebooks/, exercises/ and the pages that a learner's copy has"
        if not there.exists():
            return "leads nowhere"
        if not anchor or there.suffix not in (".ipynb", ".md"):
            return ""
        is_page = there.suffix == ".md"
        known = _anchors_of_page(there) if is_page else anchors_of(_read(there))
    if anchor and anchor not in known:
        return f"names no heading; they are written as {sorted(known)[:3]}"
    return "" if anchor or path else "is empty"


def _anchors_of_page(page: Path) -> set[str]:
    """Returns the anchors of a Markdown page, as GitHub and the site make them of its headings."""
    headings = re.findall(r"^#+ +(.+?) *$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _read(path: Path) -> NotebookNode:
    import nbformat

    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call,no-any-return]
