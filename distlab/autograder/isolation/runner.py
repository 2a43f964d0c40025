"""Runs an answer in its own process, which ends with the answer.

    answer(job, Sender(fd, token), folder)

`distlab.autograder.isolation.supervisor` has forked and limited the process. Here the check is
found, the cells are run in their order, and the answer's function is called once for each seed.
Each result is sent at once, so that an end in the middle costs only what was to come.
"""

from __future__ import annotations

import builtins
import dataclasses
import io
import os
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from distlab.autograder.intake.private_checks import check_named
from distlab.autograder.isolation.audit_hook import functions_of_libraries, observe, patched
from distlab.autograder.isolation.messages import Head, head_of, pack
from distlab.autograder.isolation.stack_dump import show_lines_on_demand
from distlab.autograder.isolation.static_scan import LONGEST_REASON, MOST_REASONS, Cells, suspicions
from distlab.course.checks.check import Check
from distlab.course.checks.criteria import Holds
from distlab.course.checks.run_check import Called, call_check
from distlab.course.results.failures import Failure, FailureKind, failure_of
from distlab.course.runs.replicas import MOST_REPLICAS
from distlab.devices import split_devices
from distlab.source_lines import keep_lines

# As they are before a learner's code runs, which may put others into their places.
_write, _end = os.write, os._exit


class Sender:
    """Sends records to the process that watches; each bears a token that only these two know.

    They are numbered, so that none can be held back: where one cannot be sent, the process ends.
    """

    def __init__(self, fd: int, token: str) -> None:
        self._fd, self._token, self._pid = fd, token, os.getpid()
        self._lock = threading.RLock()
        self._noted: set[str] = set()
        self._sent = 0

    def send(self, head: Head, payload: bytes = b"") -> None:
        """Sends a record."""
        if os.getpid() != self._pid:  # a fork of the answer's is not the answer
            _end(0)
        with self._lock:
            numbered = {**head, "token": self._token, "number": self._sent}
            self._sent += 1
            data = memoryview(pack(numbered, payload))
            while data:
                data = data[_write(self._fd, data) :]

    def note(self, reason: str) -> None:
        """Sends a reason to look at the answer, once."""
        reason = reason[:LONGEST_REASON]
        with self._lock:
            if reason not in self._noted and len(self._noted) < MOST_REASONS:
                self._noted.add(reason)
                try:
                    self.send({"review": reason})
                except BaseException:
                    _end(1)


class _Counted(io.StringIO):
    """Takes what a function prints, and gives it up where that is too much."""

    def __init__(self, most: int, sender: Sender) -> None:
        super().__init__()
        self._left, self._sender = most, sender

    def write(self, text: str) -> int:
        self._left -= len(text)
        if self._left < 0:
            self._sender.send({"too_much_printed": True})
            _end(1)
        return super().write(text)


def answer(job: dict[str, Any], sender: Sender, folder: Path) -> NoReturn:
    """Runs the cells, calls the function, sends what comes of it, and ends this process."""
    code = 1
    try:
        seed, cells = job["seeds"][0], [(str(name), str(text)) for name, text in job["cells"]]
        private = Path(job["extra_checks"]) if job["extra_checks"] else None
        check = _without_criteria(check_named(job["check"], private))
        for reason in suspicions(cells):
            sender.note(reason)
        show_lines_on_demand()
        split_devices(MOST_REPLICAS)  # as every exercise begins: later it would be too late
        vars(builtins)["display"] = _display  # as in every notebook
        before = functions_of_libraries()
        names = _main(cells)
        observe(sender.note, is_theirs=_theirs(cells, folder), folder=folder, private=private)
        function, failure = _function(check, cells, names)
        if failure is not None:
            _send_called(sender, Called(seed, failure=failure))
        else:
            _call(check, function, job, sender)
        for reason in patched(before):
            sender.note(reason)
        sender.send({"done": True})
        code = 0
    finally:
        _end(code)  # whatever they left to be done at an exit


def look_on_tasks(job: dict[str, Any], fd: int, folder: Path) -> None:
    """Looks on in all tasks that this process will fork; each reason is sent as a line."""
    private = Path(job["extra_checks"]) if job["extra_checks"] else None
    check_named(job["check"], private)  # what it imports is to be watched
    noted: set[str] = set()

    def note(reason: str) -> None:
        line = " ".join(reason[:LONGEST_REASON].split())
        if line not in noted and len(noted) < MOST_REASONS:
            noted.add(line)
            try:
                _write(fd, f"{line}\n".encode(errors="replace"))  # short, so it comes in one piece
            except BaseException:
                _end(1)

    cells = [(str(name), str(text)) for name, text in job["cells"]]
    observe(note, is_theirs=_theirs(cells, folder), folder=folder, private=private)


def _without_criteria(check: Check) -> Check:
    nothing = Holds("nothing is judged where learners' code runs", lambda given, out: False, "")
    return dataclasses.replace(
        check,
        criteria=(nothing,),
        read=None,
        reference=None,
        mistakes=(),
        hint="",
        revisit="",
    )


def _display(*shown: object, **_: object) -> None:
    for one in shown:
        print(repr(one))  # noqa: T201


def _theirs(cells: Cells, folder: Path) -> Any:
    files = {_file(name) for name, _ in cells} | {"<string>"}
    return lambda file: file in files or file.startswith(str(folder))


def _file(name: str) -> str:
    return f"<{name}>"  # no file: nothing that lies in the folder can be taken for it


def _main(cells: Cells) -> dict[str, Any]:
    """Makes a new `__main__`, and lets tracebacks show the lines of the cells."""
    sys.modules["__main__"] = main = ModuleType("__main__")
    for name, source in cells:
        keep_lines({_file(name): [f"{line}\n" for line in source.split("\n")]})  # as Python counts
    return vars(main)


def _function(check: Check, cells: Cells, names: dict[str, Any]) -> tuple[Any, Failure | None]:
    """Runs the cells; returns the answer's function, or why there is none."""
    here = eval("lambda: None", names)  # what failures are to know as theirs
    for name, source in cells:
        try:
            code = compile(source, _file(name), "exec").replace(co_name=name)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return None, _unread(error, name)
        try:
            exec(code, names)
        except BaseException as error:
            return None, failure_of(error, here)
    if check.function not in names:
        return None, Failure(
            FailureKind.NOT_STARTED, f"NameError: no cell defines `{check.function}`"
        )
    function = names[check.function]
    if not callable(function):
        kind = type(function).__name__
        return None, Failure(
            FailureKind.UNUSABLE, f"`{check.function}` is a {kind}, not a function"
        )
    return function, None


def _unread(error: Exception, name: str) -> Failure:
    if not isinstance(error, SyntaxError) or not error.lineno:  # a character that is none
        return Failure(
            FailureKind.ERROR, f"{type(error).__name__}: {error}", (f"somewhere in {name}",)
        )
    line = f"line {error.lineno} in {name}: {(error.text or '').strip()}"
    return Failure(FailureKind.ERROR, f"{type(error).__name__}: {error.msg}", (line,))


def _call(check: Check, function: Any, job: dict[str, Any], sender: Sender) -> None:
    for seed in job["seeds"]:
        printed = _Counted(job["limits"]["printed_bytes"], sender)
        try:
            called = call_check(check, function, seed, printed=printed)
        except BaseException as error:  # of the check, such as devices that they split otherwise
            text = f"{type(error).__name__}: {error}"
            called = Called(seed, failure=failure_of(error, function))
            if called.failure is None or not called.failure.lines:
                called = Called(seed, failure=Failure(FailureKind.UNUSABLE, text))
        _send_called(sender, called)
        if called.failure is not None:
            return


def _send_called(sender: Sender, called: Called) -> None:
    sender.send({"called": head_of(called)}, called.payload)
