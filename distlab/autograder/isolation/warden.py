"""Runs one answer behind walls, watches it, and judges what comes of it.

    main("/tmp/distlab-1234")             # reads job.json there, and writes report.json

`main` is forked by the grader's keeper. It forks the launcher, which enters new namespaces and
forks their process 1, and that forks the learner's process (`answer.py`). Process 1 can't be
ended or looked at from within, counts what the answer uses, and takes all others with it when it
ends. `main` reads plain values from a pipe, and judges them: no line of a submission ever runs in
it, and an answer can't reach it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import signal
import time
import traceback
from pathlib import Path
from typing import Any

from distlab.autograder.intake.exercises import check_named
from distlab.autograder.isolation import answer, walls
from distlab.autograder.isolation.limits import Limits, Stop, StopReason, exceeded, limit_memory
from distlab.autograder.isolation.question import JOB, REPORT
from distlab.autograder.isolation.records import BadRecord, Records, TooLarge, called_of, pack
from distlab.checks.run_check import Called, judge_called, report_on

_SAMPLE_SECS = 0.05
_CHUNK_BYTES = 1 << 16
_TELL_SECS = 2.0  # for the lines at which an answer was still running
_JUDGING_SECS = 60
_JUDGING_BYTES = 4 * 2**30  # an answer may be made to grow as it is judged
_LONGEST = 500


def main(folder: str) -> None:
    """Runs and judges one answer, and ends this process."""
    job = json.loads(Path(folder, JOB).read_text(encoding="utf-8"))
    (results, to_results), (prints, to_prints) = os.pipe(), os.pipe()
    launcher = os.fork()
    if not launcher:
        try:
            _launch(job, Path(folder), to_results, to_prints)
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(1)
    os.close(to_results)
    os.close(to_prints)
    watch = Watch(job, results, prints)
    try:
        watch.run()
    finally:
        _end_group(launcher)
    os.waitpid(launcher, 0)
    told = _judged(job, watch.called) if watch.has_begun else {"problem": watch.last_line}
    part = Path(folder, f"{REPORT}.part")
    part.write_text(json.dumps(told, default=lambda number: number.item()), encoding="utf-8")
    part.rename(Path(folder, REPORT))
    os._exit(0)


class Watch:
    """Reads what an answer sends and prints, until it has ended or exceeds a limit."""

    def __init__(self, job: dict[str, Any], results: int, prints: int) -> None:
        self.called: list[Called] = []
        self.has_begun = False
        self._limits, self._seeds, self._cells = Limits(**job["limits"]), job["seeds"], job["cells"]
        self._results, self._prints = results, prints
        self._records, self._printed, self._tail = Records(), 0, b""

    @property
    def last_line(self) -> str:
        """What was printed last."""
        return (self._tail.decode(errors="replace").strip().splitlines() or ["nothing said"])[-1]

    def run(self) -> None:
        """Reads to the end; afterwards `called` has a call for each seed, or one that failed."""
        stop = self._stop()
        lines: tuple[str, ...] = ()
        if stop and stop.reason is StopReason.TIME:
            lines = answer.lines_in(self._tail, self._cells)
        has_failed = bool(self.called) and self.called[-1].failure is not None
        if not has_failed and (stop or len(self.called) < len(self._seeds)):
            failure = (stop or Stop(StopReason.EXITED, "0")).failure(lines)
            del self.called[len(self._seeds) - 1 :]
            self.called.append(Called(self._seeds[len(self.called)], failure=failure))

    def _stop(self) -> Stop | None:
        poll = select.poll()
        for fd in (self._results, self._prints):
            poll.register(fd, select.POLLIN)
        deadline = time.monotonic() + self._limits.secs
        while (now := time.monotonic()) < deadline + _TELL_SECS:
            if now > deadline and answer.lines_in(self._tail, self._cells):
                break
            for fd, _ in poll.poll(_SAMPLE_SECS * 1000):
                data = os.read(fd, _CHUNK_BYTES)
                if fd == self._prints:
                    self._printed += len(data)
                    self._tail = (self._tail + data)[-_CHUNK_BYTES:]
                    if not data:
                        poll.unregister(fd)
                elif not data:
                    return None
                elif (ended := self._take(data)) is not None:
                    return ended.stop
            if self._printed > self._limits.printed_bytes:
                return Stop(StopReason.PRINTED, f"{self._limits.printed_bytes:,}")
        return Stop(StopReason.TIME, f"{self._limits.secs:g}")

    def _take(self, data: bytes) -> _Ended | None:
        self._records.feed(data)
        try:
            while (record := self._records.pop()) is not None:
                head, payload = record
                if "begun" in head:
                    self.has_begun = True
                    continue
                if "stop" in head:
                    return _Ended(_stop_of(head["stop"]))
                called = called_of(head, payload)
                if called.seed != [*self._seeds, None][len(self.called)]:
                    raise BadRecord("a different call")
                self.called.append(called)
        except TooLarge:
            return _Ended(Stop(StopReason.TOO_LARGE))
        except BadRecord:
            return _Ended(Stop(StopReason.NO_RECORD))
        return None


@dataclasses.dataclass(frozen=True)
class _Ended:
    """An answer has ended; `stop` says why, and is None if it ended as it should."""

    stop: Stop | None


def _stop_of(told: Any) -> Stop | None:
    try:
        return told and Stop(StopReason(told["reason"]), str(told["detail"]))
    except (ValueError, KeyError, TypeError) as error:
        raise BadRecord("no stop") from error


def _judged(job: dict[str, Any], calls: list[Called]) -> dict[str, Any]:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_JUDGING_SECS)
    limit_memory(_JUDGING_BYTES)
    try:
        check = check_named(job["check"], _extra_checks(job))
        report = report_on(check, [judge_called(check, called) for called in calls])
        return {"report": dataclasses.asdict(report)}
    except Exception as error:  # such as MemoryError, for an array that says it is huge
        return {"unjudged": f" ({type(error).__name__}: {error})"[:_LONGEST]}


def _extra_checks(job: dict[str, Any]) -> Path | None:
    return Path(job["extra_checks"]) if job["extra_checks"] else None


def _end_group(launcher: int) -> None:
    for end in (os.killpg, os.kill):  # the group is there once the launcher has made it
        try:
            return end(launcher, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return None


def _launch(job: dict[str, Any], folder: Path, results: int, prints: int) -> None:
    """Enters new namespaces, and waits for process 1 of them; in that it runs the answer."""
    os.setpgid(0, 0)
    os.dup2(prints, 2)
    walls.end_with_parent(signal.SIGKILL)
    if job["is_walled"]:
        walls.unshare()
    init = os.fork()
    if init:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(init, 0)[1]))
    walls.end_with_parent(signal.SIGKILL)
    limits, home = Limits(**job["limits"]), folder / "work"
    check = check_named(job["check"], _extra_checks(job))  # its file is out of reach below
    if job["is_walled"]:
        walls.build_root(home, writable_bytes=limits.written_bytes)
        home = walls.HOME
    learner = os.fork()
    if not learner:
        try:
            fd = answer.leave_grader(home, limits, results, prints, is_walled=job["is_walled"])
            answer.run(check, job, fd)
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(1)
    stop = _watch_usage(learner, limits, is_walled=job["is_walled"])
    told = None if stop is None else dataclasses.asdict(stop)
    os.write(results, pack({"stop": told}))
    os._exit(0)


def _watch_usage(learner: int, limits: Limits, *, is_walled: bool) -> Stop | None:
    """Waits for the end of the learner's process, or for a limit that is exceeded."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)  # of orphans, too
        if pid == learner:
            code = os.waitstatus_to_exitcode(status)
            if code < 0:
                return Stop(StopReason.SIGNALLED, signal.Signals(-code).name)
            return Stop(StopReason.EXITED, f"{code}") if code else None
        if not pid:
            if is_walled and (stop := exceeded(limits)) is not None:
                return stop
            time.sleep(_SAMPLE_SECS)
