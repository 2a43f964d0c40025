"""Lessons 00 and 01: tries a call whose outcome a prediction asks for.

what_happens(lambda: answers * 10)       # its result, or the error that it raised
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def what_happens(call: Callable[[], Any]) -> Any:
    """Returns what a call returns, or the error that it raises.

    A cell with `try` would give away that an error comes.
    """
    try:
        return call()
    except Exception as error:
        return error
