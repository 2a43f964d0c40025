"""A Sphinx extension: the cells of measured tables have a tint for what their words say."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes

# The class of a cell, by its words.
VERDICTS = {
    r"equal": "is-equal",
    r"(weights \w+, log )?off by \S+|differs|weights right, log wrong": "is-off",
    r"(stops|crashes): .+": "is-stopped",
    r"named error": "is-refused",
}


def _add_classes(app: Any, doctree: nodes.document) -> None:
    for cell in doctree.findall(nodes.entry):
        words = cell.astext()
        cell["classes"] += [name for says, name in VERDICTS.items() if re.fullmatch(says, words)]


def setup(app: Any) -> dict[str, bool]:
    """Adds the classes when a page has been read."""
    app.connect("doctree-read", _add_classes)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
