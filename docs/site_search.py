"""A Sphinx extension: the search page finds sections, from a file as well as from a host.

It takes the place of Sphinx's own search, which finds pages, and fetches each one for its words. Of
each section the index has the words that a reader sees at first, so it gives no answer away.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from bs4 import BeautifulSoup

SECTIONS = "section[id], dl.py:not(dl.py dl.py)"  # in the reference, each name is one
LEFT_OUT = ".said, .reveal, .after-reveal, .tag_after-reveal, .headerlink, script, style, svg"
_index: dict[str, list[Any]] = {}


def sections(body: str) -> Iterator[tuple[str, str, str]]:
    """Yields the place, the title and the words of each section of a page, the last one first.

    Args:
        body: The page's HTML.
    """
    page = BeautifulSoup(body, "html.parser")
    for part in page.select(LEFT_OUT):
        part.decompose()
    for section in reversed(page.select(SECTIONS)):
        section.extract()  # so that the section around it has its own words only
        title = section.find(["h1", "h2", "h3", "h4", "dt"]).extract()
        yield section.get("id") or title["id"], _words(title), _words(section)


def _words(part: Any) -> str:
    return " ".join(part.get_text().split())


def _add(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    if doctree:
        found = list(sections(context["body"]))[::-1]
        _index[app.builder.get_target_uri(page)] = found


def _write(app: Any, exception: Exception | None) -> None:
    if not exception:
        text = json.dumps(_index, ensure_ascii=False, separators=(",", ":"))
        script = app.outdir / "_static" / "sections.js"
        script.write_text(f"const SECTIONS = {text};\n", encoding="utf-8")


def _replace(app: Any) -> None:
    app.builder.search = False
    _index.clear()


def setup(app: Any) -> dict[str, bool]:
    """Collects each page's sections, and writes the index when all pages are written."""
    app.connect("builder-inited", _replace)
    app.connect("html-page-context", _add)
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": False}
