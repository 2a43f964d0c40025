"""Finds, stops and kills a process together with all that it started.

    adopt_orphans()                    # here: what loses its parent below comes to this process
    end_with_parent(signal.SIGKILL)    # there, right after the fork
    below(os.getpid())                 # all that run now
    end_all_below()                    # none is left

Linux only. Elsewhere the functions do nothing, and `end_all_below` ends one process group.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36
_PATIENCE_SECS = 60.0
_PAUSE_SECS = 0.002


def adopt_orphans() -> None:
    """Makes this process the parent of whatever below it loses its own."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(number: int, *, parent_pid: int) -> None:
    """Asks the kernel to send this process a signal when its parent ends, whatever ends that."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent_pid:  # it ended before the line above
        os._exit(1)


def hide(hidden: bool) -> None:
    """Keeps other processes of this user away from this one's memory and open files, or not."""
    _prctl(_PR_SET_DUMPABLE, int(not hidden))


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def below(pid: int, *, most: int | None = None) -> list[int]:
    """Returns the processes below a process, those that ended and were not waited for included."""
    found: list[int] = []
    todo = [pid]
    while todo and (most is None or len(found) < most):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            for thread in Path(f"/proc/{todo.pop()}/task").iterdir():
                children = [int(one) for one in (thread / "children").read_text().split()]
                found += children
                todo += children
    return found


def above(pid: int) -> list[int]:
    """Returns the parent of a process, its parent and so on; only the parent where /proc is not."""
    found = [os.getppid()] if pid == os.getpid() else []
    with contextlib.suppress(OSError):  # one has ended meanwhile
        while pid > 1:
            pid = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
            found += {pid} - {0, *found}
    return found


def end_all_below(group: int | None = None) -> None:
    """Kills every process below this one and waits for their ends.

    They are all stopped first: what forks for ever would else be ahead of the kills.
    """
    deadline = time.monotonic() + _PATIENCE_SECS
    if group is not None:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    while _reap() and time.monotonic() < deadline:
        kill_below(os.getpid())
        time.sleep(_PAUSE_SECS)


def kill_below(pid: int) -> None:
    """Kills every process below a process, once; does not wait for their ends."""
    stopped: set[int] = set()
    while fresh := set(below(pid)) - stopped:
        _send(fresh, signal.SIGSTOP)
        stopped |= fresh
    _send(stopped, signal.SIGKILL)


def _send(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def _reap() -> bool:
    """Takes the ends of children that have ended; returns whether there are others."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True
