"""Shows tracebacks and AutoGraph the source of code that no file has, such as a notebook's cell."""

from __future__ import annotations

import linecache
from collections.abc import Mapping, Sequence


def keep_lines(sources: Mapping[str, Sequence[str]]) -> None:
    """Lets Python's `linecache` have the lines of some code."""
    for name, lines in sources.items():
        linecache.cache[name] = (sum(map(len, lines)), None, list(lines), name)
