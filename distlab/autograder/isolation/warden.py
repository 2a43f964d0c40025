"""Runs one answer behind walls, watches it, and judges what comes of it.

    main("/tmp/distlab-1234")             # reads job.json there, and writes report.json

`main` is forked by the grader's keeper. It forks the launcher, which enters new namespaces and
forks their process 1, and that forks the learner's process (`answer.py`). Process 1 can't be
ended or looked at from within, counts what the answer uses, and takes all others with it when it
ends. `main` receives plain values over a socket, and judges them: no line of a submission ever
runs in it, and an answer can't reach it, nor take back what it has sent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import socket
import time
import traceback
from pathlib import Path
from typing import Any

from distlab.autograder.intake.exercises import check_named
from distlab.autograder.isolation import answer, walls
from distlab.autograder.isolation.limits import Limits, exceeded, limit_memory
from distlab.autograder.isolation.question import JOB, REPORT
from distlab.autograder.isolation.records import BadRecord, called_of, left_out_of, unpack
from distlab.cluster.deadline import Deadline
from distlab.course.checks.check import Check
from distlab.course.checks.run_check import Called, judge_called, report_on
from distlab.course.results.stops import Stop, StopReason

_SAMPLE_SECS = 0.05
_CHUNK = 2**20
_TELL_SECS = 2.0  # for the lines at which an answer was still running
_JUDGING_SECS = 600  # for what takes a moment, also on a busy machine
_JUDGING_BYTES = 4 * 2**30  # an answer may be made to grow as it is judged
_LONGEST = 500


def main(folder: str) -> None:
    """Runs and judges one answer, and ends this process."""
    place = Path(folder)
    job = json.loads((place / JOB).read_text(encoding="utf-8"))
    check = check_named(job["check"], Path(job["extra_checks"]) if job["extra_checks"] else None)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    prints, stop = (os.open(place / name, flags) for name in ("prints", "stop"))
    # A file could be cut and a pipe be read by the answer, but what a socket has sent is gone.
    ours, theirs = socket.socketpair()
    launcher = os.fork()
    if not launcher:
        try:
            ours.close()
            os.dup2(prints, 2)
            _launch(check, job, place / "work", (theirs.fileno(), prints, stop))
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(1)
    theirs.close()
    results = _received(ours, launcher, most=answer.most_sent(len(job["seeds"])))
    printed = (place / "prints").read_bytes()
    calls, left_out = _calls(job, results, (place / "stop").read_bytes(), printed)
    if calls:
        reply = _judged(check, calls, left_out)
    else:
        lines = printed.decode(errors="replace").strip().splitlines()
        reply = {"problem": lines[-1] if lines else "nothing said"}
    part = place / f"{REPORT}.part"
    part.write_text(json.dumps(reply, default=lambda number: number.item()), encoding="utf-8")
    part.rename(place / REPORT)
    os._exit(0)


def _received(results: socket.socket, launcher: int, *, most: int) -> bytes:
    """Returns what an answer sends until the launcher ends; the rest of too much is refused."""
    data, is_open, has_ended = bytearray(), True, False
    while not has_ended or is_open:
        has_ended = has_ended or os.waitpid(launcher, os.WNOHANG)[0] == launcher
        if not is_open:
            time.sleep(_SAMPLE_SECS)
        elif select.select([results], [], [], 0 if has_ended else _SAMPLE_SECS)[0]:
            chunk = b""
            with contextlib.suppress(ConnectionResetError):
                chunk = results.recv(_CHUNK)
            data += chunk
            is_open = bool(chunk) and len(data) <= most
        elif has_ended:  # a process without walls outlives it, and holds the other end
            break
        if not is_open:
            results.close()
    return bytes(data)


def _launch(check: Check, job: dict[str, Any], home: Path, fds: tuple[int, int, int]) -> None:
    """Enters new namespaces, and waits for process 1 of them; in that it runs the answer."""
    results, prints, stop = fds
    limits, is_walled = Limits(**job["limits"]), job["is_walled"]
    walls.end_with_parent()
    if is_walled:
        walls.unshare()
    init = os.fork()
    if init:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(init, 0)[1]))
    walls.end_with_parent()
    if is_walled:
        walls.build_root(home, writable_bytes=limits.written_bytes)
        home = walls.HOME
    learner = os.fork()
    if not learner:
        try:
            walls.end_with_parent()
            fd = answer.leave_grader(home, limits, results, prints, is_walled=is_walled)
            answer.run(check, job, fd)
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(1)
    why = _watch(learner, limits, prints, is_walled=is_walled)
    with contextlib.suppress(OSError):  # where there are walls, all end with this process
        os.killpg(learner, signal.SIGKILL)
    if why is not None:
        os.write(stop, json.dumps(dataclasses.asdict(why)).encode())
    os._exit(0)


def _watch(learner: int, limits: Limits, prints: int, *, is_walled: bool) -> Stop | None:
    """Waits for the end of the learner's process, or for a limit that is exceeded."""
    deadline = Deadline(limits.secs + _TELL_SECS, lambda: [learner])
    while not deadline.has_passed():
        pid, status = os.waitpid(-1, os.WNOHANG)  # of orphans, too
        if os.fstat(prints).st_size > limits.printed_bytes:
            return Stop(StopReason.PRINTED, f"{limits.printed_bytes:,}")
        if pid == learner:
            code = os.waitstatus_to_exitcode(status)
            if code < 0:
                return Stop(StopReason.SIGNALLED, signal.Signals(-code).name)
            return Stop(StopReason.EXITED, f"{code}") if code else None
        if not pid:
            if is_walled and (stop := exceeded(limits)) is not None:
                with contextlib.suppress(OSError):  # its last line, if it is still there
                    os.kill(learner, answer.STOPPED)
                    time.sleep(_SAMPLE_SECS)
                return stop
            time.sleep(_SAMPLE_SECS)
    return Stop(StopReason.TIME, f"{limits.secs:g}")


def _calls(
    job: dict[str, Any], results: bytes, stopped: bytes, printed: bytes
) -> tuple[list[Called], tuple[str, ...]]:
    """Returns a call for each seed, or one that failed, and which cells were left out.

    There is none if the answer was not begun.
    """
    has_begun, seeds, calls, left_out = False, job["seeds"], list[Called](), tuple[str, ...]()
    stop = Stop(**json.loads(stopped)) if stopped else None
    try:
        for head, payload in unpack(results):
            if not has_begun:
                has_begun = "begun" in head
                continue
            if "left_out" in head:
                left_out = left_out_of(head)
                continue
            called = called_of(head, payload)
            if called.seed != [*seeds, None][len(calls)]:
                raise BadRecord("a different call")
            calls.append(called)
    except BadRecord:
        stop = stop or Stop(StopReason.NO_RECORD)
    if not has_begun or (calls and calls[-1].failure is not None):
        return calls, left_out
    if stop or len(calls) < len(seeds):
        stop = stop or Stop(StopReason.EXITED, "0")
        lines = answer.lines_in(printed, job["cells"])
        del calls[len(seeds) - 1 :]
        calls.append(Called(seeds[len(calls)], failure=stop.failure(lines)))
    return calls, left_out


def _judged(check: Check, calls: list[Called], left_out: tuple[str, ...]) -> dict[str, Any]:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_JUDGING_SECS)
    limit_memory(_JUDGING_BYTES)
    try:
        report = report_on(check, [judge_called(check, called) for called in calls])
        return {"report": dataclasses.asdict(report) | {"left_out": left_out}}
    except Exception as error:  # such as MemoryError, for an array that says it is huge
        return {"unjudged": f" ({type(error).__name__}: {error})"[:_LONGEST]}
