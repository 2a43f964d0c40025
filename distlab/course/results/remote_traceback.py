"""Raises an error from a different process here, with the traceback of the learner's own lines.

    packed = pack_error(error, function)      # there: plain, so that it can be sent
    raise_packed(packed, function)            # here

`distlab.course.results.failures` then finds the learner's own lines in the traceback, as if the
function had run in this process.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from distlab.course.results.failures import home_of
from distlab.errors import InvalidArgument

PackedError = dict[str, Any]
_GENERATED = "__autograph_generated_file"


def pack_error(error: BaseException, function: Callable[..., Any]) -> PackedError:
    """Returns what is to be known of an error, as JSON can carry it."""
    home = home_of(function)
    frames = list(traceback.walk_tb(error.__traceback__))
    own = [
        (frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in frames
        if frame.f_globals is home and _GENERATED not in frame.f_code.co_filename
    ]
    packed: PackedError = {
        "error": type(error).__name__,
        "text": str(error),
        "lines": own,
        "raised_there": bool(own) and frames[-1][0].f_globals is home,
    }
    if isinstance(error, InvalidArgument):
        packed["parts"] = error.parts
    return packed


def pack_text(
    error: str, text: str, function: Callable[..., Any], *, line: tuple[str, int, str] | None = None
) -> PackedError:
    """Returns what `pack_error` would, of something that was no exception there."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if line is None and code is not None:
        line = (code.co_filename, code.co_firstlineno, code.co_name)
    return {"error": error, "text": text, "lines": [line] if line else [], "raised_there": False}


def raise_packed(packed: PackedError, function: Callable[..., Any]) -> NoReturn:
    """Raises an error as it was packed."""
    error, home = _error(packed), home_of(function)

    def deepest() -> None:
        raise error

    then, statement = deepest, "then()"
    if packed["raised_there"]:
        then, statement = error, "raise then"  # type: ignore[assignment]
    for file, line, name in reversed(packed["lines"]):
        then = _frame(file, line, name, home=home, statement=statement, then=then)
        statement = "then()"
    then()
    raise AssertionError(packed)  # it raises


def _error(packed: PackedError) -> Exception:
    if parts := packed.get("parts"):
        return InvalidArgument(**parts)
    if packed["error"] == "NotImplementedError":  # what a stub raises is looked for by its type
        return NotImplementedError(packed["text"])
    kind: type[Exception] = type(packed["error"], (Exception,), {})
    return kind(packed["text"])


def _frame(
    file: str, line: int, name: str, *, home: dict[str, Any], statement: str, then: Any
) -> Callable[[], None]:
    """Returns a function whose call stands at a line of the learner's code in a traceback."""
    code = compile("\n" * (line - 1) + statement, file, "exec").replace(co_name=name)
    return lambda: exec(code, home, {"then": then})
