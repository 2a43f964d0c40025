"""Runs a learner's cells and calls the answer, in the process that is behind the walls.

    fd = leave_grader(home, limits, results, prints, is_walled=True)
    run(check, job, fd)                      # ends this process

Each result is sent at once, so that an end in the middle costs only what was to come.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import faulthandler
import fcntl
import io
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from distlab.autograder.isolation import walls
from distlab.autograder.isolation.cells import Cells, run_as_a_kernel, run_until_an_error
from distlab.autograder.isolation.limits import Limits, apply_rlimits
from distlab.autograder.isolation.records import pack, record_of
from distlab.course.checks.check import Check
from distlab.course.checks.run_check import Called, call_check
from distlab.course.markup import TASK_LINE
from distlab.course.results.failures import Failure, FailureKind, failure_of
from distlab.course.runs.replicas import MOST_REPLICAS
from distlab.devices import split_devices

STOPPED = signal.SIGUSR1  # asks the learner's process where it is, before it is ended
_RESULTS_FD, _OUT_OF_THE_WAY_FD = 3, 100
_LINE = re.compile(rb'^  File "<(.+)>", line (\d+) in (.+)\n', re.MULTILINE)
_LONGEST = 200
_LARGEST_BYTES = 64 * 2**20  # of what one call returns
_BESIDE_BYTES = 2**20  # of all that is sent with it
_ENVIRONMENT_FIELDS = slice(47, 49)  # in /proc/self/stat, after the name of the program


def leave_grader(home: Path, limits: Limits, results: int, prints: int, *, is_walled: bool) -> int:
    """Makes this process the learner's; returns where results are sent, all of the grader's."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    fds = [null, prints, prints, results]
    fds = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY_FD) for fd in fds]
    for target, fd in enumerate(fds):
        os.dup2(fd, target, inheritable=target < _RESULTS_FD)
    os.closerange(len(fds), os.sysconf("SC_OPEN_MAX"))
    os.chdir(home)
    temporary = walls.TEMPORARY if is_walled else home
    # Without a GPU: what is left of one's memory for several answers beside each other is chance.
    os.environ.update(HOME=str(home), TMPDIR=str(temporary), CUDA_VISIBLE_DEVICES="-1")
    _erase_first_environment()
    tempfile.tempdir = None
    sys.dont_write_bytecode = True
    sys.path[0] = str(home)
    apply_rlimits(limits)
    if is_walled:
        walls.restrict(walls.WRITABLE)
    else:  # Landlock alone, where there is one
        with contextlib.suppress(OSError, AttributeError):
            walls.restrict((home, walls.SHARED_MEMORY))
    faulthandler.dump_traceback_later(limits.secs, file=2)
    faulthandler.enable(file=2)  # at a crash
    faulthandler.register(STOPPED, file=2)
    return _RESULTS_FD


def run(check: Check, job: dict[str, Any], fd: int) -> NoReturn:
    """Runs the cells, calls the function, sends what comes of it, and ends this process."""
    code, end, own = 1, os._exit, os.getpid()

    def end_and_tell(status: int) -> NoReturn:
        if os.getpid() == own:  # the processes that it forks end so as well, and say nothing
            faulthandler.dump_traceback(file=2)
        end(status)

    vars(os)["_exit"] = end_and_tell
    try:
        _write(fd, pack({"begun": True}))
        split_devices(MOST_REPLICAS)  # as every exercise begins: later it would be too late
        vars(builtins)["display"] = _display  # as in every notebook
        cells = [(str(name), str(text)) for name, text in job["cells"]]
        sys.modules["__main__"] = main = ModuleType("__main__")
        vars(main)["get_ipython"] = _Shell
        if job["is_whole_notebook"]:
            left_out = run_as_a_kernel(cells, vars(main), Limits(**job["limits"]))
            _write(fd, pack({"left_out": left_out}))
            function, failure = _named(check, cells, vars(main))
        else:
            failure = run_until_an_error(cells, vars(main))
            function, failure = (None, failure) if failure else _named(check, cells, vars(main))
        if failure is not None:
            _send(fd, Called(job["seeds"][0], failure=failure))
        else:
            _call(check, function, job, fd)
        code = 0
    finally:
        end(code)  # whatever they left to be done at an exit


def lines_in(printed: bytes, cells: Cells) -> tuple[str, ...]:
    """Returns the innermost line of the learner's at which a process said that it ended."""
    sources = {name: source.splitlines() for name, source in cells}
    for file, number, function in _LINE.findall(printed):
        lines = sources.get(file.decode(errors="replace"), [])
        if 0 < int(number) <= len(lines):
            where = f"line {int(number)} in {function.decode(errors='replace')}"
            return (f"{where}: {lines[int(number) - 1].strip()}"[:_LONGEST],)
    return ()


def most_sent(calls: int) -> int:
    """Returns the most bytes that an answer may send."""
    return calls * (_LARGEST_BYTES + _BESIDE_BYTES)


class _Counted(io.StringIO):
    """Keeps what a function prints, and passes on what is too much, for which it is ended."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._left = most

    def write(self, text: str) -> int:
        self._left -= len(text)
        return super().write(text) if self._left > 0 else os.write(1, text.encode())


def _erase_first_environment() -> None:
    """Overwrites the variables that this process was started with, which /proc would show."""
    with contextlib.suppress(OSError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        begin, end = map(int, fields[_ENVIRONMENT_FIELDS])
        values = dict(os.environ)
        os.environ.clear()
        ctypes.memset(begin, 0, end - begin)
        os.environ.update(values)


class _Shell:
    """Replaces the notebook's shell by one whose every method does nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def _display(*shown: object, **_: object) -> None:
    for value in shown:
        print(repr(value))  # noqa: T201


def _named(check: Check, cells: Cells, names: dict[str, Any]) -> tuple[Any, Failure | None]:
    """Returns the answer's function, or why there is none."""
    if check.function not in names:
        return None, _undefined(check, cells)
    function = names[check.function]
    if not callable(function):
        kind = type(function).__name__
        return None, Failure(
            FailureKind.UNUSABLE, f"`{check.function}` is a {kind}, not a function"
        )
    return function, None


def _undefined(check: Check, cells: Cells) -> Failure:
    """Says which function the task's cell defines instead of the one that is asked for."""
    own = next((text for _, text in cells if check.name in TASK_LINE.findall(text)), "")
    if others := re.findall(r"^def (\w+)\(", own, re.MULTILINE):
        message = f"NameError: the cell defines `{others[-1]}`, not `{check.function}`"
        return Failure(FailureKind.UNUSABLE, message)
    return Failure(FailureKind.NOT_STARTED, f"NameError: no cell defines `{check.function}`")


def _call(check: Check, function: Any, job: dict[str, Any], fd: int) -> None:
    for seed in job["seeds"]:
        printed = _Counted(job["limits"]["printed_bytes"])
        try:
            called = call_check(check, function, seed, printed=printed)
        except BaseException as error:  # of the check, such as devices that they split otherwise
            text = f"{type(error).__name__}: {error}"
            called = Called(seed, failure=failure_of(error, function))
            if called.failure is None or not called.failure.lines:
                called = Called(seed, failure=Failure(FailureKind.UNUSABLE, text))
        _send(fd, called)
        if called.failure is not None:
            return


def _send(fd: int, called: Called) -> None:
    if len(called.payload) > _LARGEST_BYTES:
        error = f"Its answer has {len(called.payload):,} bytes, which is too large."
        called = Called(called.seed, failure=Failure(FailureKind.UNUSABLE, error))
    _write(fd, pack(*record_of(called)))


def _write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
