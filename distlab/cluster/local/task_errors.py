"""The errors of a `LocalCluster`: which task failed and why, or which did not finish and where.

raise failed("train() on worker:0, worker:1", failures, kernels)
raise late("train() on worker:0, worker:1", 60, tasks, kernels)
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from distlab.cluster.exit_status import how_it_ended
from distlab.cluster.local.kernel_group import KernelGroup
from distlab.cluster.local.rounds import TaskFailure
from distlab.cluster.local.stacks import main_stack
from distlab.cluster.ports import is_port_taken
from distlab.cluster.spec import TaskName
from distlab.errors import TaskFailed, TaskTimeout

_BUILT_AT = re.compile(r'\s*File "|Graph execution error:|Detected at node ')
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
RETURN_PLAIN = "return numbers, text, arrays, or lists and dicts of them (history.history, weights)"
_RESTART = "cluster.restart() starts again what was ended"

_IF = "An all-reduce in an if: a merge_call error, or a hang"
_SHARDS = "A layer that is cut into shards: no attribute handle"

# What TensorFlow and Keras say without naming the cause, and the pitfall that names it.
PITFALLS = {
    "Bad CRC-32 for file": "Workers that overwrite each other's file",
    "OOM when allocating tensor": "Out of memory",
    "Unable to parse tensor proto": "Unable to parse tensor proto",
    "'ShardedVariable' object has no attribute": _SHARDS,
    "`merge_call` called while defining a new graph": _IF,
    "destinations can not be empty": "Destinations cannot be empty",
    "replica_context().merge_call() calls": _IF,
    "the dataset only has": "Fewer files than workers: a hang at the first batch",
}


class PortTaken(TaskFailed):
    """Another program was first on the port of a task."""


def failed(asked: str, failures: Sequence[TaskFailure], kernels: KernelGroup) -> TaskFailed:
    """Returns the error for code that failed on a task."""
    first = failures[0]
    if is_port_taken(first.text):
        return PortTaken(
            asked=asked,
            found=f"TensorFlow's server of {first.task} could not start at "
            f"{kernels.spec.address_of(first.task)}: the port is taken",
            do="cluster.restart() starts all tasks on other ports",
            task=str(first.task),
            error=first.error,
            traceback=first.traceback,
        )
    found = f"{first.task} {_how(first)}{_detail(first, kernels)}"
    for other in failures[1:]:
        if other.rank == first.rank:  # and is no consequence, which may or may not be seen in time
            found += f"\n  and {other.task} {_how(other)}"
    return TaskFailed(
        asked=asked,
        found=found,
        do=_advice(first),
        pitfall=next((entry for text, entry in PITFALLS.items() if text in first.text), ""),
        task=str(first.task),
        error=first.error,
        traceback=first.traceback,
        is_loss=first.code is not None or first.rank > 0,
    )


def late(
    asked: str, timeout_secs: float, tasks: Sequence[TaskName], kernels: KernelGroup
) -> TaskTimeout:
    """Returns the error for code that did not finish in time; the tasks are still to be asked."""
    stacks = {task: kernels.stacks(task) for task in tasks}
    found = f"{_listed(tasks)} did not finish"
    for task, text in stacks.items():
        frames = main_stack(text) or "  (it does not say)"
        found += f"\n    {task} was here, the most recent call first:\n{_indent(frames)}"
    for task, probe in kernels.unanswering().items():
        found += f"\n    {task} does not answer at {probe}"
    return TaskTimeout(
        asked=f"{asked} within {timeout_secs:g} s",
        found=found,
        do=f"see what a task waits for, or give timeout_secs more; {_RESTART}",
        task=str(tasks[0]),
        traceback="\n".join(f"{task}\n{text}" for task, text in stacks.items()),
    )


def _how(failure: TaskFailure) -> str:
    if failure.code is not None:
        return how_it_ended(failure.code)
    first_line = _told(failure).partition("\n")[0]
    if failure.returned:
        return f"returned a {failure.returned}, which cannot come back: {first_line}"
    return f"raised {failure.error}" + (f": {first_line}" if first_line else "")


def _detail(failure: TaskFailure, kernels: KernelGroup) -> str:
    if failure.code is None:
        more = _told(failure).partition("\n")[2]
        where = failure.own_traceback.rstrip("\n")
        return "".join(f"\n{_indent(text)}" for text in (more, where) if text)
    if failure.code == -signal.SIGKILL:
        return ""
    words = kernels.last_words(failure.task)
    return f"; its last words:\n{words}" if words else ""


def _told(failure: TaskFailure) -> str:
    """Returns an error's text without the lines that say where a graph was built."""
    lines = [line for line in failure.text.splitlines() if line.strip()]
    lines = [line for line in lines if not _BUILT_AT.match(line)]
    return "\n".join(lines)


def _advice(failure: TaskFailure) -> str:
    if failure.returned:
        return RETURN_PLAIN
    if failure.code is None:
        advice = "repair what it ran; the other tasks were stopped"
    elif failure.code == -signal.SIGKILL:
        advice = "if nobody killed it, memory was short: use less of it, or fewer tasks"
    elif failure.code < 0:
        advice = "see cluster.logs() for what native code said"
    else:
        advice = "do not leave Python (exit, os._exit) in what tasks run"
    return f"{advice}; {_RESTART}"


def _listed(tasks: Sequence[TaskName]) -> str:
    return ", ".join(map(str, tasks))


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in _COLOUR.sub("", text).splitlines())
