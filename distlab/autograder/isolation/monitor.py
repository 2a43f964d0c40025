"""Reads what an answer sends while it runs, and stops it when it exceeds a limit.

    monitor = Monitor(job, token, asked=pid, results=fd, prints=fd, notes=fd, tasks=socket,
                  sampler=sampler)
    while monitor.run():
        ...                          # the answer wants tasks, the first time
    monitor.called, monitor.stopped, monitor.review

Nothing that arrives is believed: a record that is not the next one of the process that was asked is
no record.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from typing import Any

from distlab.autograder.isolation.limits import Limits, Sampler
from distlab.autograder.isolation.messages import BadRecord, Records, TooLarge, called_of
from distlab.autograder.isolation.stack_dump import ask_for_lines, lines_in
from distlab.autograder.isolation.static_scan import LONGEST_REASON, MOST_REASONS
from distlab.autograder.isolation.stops import Stop, StopReason
from distlab.course.checks.run_check import Called

FORGED = "it sent records of its own to the grader"

_SAMPLE_SECS = 0.05
_CHUNK_BYTES = 1 << 16
_TELL_SECS = 2.0  # it does not say where it holds back signals, or has none of their lines
_MOST_CHUNKS = 16  # a pipe holds no more than 1 MiB


class Monitor:
    """What came of an answer so far, and what is still to be expected.

    Args:
        job: What was asked.
        token: What the records of the asked process bear.
        asked: That process.
        results: Where its records arrive.
        prints: Where all that is printed arrives.
        notes: Where reasons to look at the answer arrive from its tasks, one a line.
        tasks: The socket on which an answer asks for tasks.
        sampler: Counts what the answer uses.

    Attributes:
        called: The calls that have arrived; in the end one for each seed, or the last one failed.
        review: What a person should look at.
        stopped: Why the answer was ended; None if it was not.
    """

    def __init__(
        self,
        job: dict[str, Any],
        token: str,
        *,
        asked: int,
        results: int,
        prints: int,
        notes: int,
        tasks: socket.socket,
        sampler: Sampler,
    ) -> None:
        self.called: list[Called] = []
        self.review: list[str] = []
        self.stopped: Stop | None = None
        self._limits, self._seeds, self._cells = Limits(**job["limits"]), job["seeds"], job["cells"]
        self._token, self._asked, self._sampler = token, asked, sampler
        self._results, self._prints, self._tasks = results, prints, tasks.fileno()
        self._notes, self._noted = notes, b""
        self._records = Records()
        self._is_done = False
        self._heard, self._printed, self._next_sample = 0, 0, 0.0
        self._poll = select.poll()
        for fd in (results, prints, notes):
            os.set_blocking(fd, False)
        for fd in (results, prints, notes, self._tasks):
            self._poll.register(fd, select.POLLIN)

    def run(self) -> bool:
        """Reads until all is there; returns True, once, when the answer wants tasks."""
        while not (self._is_done or self.stopped):
            ready = {fd for fd, _ in self._poll.poll(_SAMPLE_SECS * 1000)}
            has_ended = _end_of(self._asked) is not None
            for fd in ready - {self._tasks}:
                self._read(fd)
            if self._printed > self._limits.printed_bytes:
                self._stop(self._limits.too_much_printed)
            if has_ended:  # what it has sent is still in the pipe
                for _ in range(_MOST_CHUNKS):
                    self._take(_read(self._results))
                self._stop(_how_it_ended(self._asked))
            if time.monotonic() >= self._next_sample:
                self._stop(self._sampler.exceeded())
                self._next_sample = time.monotonic() + _SAMPLE_SECS
            if self._tasks in ready:
                self._poll.unregister(self._tasks)
                return True
        self._note(_read(self._notes))
        self._fill()
        return False

    def _read(self, fd: int) -> None:
        data = _read(fd)
        if not data:
            self._poll.unregister(fd)
        elif fd == self._results:
            self._take(data)
        elif fd == self._notes:
            self._note(data)
        else:
            self._printed += len(data)

    def _note(self, data: bytes) -> None:
        *lines, self._noted = (self._noted + data).split(b"\n")
        self._noted = self._noted[-_CHUNK_BYTES:]
        for reason in (line.decode(errors="replace") for line in lines):
            self._review(reason)

    def _review(self, reason: str) -> None:
        if reason not in self.review and len(self.review) < MOST_REASONS:
            self.review.append(reason[:LONGEST_REASON])

    def _stop(self, stop: Stop | None) -> None:
        if stop and not self._is_done:
            self.stopped = self.stopped or stop

    def _take(self, data: bytes) -> None:
        self._records.feed(data)
        try:
            while not self._is_done and (record := self._records.pop()) is not None:
                self._hear(*record)
        except TooLarge:
            self._stop(Stop(StopReason.TOO_LARGE))
        except BadRecord:
            self.review.append(FORGED)
            self._stop(Stop(StopReason.NO_RECORD))

    def _hear(self, head: dict[str, Any], payload: bytes) -> None:
        if head.get("token") != self._token or head.get("number") != self._heard:
            raise BadRecord("a different sender, or a record is missing")
        self._heard += 1
        if reason := head.get("review"):
            self._review(str(reason))
        elif head.get("too_much_printed"):
            self._stop(self._limits.too_much_printed)
        elif head.get("done"):
            self._is_done = True
        else:
            called = called_of(head.get("called"), payload)
            if len(self.called) == len(self._seeds) or called.seed != self._seeds[len(self.called)]:
                raise BadRecord("a different call")
            self.called.append(called)

    def _fill(self) -> None:
        """Puts a failure in the place of the first call that is missing."""
        is_whole = len(self.called) == len(self._seeds)
        if self.called and self.called[-1].failure is not None:
            return
        if self.stopped or not is_whole:
            stop = self.stopped or Stop(StopReason.NOTHING_SENT)
            is_late = stop.reason is StopReason.TIME
            lines = _lines_of(self._asked, self._prints, self._cells) if is_late else ()
            failure = stop.failure(lines)
            del self.called[len(self._seeds) - 1 :]
            self.called.append(Called(self._seeds[len(self.called)], failure=failure))


def _read(fd: int) -> bytes:
    """Returns what is there, b"" for nothing."""
    try:
        return os.read(fd, _CHUNK_BYTES)
    except BlockingIOError:
        return b""


def _lines_of(asked: int, prints: int, cells: Any) -> tuple[str, ...]:
    """Asks a process for the learner's line where it is; () where it does not say."""
    printed, deadline = b"", time.monotonic() + _TELL_SECS
    ask_for_lines(asked)
    while (left := deadline - time.monotonic()) > 0:
        ready = select.select([prints], [], [], left)[0]
        data = _read(prints)
        if ready and not data:  # no process prints there now
            break
        printed = (printed + data)[-_CHUNK_BYTES:]
        if lines := lines_in(printed, cells):
            return lines
    return ()


def _end_of(asked: int) -> Any:
    return os.waitid(os.P_PID, asked, os.WEXITED | os.WNOHANG | os.WNOWAIT)


def _how_it_ended(asked: int) -> Stop:
    end = _end_of(asked)
    if end.si_code == os.CLD_EXITED:
        return Stop(StopReason.EXITED, f"{end.si_status}")
    return Stop(StopReason.SIGNALLED, signal.Signals(end.si_status).name)
