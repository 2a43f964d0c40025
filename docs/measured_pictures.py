"""A Sphinx extension: the pictures of measured tables are a part of their page.

So they follow the page's theme, and each square or dot is a link to its row.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes

PICTURES = ("zoo.svg", "benchmarks.svg", "training_cost.svg")


def _put_in(app: Any, doctree: nodes.document) -> None:
    for image in list(doctree.findall(nodes.image)):
        if Path(image["uri"]).name in PICTURES:
            drawn = Path(doctree["source"]).parent / image["uri"]
            picture = drawn.read_text(encoding="utf-8")
            group = f'<figure role="group" aria-label="{escape(image["alt"])}">{picture}</figure>'
            image.parent.replace_self(nodes.raw("", group, format="html"))
            for row in doctree.findall(nodes.row):
                place = nodes.make_id(f"row {row[0].astext()}")
                if f'"#{place}"' in picture:
                    row["ids"].append(place)


def setup(app: Any) -> dict[str, bool]:
    """Replaces the images when a page has been read, before Sphinx collects what to copy."""
    app.connect("doctree-read", _put_in, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
