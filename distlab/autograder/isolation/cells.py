"""Runs a learner's cells, behind the walls: those that an answer needs, or a whole notebook.

failure = run_until_an_error(cells, names)
left_out = run_as_a_kernel(cells, names, limits)
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import functools
import inspect
import os
import signal
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Any

import distlab
from distlab.autograder.isolation.limits import Limits
from distlab.cluster.deadline import Deadline
from distlab.course.results.failures import Failure, FailureKind, failure_of
from distlab.source_lines import keep_lines

_PART_OF_A_CELL = 1 / 6  # of the time of an answer, where a whole notebook runs
_LOOK_SECS = 0.5

Cells = Sequence[tuple[str, str]]


class _TooLong(BaseException):
    """Ends a cell that takes long; `except Exception` in it does not see this."""


def run_until_an_error(cells: Cells, names: dict[str, Any]) -> Failure | None:
    """Runs the cells that an answer needs; returns why one of them ended."""
    here = eval("lambda: None", names)  # what failures are to know as theirs
    for name, source in cells:
        try:
            code = _compiled(name, source)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return _unread(error, name)
        try:
            _run_code(code, names)
        except BaseException as error:
            return failure_of(error, here)
    return None


def run_as_a_kernel(cells: Cells, names: dict[str, Any], limits: Limits) -> list[str]:
    """Runs a notebook's cells as a kernel does; returns which were left out, and why.

    Half of the time is for them, so that the other half is left for the answer. What they print is
    in the notebook, and counts for nothing here.
    """
    left_out, part = list[str](), limits.secs * _PART_OF_A_CELL
    of_all = Deadline(limits.secs / 2, lambda: [os.getpid()])
    vars(distlab)["check"] = lambda *_, **__: None  # each is asked for in a process of its own
    for name, source in cells:
        try:
            with _limited(part, of_all), _silent():
                _run_code(_compiled(name, source), names)
        except _TooLong as ended:
            left_out.append(f"{name} was left out after {ended}")
        except EOFError:
            left_out.append(f"{name} was left out where it asks for input")
        except BaseException:  # its output in the notebook says which
            pass
    return left_out


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    with (
        open(os.devnull, "w") as nowhere,  # noqa: PTH123 - no path of the learner's
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        yield


@contextlib.contextmanager
def _limited(secs: float, of_all: Deadline) -> Iterator[None]:
    """Raises `_TooLong` in a cell once it, or all of them, had their time from the machine."""
    deadline = Deadline(secs, lambda: [os.getpid()])

    def look(*_: object) -> None:
        if deadline.has_passed():
            raise _TooLong(f"{secs:.0f} seconds")
        if of_all.has_passed():
            raise _TooLong("the time of all cells was over")

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _LOOK_SECS, _LOOK_SECS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _compiled(name: str, source: str) -> CodeType:
    file = f"<{name}>"  # no file: nothing that lies in the folder can be taken for it
    keep_lines({file: [f"{line}\n" for line in source.split("\n")]})  # as Python counts
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT  # as in a notebook
    code: CodeType = compile(source, file, "exec", flags, dont_inherit=True)
    return code.replace(co_name=name)


def _run_code(code: CodeType, names: dict[str, Any]) -> None:
    """Runs a cell while an event loop runs, as a kernel's does."""

    async def run() -> None:
        result = eval(code, names)
        if code.co_flags & inspect.CO_COROUTINE:
            await result

    _loop().run_until_complete(run())


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """One for all cells: what a cell awaits may have been made in one above."""
    return asyncio.new_event_loop()


def _unread(error: Exception, name: str) -> Failure:
    if not isinstance(error, SyntaxError) or not error.lineno:  # a character that is none
        return Failure(
            FailureKind.ERROR, f"{type(error).__name__}: {error}", (f"somewhere in {name}",)
        )
    line = f"line {error.lineno} in {name}: {(error.text or '').strip()}"
    return Failure(FailureKind.ERROR, f"{type(error).__name__}: {error.msg}", (line,))
