"""Describes an error in a learner's code by the learner's own lines.

    try: check.call(function, inputs)
    except Exception as error: failure = failure_of(error, function)

Our stack, TensorFlow's and addresses are left out: what remains can be read, and is the
same on every run.
"""

from __future__ import annotations

import inspect
import linecache
import re
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import CodeType, FrameType
from typing import Any


class FailureKind(StrEnum):
    """Why a call gave nothing to judge. The codes are stored, so a code never changes.

    Attributes:
        NOT_STARTED: A stub.
        ERROR: Code that raised.
        TIMED_OUT: Code that was stopped when its time was over.
        INTERRUPTED: Code that the learner stopped.
        UNUSABLE: An answer or a signature that the check cannot use.
    """

    NOT_STARTED = "not_started"
    ERROR = "error"
    TIMED_OUT = "timed_out"
    INTERRUPTED = "interrupted"
    UNUSABLE = "unusable"


_MOST_LINES = 4
_MOST_TEXT = 500
_OUR_FOLDER = str(Path(__file__).resolve().parents[2])
_GENERATED = "__autograph_generated_file"
# How AutoGraph writes a frame of converted code into the message of an error.
_AUTOGRAPH_FRAME = re.compile(r'File "(.+?)", line (\d+), in (\S+)[ *]*\n\s*(.*)\n?')


@dataclass(frozen=True)
class Failure:
    """Why a call gave nothing to judge."""

    kind: FailureKind
    error: str
    lines: tuple[str, ...] = ()


def failure_of(
    error: BaseException,
    function: Callable[..., Any],
    *,
    skip: CodeType | None = None,
    below: Iterable[tuple[FrameType, int]] = (),
) -> Failure:
    """Reads the traceback of an error raised by, or around, the learner's function."""
    home = home_of(function)
    frames = list(traceback.walk_tb(error.__traceback__))

    own = [(frame, number) for frame, number in frames if _is_own(frame, home, skip)]
    own_below = [(frame, number) for frame, number in below if _is_own(frame, home, skip)]
    lines = [_line(frame, number) for frame, number in (*own, *own_below)]
    raised_by_them = bool(own) and own[-1] == frames[-1]
    text = _text(error)
    if "in user code:" in text:  # AutoGraph keeps the frames in the message only
        inner = list(_AUTOGRAPH_FRAME.finditer(text))
        written = [match for match in inner if _GENERATED not in match[1]]
        own_frames = [match for match in written if not _is_library(match[1])]
        lines += [f"line {m[2]} in {m[3]}: {m[4].strip()}" for m in own_frames]
        raised_by_them = bool(own_frames) and own_frames[-1] is written[-1]
        if inner:
            text = textwrap.dedent(text[inner[-1].end() :]).strip()
            text = text.removeprefix(f"{type(error).__name__}: ")
    name = type(error).__name__
    shown = _tidy(f"{name}: {text}" if text else name)
    kept = tuple(_tidy(line) for line in dict.fromkeys(lines))[-_MOST_LINES:]
    # A library may raise NotImplementedError too; only the learner's own is a stub's.
    # A stub may also hold `...` where a value belongs, and then reckon with it.
    untouched = isinstance(error, NotImplementedError) or "'ellipsis'" in text
    if untouched and raised_by_them:
        return Failure(FailureKind.NOT_STARTED, shown, kept)
    return Failure(FailureKind.ERROR if lines else FailureKind.UNUSABLE, shown, kept)


def innermost_line(
    stack: Iterable[tuple[FrameType, int]],
    function: Callable[..., Any],
    *,
    skip: CodeType | None = None,
) -> str:
    """Returns the learner's first line in a stack, innermost first; "" if none of theirs runs."""
    home = home_of(function)
    lines = (_tidy(_line(*frame)) for frame in stack if _is_own(frame[0], home, skip))
    return next(lines, "")


def unwrapped(function: Any) -> Any:
    """Returns what decorators, partials and tf.functions wrap."""
    for _ in range(10):
        wrapped = next(
            (
                getattr(function, name)
                for name in ("python_function", "__wrapped__", "__func__", "func")
                if callable(getattr(function, name, None))
            ),
            None,
        )
        if wrapped is None:
            break
        function = wrapped
    return function


def home_of(function: Any) -> dict[str, Any]:
    """Returns the global names of the learner's function: those of its module or notebook."""
    function = unwrapped(function)
    if inspect.isfunction(function):
        return function.__globals__
    owner = function if inspect.isclass(function) else type(function)
    module = sys.modules.get(owner.__module__, sys.modules["__main__"])
    return module.__dict__


def _is_own(frame: FrameType, home: dict[str, Any], skip: CodeType | None) -> bool:
    # AutoGraph's rewriting of their code shares their globals, but is not what they wrote.
    is_theirs = frame.f_globals is home and frame.f_code is not skip
    return is_theirs and _GENERATED not in frame.f_code.co_filename


def _line(frame: FrameType, number: int) -> str:
    code = frame.f_code
    source = linecache.getline(code.co_filename, number, frame.f_globals).strip()
    return f"line {number} in {code.co_name}: {source}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(its message cannot be shown)"


def _is_library(path: str) -> bool:
    return "site-packages" in path or path.startswith((_OUR_FOLDER, sys.base_prefix + "/lib"))


def _tidy(text: str) -> str:
    text = re.sub(r"0x[0-9a-fA-F]{4,}", "0x...", text)
    text = re.sub(r"\{\{\S+ [^}]*\}\} ?", "", text)  # TensorFlow's name of the node and device
    return text if len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 4] + " ..."
