"""Tracebacks of code that ran elsewhere: in a different process, or on a replica.

    packed = pack_error(error, function)      # there: plain, so that it can be sent
    raise_packed(packed, function)            # here, with the traceback of the learner's own lines

    with noted_stops() as stops:
        try: strategy.run(step)               # in which an all-reduce fails
        except Exception as error: frames_below(error, stops)     # those of replica 0

`distlab.course.results.failures` then finds the learner's own lines, as if the function had run
here. What goes wrong where replicas meet is raised in the thread that holds them together, so none
of their own lines is in its traceback. The replicas, which wait, are each stopped by an error.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
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
        "text": ": ".join([*getattr(error, "__notes__", ()), str(error)]),
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


Frames = list[tuple[FrameType, int]]  # outermost first, each with its line

# Its function in which replicas meet; each replica itself is in another one, `run`.
_MODULE, _MEETS = "tensorflow.python.distribute.mirrored_run", "_call_for_each_replica"


@contextlib.contextmanager
def noted_stops() -> Iterator[list[Frames]]:
    """Gives a list that has, for each time that replica 0 is stopped meanwhile, its frames."""
    stops: list[Frames] = []
    mirrored_run: Any = sys.modules.get(_MODULE)
    if mirrored_run is None:  # nothing was distributed so far
        yield stops
        return
    plain: Any = mirrored_run._RequestedStop

    class Noted(plain):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            if getattr(threading.current_thread(), "replica_id", None) == 0:
                stops.append(list(traceback.walk_stack(sys._getframe(1)))[::-1])

    mirrored_run._RequestedStop = Noted
    try:
        yield stops
    finally:
        mirrored_run._RequestedStop = plain


def frames_below(error: BaseException, stops: list[Frames]) -> Frames:
    """Returns where replica 0 met the others, if that raised an error; else nothing.

    An error of a replica's own has its lines, and the others only happened to wait.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    names = [frame.f_code.co_name for frame in frames if frame.f_globals.get("__name__") == _MODULE]
    return stops[-1] if stops and names[-1:] == [_MEETS] else []
