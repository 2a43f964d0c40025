"""Judges results in a separate process, which never runs a submission.

    with Judge() as judge:
        report = judge.report("split", outcome.called)

To it an answer is bytes: an object with an `__eq__` of its own, or a patched numpy, stays behind.
It is a process of its own all the same, because an answer may be written to break its reader.
"""

from __future__ import annotations

import dataclasses
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from distlab.autograder.intake.private_checks import check_named
from distlab.autograder.isolation.limits import hold_memory
from distlab.autograder.isolation.messages import (
    BadRecord,
    Head,
    Records,
    called_of,
    head_of,
    pack,
    report_of,
)
from distlab.course.checks.report import Ending, Report
from distlab.course.checks.run_check import Called, judge_called, report_on
from distlab.errors import InvalidArgument
from distlab.warm.process import ForkedProcess, shared_server, task_environment

COULD_NOT_JUDGE = "The check could not judge this answer."
_LARGEST_BYTES = 2**32
_MEMORY_BYTES = 4 * 2**30  # an answer may be made to grow as it is judged
_CHUNK_BYTES = 1 << 16
_LONGEST = 500


class Judge:
    """Judges one answer after the other; threads may share it."""

    def __init__(self, *, extra_checks: Path | None = None, limit_secs: float = 60.0) -> None:
        self._extra_checks, self._limit_secs = extra_checks, limit_secs
        self._lock = threading.Lock()
        self._task: ForkedProcess | None = None
        self._socket: socket.socket | None = None

    def report(self, check: str, called: Sequence[Called]) -> Report:
        """Returns the feedback on an answer.

        If the judging process ends or takes too long, the report says so
        (`COULD_NOT_JUDGE`), and the next answer gets a new one.
        """
        asked = check_named(check, self._extra_checks)
        if not called:
            raise InvalidArgument(
                asked=f"the report on {check!r}",
                found="no calls, so anything would pass",
                do="give what ask returned",
            )
        request = pack({"check": check, "called": [head_of(one) for one in called]})
        with self._lock:
            try:
                reply = self._exchange(request + b"".join(pack({}, c.payload) for c in called))
            except (OSError, EOFError, BadRecord):  # TimeoutError too
                self._end()
                reply = {}
        if "report" in reply:
            return report_of(reply["report"])
        why = f" ({reply['problem']})" if "problem" in reply else ""
        return Report(
            asked.name,
            asked.function,
            asked.title,
            Ending.NOT_YET,
            0.0,
            asked.points,
            message=COULD_NOT_JUDGE + why,
        )

    def close(self) -> None:
        """Ends its process."""
        with self._lock:
            self._end()

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _exchange(self, request: bytes) -> Head:
        connection = self._connected()
        connection.settimeout(self._limit_secs)
        connection.sendall(request)
        reply = _receive(connection, Records(), time.monotonic() + self._limit_secs)
        return reply[0]

    def _connected(self) -> socket.socket:
        if self._socket is not None:
            return self._socket
        ours, theirs = socket.socketpair()
        keeper = shared_server()
        with theirs:
            self._task = keeper.spawn(
                call="distlab.autograder.isolation.judge_process:serve",
                args=[str(self._extra_checks.resolve()) if self._extra_checks else ""],
                # Without a GPU, as the answers were made.
                env=task_environment({"CUDA_VISIBLE_DEVICES": "-1"}),
                cwd=keeper.folder,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        self._socket = ours
        return ours

    def _end(self) -> None:
        if self._task is not None:
            self._task.kill()
            self._task.wait(timeout_secs=60)
        if self._socket is not None:
            self._socket.close()
        self._task = self._socket = None


def serve(extra_checks: str) -> None:
    """Judges what comes through standard input, a socket; runs in the judging process."""
    hold_memory(_MEMORY_BYTES)
    connection = socket.socket(fileno=0)
    records = Records(largest_bytes=_LARGEST_BYTES)
    private = Path(extra_checks) if extra_checks else None
    while True:
        request, _ = _receive(connection, records, None)
        payloads = [_receive(connection, records, None)[1] for _ in request["called"]]
        called = [called_of(*one) for one in zip(request["called"], payloads, strict=True)]
        try:
            check = check_named(request["check"], private)
            report = report_on(check, [judge_called(check, one) for one in called])
            reply: Head = {"report": dataclasses.asdict(report)}
        except Exception as error:  # such as MemoryError, for an array that says it is huge
            reply = {"problem": f"{type(error).__name__}: {error}"[:_LONGEST]}
        connection.sendall(pack(reply))


def _receive(
    connection: socket.socket, records: Records, deadline: float | None
) -> tuple[Head, bytes]:
    while (record := records.pop()) is None:
        if deadline is not None:
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
        data = connection.recv(_CHUNK_BYTES)
        if not data:
            raise EOFError
        records.feed(data)
    return record
