"""Shows what several tasks wrote, one task after the other, each under its name.

    shown = InTurn(["worker:0", "worker:1"])
    shown.add("worker:1", output)        # waits
    shown.add("worker:0", output)        # is shown at once
    shown.end("worker:0")                # now what waits of worker:1, and what it adds later

So the order never depends on which task is faster, and outputs can be compared.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from distlab.cluster.local.output_recorder import Output


class InTurn:
    """Shows outputs in the order of tasks: live for one of them, then the next."""

    def __init__(self, tasks: Iterable[str]) -> None:
        self._waiting: dict[str, list[Output]] = {task: [] for task in tasks}
        self._ended: set[str] = set()
        self._named, self._line_is_open = "", False

    def add(self, task: str, outputs: Iterable[Output]) -> None:
        """Shows outputs once the task's turn has come."""
        self._waiting[task] += outputs
        self._show()

    def end(self, task: str) -> None:
        """Lets the next task have its turn."""
        self._ended.add(task)
        self._show()

    def _show(self) -> None:
        while self._waiting:
            task = next(iter(self._waiting))
            for output in self._waiting[task]:
                if self._named != task:
                    self._named = task
                    _show_name(task, on_new_line=self._line_is_open)
                show(output)
                self._line_is_open = not output.get("text", "\n").endswith("\n")
            self._waiting[task] = []
            if task not in self._ended:
                return
            del self._waiting[task]


def show(output: Output) -> None:
    """Shows one output in this process: in the cell that runs, or on its standard streams."""
    kind = output["output_type"]
    if kind == "stream":
        stream = sys.stderr if output["name"] == "stderr" else sys.stdout
        stream.write(output["text"])
        stream.flush()
    elif kind == "error":
        show({"output_type": "stream", "name": "stderr", "text": _joined(output["traceback"])})
    else:
        _display(output)


def _shell() -> Any:
    ipython: Any = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython else None


def _joined(lines: list[str]) -> str:
    return "\n".join(lines).rstrip("\n") + "\n"


def _show_name(task: str, *, on_new_line: bool) -> None:
    if on_new_line and _shell() is None:  # there a name stands below other text
        sys.stdout.write("\n")
    _display({"data": {"text/plain": task, "text/html": f"<b>{task}</b>"}})


def _display(output: Output) -> None:
    if _shell() is None:
        sys.stdout.write(f"{output['data'].get('text/plain', '')}\n")
        return
    from IPython.display import publish_display_data

    publish_display_data(
        output["data"],
        output.get("metadata"),
        transient=output.get("transient"),
        update=output.get("output_type") == "update_display_data",
    )
