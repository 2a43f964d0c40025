"""The status of a cluster: for each task its state, since when, where it is and its last line.

    status_of(kernels)            # prints as a table, and shows as one in a notebook

A task that runs code and computes nothing waits. Where it waits is read from its stack.
"""

from __future__ import annotations

import html
import time
from dataclasses import dataclass

from distlab.cluster.deadline import computes
from distlab.cluster.exit_status import how_it_ended
from distlab.cluster.local.kernel_group import KernelGroup
from distlab.cluster.local.task_errors import Wait, wait_of
from distlab.cluster.spec import TaskName

_COLUMNS = ("task", "state", "for", "where", "last line printed", "device", "pid", "address")
_LONGEST_LINE = 60
_CELL = "text-align:left;vertical-align:top;padding:0.2em 0.8em"


@dataclass(frozen=True, kw_only=True)
class TaskStatus:
    """The state of one task.

    Attributes:
        task: Its name, "worker:0".
        pid: Its process.
        state: "idle", "running", "waiting" (its code runs, and no thread computes), "waiting in
            TensorFlow" (most often for other tasks, in a collective), or how it ended.
        address: Where its TensorFlow server listens once it runs; "" for an evaluator.
        device: What it computes on: "CPU", or which GPU is its own.
        secs: For how long it has run what it was sent, or been idle; None if it has ended.
        place: The line of yours that it is in, while its code runs; "" where none is known.
        last_line: The last line that it printed.
    """

    task: str
    pid: int
    state: str
    address: str
    device: str
    secs: float | None = None
    place: str = ""
    last_line: str = ""

    @property
    def row(self) -> tuple[str, ...]:
        """Its row in a table with `_COLUMNS`."""
        last = self.last_line
        last = last if len(last) <= _LONGEST_LINE else f"{last[: _LONGEST_LINE - 3]}..."
        since = "" if self.secs is None else f"{self.secs:.0f} s"
        known = (self.task, self.state, since, self.place, last)
        return *known, self.device, str(self.pid), self.address


@dataclass(frozen=True)
class ClusterStatus:
    """The states of a cluster's tasks, in task order, and a note on all of them."""

    tasks: tuple[TaskStatus, ...]
    note: str = ""

    def __repr__(self) -> str:
        rows = self._rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([*lines, *filter(None, [self.note])])

    def _repr_html_(self) -> str:
        names, *rows = self._rows()
        head = "".join(f'<th scope="col" style="{_CELL}">{name}</th>' for name in names)
        body = "".join(
            "<tr>"
            f'<th scope="row" style="{_CELL}">{first}</th>'
            + "".join(f'<td style="{_CELL}">{html.escape(text)}</td>' for text in rest)
            + "</tr>"
            for first, *rest in rows
        )
        note = f"<p>{html.escape(self.note)}</p>" if self.note else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"

    def _rows(self) -> list[tuple[str, ...]]:
        """Returns the names of the columns in which something stands, and each task's row."""
        columns = zip(_COLUMNS, *(task.row for task in self.tasks), strict=True)
        return [*zip(*(column for column in columns if any(column[1:])), strict=True)]


def status_of(kernels: KernelGroup) -> ClusterStatus:
    """Returns what each task is doing; of those that run code it asks where they are."""
    tasks = kernels.spec.tasks_in_order()
    return ClusterStatus(
        tuple(_status_of_task(kernels, task) for task in tasks), note=kernels.gpus.note
    )


def _status_of_task(kernels: KernelGroup, task: TaskName) -> TaskStatus:
    kernel, pid = kernels.by_task[task], kernels.group.pid(task)
    code, wait = kernels.group.exit_code(task), Wait(task=str(task))
    if code is not None:
        state = how_it_ended(code)
    elif kernel.is_busy:
        computed = computes(pid)
        wait = wait_of(str(task), kernels.stacks(task))
        waiting = "waiting in TensorFlow" if wait.is_in_tensorflow else "waiting"
        state = "running" if computed or computes(pid) else waiting
    else:
        state = "idle"
    return TaskStatus(
        task=str(task),
        pid=pid,
        state=state,
        address=kernels.spec.address_of(task) or "",
        device=kernels.gpus.device_of(task),
        secs=None if code is not None else time.monotonic() - kernel.since,
        place=wait.place,
        last_line=kernel.last_line,
    )
