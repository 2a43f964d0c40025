"""The errors of a `LocalCluster`: which task failed and why, or which did not finish and where.

raise failed("train() on worker:0, worker:1", failures, kernels)
raise timed_out("train() on worker:0, worker:1", 60, tasks, kernels)
raise interrupted("a cell on worker:0, worker:1", tasks, {}, kernels)
read_waits(error, ["worker:0", "worker:1"])       # the user's own lines of such an error
"""

from __future__ import annotations

import linecache
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from distlab.cluster.exit_status import has_lost_a_peer, how_it_ended
from distlab.cluster.local.kernel_group import KernelGroup
from distlab.cluster.local.outputs import COLOUR
from distlab.cluster.local.remote_calls import UnsendableResult
from distlab.cluster.ports import is_port_taken
from distlab.cluster.spec import TaskName
from distlab.errors import Interrupted, TaskFailed, TaskTimeout, is_installed

_BUILT_AT = re.compile(r'\s*File "|Graph execution error:|Detected at node ')
RETURN_PLAIN = "return numbers, text, arrays, or lists and dicts of them (history.history, weights)"
_RESTART = "cluster.restart() starts again what was ended"

_CONDITIONAL_ALL_REDUCE = "An all-reduce in an if: a merge_call error, or a hang"
_SHARDED_LAYER = "A layer that is cut into shards: no attribute handle"

# What TensorFlow and Keras say without naming the cause, and the pitfall that names it.
PITFALLS = {
    "Bad CRC-32 for file": "Workers that overwrite each other's file",
    "OOM when allocating tensor": "Out of memory",
    "Unable to parse tensor proto": "Unable to parse tensor proto",
    "'ShardedVariable' object has no attribute": _SHARDED_LAYER,
    "`merge_call` called while defining a new graph": _CONDITIONAL_ALL_REDUCE,
    "destinations can not be empty": "Destinations cannot be empty",
    "replica_context().merge_call() calls": _CONDITIONAL_ALL_REDUCE,
    "the dataset only has": "Fewer files than workers: a hang at the first batch",
}

_FRAME = re.compile(r'File "(.+?)", line (\d+) in (\S+)')


@dataclass(frozen=True, kw_only=True)
class TaskFailure:
    """How a task failed: by an error with its traceback, or because its process ended."""

    task: TaskName
    error: str = ""
    text: str = ""
    traceback: str = ""
    own_traceback: str = ""  # the part that a message shows
    code: int | None = None  # of the process; None where it still runs

    @property
    def rank(self) -> int:
        """0 for what needs no other cause; more for what another task's failure brings about."""
        if self.code is not None:
            return int(self.code == -signal.SIGABRT)  # TensorFlow may abort when a peer is lost
        # The error of `fit` is raised from TensorFlow's, of which only the traceback speaks.
        return 2 if has_lost_a_peer(f"{self.error}: {self.text}\n{self.traceback}") else 0

    @property
    def is_unsendable(self) -> bool:
        """Whether the code ended well, with a result that cannot come back."""
        return self.error == UnsendableResult.__name__

    def __str__(self) -> str:
        if self.code is not None:
            return f"{self.task} {how_it_ended(self.code)}"
        first_line = self.lines[0] if self.lines else ""
        if self.is_unsendable:
            return f"{self.task} {first_line}"
        return f"{self.task} raised {self.error}" + (f": {first_line}" if first_line else "")

    @property
    def lines(self) -> list[str]:
        """The error's text without the lines that say where a graph was built."""
        lines = [line for line in self.text.splitlines() if line.strip()]
        return [line for line in lines if not _BUILT_AT.match(line)]

    @property
    def is_loss(self) -> bool:
        """Whether it tells of a task that was lost, and not of an error in the code."""
        return self.code is not None or self.rank > 0

    def advice(self, stopped: Sequence[TaskName]) -> str:
        """Returns the advice for this kind of end, and for the others that were stopped."""
        if self.is_unsendable:
            return RETURN_PLAIN
        if self.code is None and not stopped:
            return "repair what it ran, and run it again; all tasks were kept"
        if self.code is None:
            advice = f"repair what it ran; {_did_not_come_back(stopped)}"
        elif self.code == -signal.SIGKILL:
            advice = "if nobody killed it, memory was short: use less of it, or fewer tasks"
        elif self.code < 0:
            advice = "see cluster.logs() for what native code said"
        else:
            advice = "do not leave Python (exit, os._exit) in what tasks run"
        return f"{advice}; {_RESTART}"


def failed(
    asked: str,
    failures: Sequence[TaskFailure],
    kernels: KernelGroup,
    *,
    stopped: Sequence[TaskName],
) -> TaskFailed:
    """Returns the error for code that failed on a task, and for which others were stopped."""
    first = failures[0]
    if is_port_taken(first.text):
        return TaskFailed(
            asked=asked,
            found=f"TensorFlow's server of {first.task} could not start at "
            f"{kernels.spec.address_of(first.task)}: the port is taken",
            do="cluster.restart() starts all tasks on other ports",
            task=str(first.task),
            error=first.error,
            traceback=first.traceback,
        )
    found = f"{first}{_detail(first, kernels)}"
    for other in failures[1:]:
        if other.rank == first.rank:  # and is no consequence, which may or may not be seen in time
            found += f"\n  and {other}"
    return TaskFailed(
        asked=asked,
        found=found,
        do=first.advice(stopped),
        pitfall=next((entry for text, entry in PITFALLS.items() if text in first.text), ""),
        task=str(first.task),
        error=first.error,
        traceback=first.traceback,
        is_loss=first.is_loss,
    )


def _detail(failure: TaskFailure, kernels: KernelGroup) -> str:
    if failure.code is None:
        own = "" if failure.is_unsendable else failure.own_traceback.rstrip("\n")
        parts = ("\n".join(failure.lines[1:]), own)
        return "".join(f"\n{_indent(text)}" for text in parts if text)
    words = "" if failure.code == -signal.SIGKILL else kernels.last_words(failure.task)
    return f"; its last words:\n{words}" if words else ""


def timed_out(
    asked: str, timeout_secs: float, tasks: Sequence[TaskName], kernels: KernelGroup
) -> TaskTimeout:
    """Returns the error for code that did not finish in time; the tasks are still to be asked."""
    stacks = {task: kernels.stacks(task) for task in tasks}
    found = f"{join_names(tasks)} did not finish"
    for task, stack in stacks.items():
        found += f"\n    {wait_of(str(task), stack)}"
    for task, probe in kernels.unanswering().items():
        found += f"\n    {task} does not answer at {probe}"
    return TaskTimeout(
        asked=f"{asked} within {timeout_secs:g} s",
        found=found,
        do="see what a task waits for (the error's `traceback` has every frame), or raise "
        f"timeout_secs; {_RESTART}",
        task=str(tasks[0]),
        traceback="\n".join(f"{task}\n{text}" for task, text in stacks.items()),
    )


def interrupted(
    asked: str, tasks: Sequence[TaskName], stacks: Mapping[TaskName, str], kernels: KernelGroup
) -> Interrupted:
    """Returns the error for code that an interrupt ended.

    Args:
        asked: The code and its tasks.
        tasks: Those that it was sent to.
        stacks: Where the tasks were that didn't heed the interrupt.
        kernels: All tasks of the cluster.
    """
    running = kernels.group.running()
    kept = [task for task in tasks if task in running]
    stopped = [task for task in tasks if task not in running]
    parts, do = [], "cluster.restart() and make the strategy again"
    if kept:
        were, their = ("was", "its") if len(kept) == 1 else ("were", "their")
        parts.append(f"{join_names(kept)} {were} kept, with {their} variables")
        first = f"copy what you need from {join_names(kept)}, then"
        do = f"{first if stopped else 'go on; if a collective then hangs or fails,'} {do}"
    if stopped:
        parts.append(_did_not_come_back(stopped))
    places = [f"\n    {wait_of(str(task), stack)}" for task, stack in stacks.items()]
    return Interrupted(asked=asked, found="; ".join(parts) + "".join(places), do=do)


def _did_not_come_back(stopped: Sequence[TaskName]) -> str:
    were, they = ("was", "it") if len(stopped) == 1 else ("were", "they")
    return f"{join_names(stopped)} {were} stopped, for {they} did not come back"


@dataclass(frozen=True, kw_only=True)
class Wait:
    """The place in its code where a task is when time runs out.

    Attributes:
        task: Its name.
        is_over: Whether it has finished, and waits for nothing.
        function: The user's function that it is in; "" where that cannot be told.
        file: The function's file, or what stands for it in a notebook.
        line: The line there.
        code: That line's text, where it is known.
        inside: The function of a library that it called there; "" for none.
        is_in_tensorflow: Whether it is in TensorFlow's native code, which also waits for others.
    """

    task: str
    is_over: bool = False
    function: str = ""
    file: str = ""
    line: int = 0
    code: str = ""
    inside: str = ""
    is_in_tensorflow: bool = False

    def __str__(self) -> str:
        if self.is_over:
            return f"{self.task} has finished"
        return f"{self.task} waits in {self.place}" if self.place else f"{self.task} waits"

    @property
    def place(self) -> str:
        """The line, for a sentence: "train, line 3, inside fit: model.fit(x)"; "" for none."""
        if not self.function:
            return ""
        inside = f", inside {self.inside}" if self.inside else ""
        code = f": {self.code}" if self.code else ""
        return f"{self.function}, line {self.line}{inside}{code}"


def read_waits(error: TaskTimeout, tasks: Iterable[str]) -> tuple[Wait, ...]:
    """Returns on which of the user's lines each task was, whatever TensorFlow's version."""
    names = list(tasks)
    parts = re.split(rf"^({'|'.join(map(re.escape, names))})$", error.traceback, flags=re.MULTILINE)
    stacks = dict(zip(parts[1::2], parts[2::2], strict=True))
    return tuple(
        wait_of(name, stacks[name]) if name in stacks else Wait(task=name, is_over=True)
        for name in names
    )


def wait_of(task: str, stack: str) -> Wait:
    """Returns the user's line that a task's stack shows."""
    inside = ""
    main_thread = stack.rpartition("(most recent call first):")[2]  # the last in the dump
    frames = _FRAME.findall(main_thread)
    is_in_tensorflow = "/tensorflow/" in frames[0][0] if frames else False
    for file, number, function in frames:
        if not is_installed(file):
            line = int(number)
            code = linecache.getline(file, line).strip()
            return Wait(
                task=task,
                function=function,
                file=file,
                line=line,
                code=code,
                inside=inside,
                is_in_tensorflow=is_in_tensorflow,
            )
        inside = function
    return Wait(task=task)


def join_names(tasks: Sequence[TaskName]) -> str:
    """Returns the names of tasks, for a sentence."""
    return ", ".join(map(str, tasks))


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in COLOUR.sub("", text).splitlines())
