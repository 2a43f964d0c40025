"""Describes how a cluster's tasks ended: in words, as an exit code, and which failed first.

how_it_ended(-9)                     # "was ended by SIGKILL"
exit_code(-9)                        # 137, as shells say it
error_in(output)                     # "ValueError: no", of the last traceback in it
first_cause({worker_0: 1, worker_1: -9}, output)   # worker:1: the other only lost its peer
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping

from distlab.cluster.spec import TaskName

# The code of a task that was told to end, and has saved: start it again.
PREEMPTED = 128 + signal.SIGTERM

# What TensorFlow says in a task that lost another one.
_LOST_PEER = (
    "UnavailableError",
    "Collective ops is aborted by",
    "Connection reset by peer",
    "Socket closed",
    "failed to connect to all addresses",
    "stopped sending heartbeats",
)


# The line of a traceback that names the error, and what an error of distlab's has found.
_ERROR = re.compile(
    r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)(?:\n  (found: .*))?", re.MULTILINE
)
_LONGEST_ERROR = 300


def how_it_ended(code: int) -> str:
    """Returns what follows the name of a task that ended with this code."""
    if code >= 0:
        preempted = " (preempted; it has saved)" if is_preempted(code) else ""
        return f"ended with exit code {code}{preempted}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def error_in(text: str) -> str:
    """Returns the error that ended what was written, in a line; "" without a traceback."""
    errors = _ERROR.findall(text)
    error = "; ".join(filter(None, errors[-1])) if errors else ""
    return f"{error[:_LONGEST_ERROR]}..." if len(error) > _LONGEST_ERROR else error


def is_preempted(code: int) -> bool:
    """Whether a task ended because it was told to, having saved."""
    return code == PREEMPTED


def exit_code(code: int) -> int:
    """Returns a task's end as a process of its own would say it: 128 and more for a signal."""
    return code if code >= 0 else 128 - code


def first_cause(
    failed: Mapping[TaskName, int], output: Callable[[TaskName], str]
) -> tuple[TaskName, bool]:
    """Returns which of some failed tasks failed by itself, and whether that is beyond doubt.

    A task that is killed takes its peers with it: they end a moment later, with an error that
    speaks of a peer. So first comes one that a signal ended, then one without such an error.
    """
    for task, code in failed.items():
        if code < 0:
            return task, True
    for task in failed:
        if not has_lost_a_peer(output(task)):
            return task, True
    return next(iter(failed)), False


def has_lost_a_peer(text: str) -> bool:
    """Whether what a task wrote means that another task was lost before."""
    return any(sign in text for sign in _LOST_PEER)


def has_raised(text: str) -> bool:
    """Whether a task has shown an error that does not come of another task."""
    return "Traceback (most recent call last)" in text and not has_lost_a_peer(text)
