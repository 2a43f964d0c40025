"""Supervises one answer: starts it, watches its limits, and ends all that it started.

    main = "distlab.autograder.isolation.supervisor:main"
    keeper.spawn(call=main, args=[work, tasks], stdin=job, stdout=told)

There are three processes: `main`, a task of the keeper, ends with it. It forks the watching one,
which ends with `main` but not before it has ended everything below, and that forks the asked one,
where the learner's code is. The asked one reaches the others through one pipe. An answer that makes
a cluster gets its tasks from a fourth, forked when it is wanted, below the watching one as well.

This is no sandbox: code that means harm has the user's rights, and can read and end what they can.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from distlab.autograder.isolation.fork_server import ForkServer
from distlab.autograder.isolation.limits import Limits, Sampler, hold
from distlab.autograder.isolation.messages import head_of, pack
from distlab.autograder.isolation.monitor import Monitor
from distlab.autograder.isolation.process_tree import (
    adopt_orphans,
    end_all_below,
    end_with_parent,
    hide,
)
from distlab.autograder.isolation.runner import Sender, answer, look_on_tasks
from distlab.warm.process import ADDRESS_VARIABLE
from distlab.warm.server import settings

_FIRST_KEPT_FD = 3
_OUT_OF_THE_WAY_FD = 100
_KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "VIRTUAL_ENV")
_KEPT_PREFIXES = ("TF_", "TF2_", "KERAS_", "OMP_")  # some are read late


def main(work: str, tasks: str) -> None:
    """Reads the job from standard input, has it watched, and writes what came to standard output.

    It returns only in a task of the answer, which then ends as a Python does.
    """
    with open(0, "rb", closefd=False) as stdin:
        job = json.loads(stdin.read())
    adopt_orphans()
    hide(True)
    here = os.getpid()
    watching = os.fork()
    if not watching:
        os.setsid()  # what ends the task's group must not end what cleans up
        end_with_parent(signal.SIGTERM, parent_pid=here)
        _watch(job, Path(work), ForkServer(Path(tasks)))
        return
    code = _code_of(watching)
    end_all_below()  # only where they have ended the one that watched
    os._exit(abs(code))


def _code_of(watching: int) -> int:
    """Waits for the end of the process that watches; one that an answer has stopped is ended."""
    while True:
        _, status = os.waitpid(watching, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            return os.waitstatus_to_exitcode(status)
        os.kill(watching, signal.SIGKILL)


def _watch(job: dict[str, Any], work: Path, tasks: ForkServer) -> None:
    """Asks, watches, writes what came, and ends; returns only in a task of the answer."""
    code, asked, here = 1, None, os.getpid()
    adopt_orphans()
    signal.signal(signal.SIGTERM, _leave)
    try:
        limits, token = Limits(**job["limits"]), secrets.token_hex(16)
        (results, to_results), (prints, to_prints) = os.pipe(), os.pipe()
        notes, to_notes = os.pipe()
        began = time.monotonic()
        asked = os.fork()
        if not asked:
            try:
                _leave_behind(work, limits, tasks, prints=to_prints, kept=[to_results], above=here)
                answer(job, Sender(_FIRST_KEPT_FD, token), work)
            finally:
                os._exit(1)
        os.close(to_results)
        monitor = Monitor(
            job,
            token,
            asked=asked,
            results=results,
            prints=prints,
            notes=notes,
            tasks=tasks.socket,
            sampler=Sampler(limits, work),
        )
        while monitor.run():
            if not os.fork():
                kept = [tasks.socket.fileno(), tasks.owner, to_notes]
                _leave_behind(work, limits, tasks, prints=to_prints, kept=kept, above=here)
                look_on_tasks(job, _FIRST_KEPT_FD + 2, work)
                tasks.serve(_FIRST_KEPT_FD, _FIRST_KEPT_FD + 1)
        secs = time.monotonic() - began
        end_all_below(asked)
        stopped = None if monitor.stopped is None else monitor.stopped.told()
        told = {"stopped": stopped, "review": monitor.review, "secs": secs}
        _write(pack({"told": told}))
        for called in monitor.called:
            _write(pack(head_of(called), called.payload))
        code = 0
    finally:
        if os.getpid() == here:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            end_all_below(asked)
            os._exit(code)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(1)


def _write(data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(1, rest) :]


def _leave_behind(
    work: Path,
    limits: Limits,
    tasks: ForkServer,
    *,
    prints: int,
    kept: Sequence[int],
    above: int,
) -> None:
    """Makes this process one of the learner's: nothing of the grader's is in it but `kept`."""
    os.setsid()
    end_with_parent(signal.SIGKILL, parent_pid=above)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    fds = [null, prints, prints, *kept]
    fds = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _OUT_OF_THE_WAY_FD) for fd in fds]
    for target, fd in enumerate(fds):
        os.dup2(fd, target, inheritable=target < _FIRST_KEPT_FD)
    os.closerange(len(fds), os.sysconf("SC_OPEN_MAX"))
    os.chdir(work)
    scrub(work, tasks.address)
    hold(limits)
    hide(False)  # it may look at itself
    sys.dont_write_bytecode = True
    sys.path[0] = str(work)


def scrub(folder: Path, tasks: str) -> None:
    """Takes out of the environment all that is not for a learner's code.

    Nothing leads to the grader's own keeper: what that starts is outside of every limit.
    """
    kept = settings(os.environ) | {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or name.startswith(_KEPT_PREFIXES)
    }
    os.environ.clear()
    # Without a GPU: what is left of one's memory for several answers beside each other is chance.
    os.environ.update(kept, HOME=str(folder), TMPDIR=str(folder), CUDA_VISIBLE_DEVICES="-1")
    os.environ[ADDRESS_VARIABLE] = tasks
    tempfile.tempdir = None
