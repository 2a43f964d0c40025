r"""Marks the first value in which a learner's result differs from the expected one.

mark_difference("yours:    [3, 4]\nexpected: [3, 3]")     # HTML, with <mark> around 4 and 3
"""

from __future__ import annotations

import math
import re
from itertools import zip_longest

# A row of a report that compares values, and one value in it: lists are shown as in Python.
_COMPARED = re.compile(r"yours:    (.*)\nexpected: (.*?)(?=</pre>|\n)")
_VALUE = re.compile(r"[^\s,\[\](){}]+")
# The text keeps its colour, on light and on dark pages.
_MARK = '<mark style="background:#e0a80059;color:inherit;border-radius:3px;padding:0 0.2em">'


def mark_difference(html: str) -> str:
    """Returns the HTML of a report in which the first value that differs is marked."""
    return _COMPARED.sub(_marked, html)


def _marked(compared: re.Match[str]) -> str:
    yours, expected = compared.groups()
    for own, wanted in zip_longest(_VALUE.finditer(yours), _VALUE.finditer(expected)):
        if own is None or wanted is None or not _is_same(own[0], wanted[0]):
            return f"yours:    {_with_mark(own, yours)}\nexpected: {_with_mark(wanted, expected)}"
    return compared[0]


def _with_mark(value: re.Match[str] | None, line: str) -> str:
    if value is None:
        return line
    return f"{line[: value.start()]}{_MARK}{value[0]}</mark>{line[value.end() :]}"


def _is_same(yours: str, expected: str) -> bool:
    """Whether two shown values are the same; decimals may differ in what a check would forgive."""
    try:
        near = "." in expected and math.isclose(float(yours), float(expected), rel_tol=1e-4)
    except ValueError:
        near = False
    return near or yours == expected
