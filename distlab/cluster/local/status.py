"""What the tasks of a cluster are doing.

status_of(kernels)         # worker:0  pid 4711  busy  CPU  127.0.0.1:20001
"""

from __future__ import annotations

import html
from dataclasses import dataclass

from distlab.cluster.exit_status import how_it_ended
from distlab.cluster.local.kernel_group import KernelGroup


@dataclass(frozen=True, kw_only=True)
class TaskStatus:
    """What one task is doing.

    Attributes:
        task: Its name, "worker:0".
        pid: Its process.
        state: "idle", "busy", or how it ended.
        address: Where its TensorFlow server listens once it runs; "" for an evaluator.
        device: What it computes on: "CPU", or which GPU is its own.
    """

    task: str
    pid: int
    state: str
    address: str
    device: str


@dataclass(frozen=True)
class ClusterStatus:
    """What the tasks of a cluster are doing.

    Attributes:
        tasks: A status for each, in task order.
        note: What is to be said of the cluster as a whole.
    """

    tasks: tuple[TaskStatus, ...]
    note: str = ""

    def _rows(self) -> list[tuple[str, ...]]:
        rows = [(t.task, f"pid {t.pid}", t.state, t.device, t.address) for t in self.tasks]
        return [tuple(map(str, row)) for row in rows]

    def __repr__(self) -> str:
        rows = self._rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        return "\n".join([*lines, *filter(None, [self.note])])

    def _repr_html_(self) -> str:
        rows = "".join(
            "<tr>" + "".join(f"<td style='text-align:left'>{html.escape(c)}</td>" for c in row)
            for row in self._rows()
        )
        note = f"<p>{html.escape(self.note)}</p>" if self.note else ""
        return f"<table>{rows}</table>{note}"


def status_of(kernels: KernelGroup) -> ClusterStatus:
    """Returns what each task of a cluster is doing."""
    ended = kernels.group.ended()
    states = {
        task: "busy" if kernel.is_busy else "idle" for task, kernel in kernels.by_task.items()
    }
    states |= {task: how_it_ended(code) for task, code in ended.items()}
    return ClusterStatus(
        tuple(
            TaskStatus(
                task=str(task),
                pid=kernels.group.pid(task),
                state=state,
                address=kernels.spec.address_of(task) or "",
                device=kernels.gpus.device_of(task),
            )
            for task, state in states.items()
        ),
        note=kernels.gpus.note,
    )
