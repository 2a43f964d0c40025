"""Records the output of each task while code runs, and shows it in task order.

    display = OrderedDisplay(["worker:0", "worker:1"])
    recorder = Recorder("worker:1", log=path)
    display.add("worker:1", recorder.add(message))   # waits until worker:0 has ended
    display.add("worker:1", recorder.end())

So the order never depends on which task is faster, and outputs can be compared. Of text that
carriage returns write over, as progress bars do, the last is kept.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Output = dict[str, Any]

# For a task and a cell. What is written beyond goes to the task's log, which has a bound too.
SHOWN_CHARACTERS = 100_000
LOGGED_CHARACTERS = 10_000_000

COLOUR = re.compile(r"\x1b\[([0-9;]*)m")
# Looked for where a line begins alone: else a long line takes the square of its length.
_OVERWRITTEN = re.compile(r"(?<![^\r\n])[^\r\n]*+\r(?=[^\r\n])")
_RICH = {"display_data", "update_display_data", "execute_result"}
# A widget's model lives in the kernel that made it: nobody could show its view here.
_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


class Recorder:
    """Turns a kernel's messages into the outputs of one task, up to a limit."""

    def __init__(self, task: str, *, log: Path) -> None:
        self._outputs: list[Output] = []
        self._task, self._log = task, log
        self._unfinished_lines = {"stdout": "", "stderr": ""}
        self._characters_left = SHOWN_CHARACTERS
        self._characters_cut = 0

    @property
    def last_line(self) -> str:
        """The last line that it wrote, also one that has no end yet; "" for none."""
        texts = [*map(text_of, self._outputs[-1:]), *self._unfinished_lines.values()]
        ends = [COLOUR.sub("", text.rstrip().rpartition("\n")[2]).strip() for text in texts]
        return next(filter(None, reversed(ends)), "")

    @property
    def outputs(self) -> list[Output]:
        """All that was recorded, as a notebook keeps it."""
        return [{k: v for k, v in output.items() if k != "transient"} for output in self._outputs]

    def add(self, message: dict[str, Any]) -> list[Output]:
        """Records a message and returns the outputs that it adds."""
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            return self._keep(*self._whole_lines(content["name"], content["text"]))
        if kind == "error":
            error = {name: content[name] for name in ("ename", "evalue", "traceback")}
            return self._keep(*self._end_lines(), {"output_type": "error", **error})
        if kind in _RICH:
            return self._keep(*self._end_lines(), self._rich(kind, content))
        return []

    def end(self) -> list[Output]:
        """Returns the remaining outputs, once the code has ended."""
        remaining = self._end_lines()
        if self._characters_cut:
            more = f"{self._characters_cut:,} more characters: cluster.logs({self._task!r})"
            remaining.append(stream("stdout", f"\n... {more}\n"))
        return self._keep(*remaining)

    def _keep(self, *outputs: Output) -> list[Output]:
        for output in outputs:
            last = self._outputs[-1] if self._outputs else {}
            if output["output_type"] == "update_display_data":
                for shown in self._outputs:
                    if shown.get("transient") == output["transient"]:
                        shown |= {name: output[name] for name in ("data", "metadata")}
            elif output["output_type"] == "stream" and output["name"] == last.get("name"):
                self._outputs[-1] = stream(output["name"], last["text"] + output["text"])
            else:
                self._outputs.append(dict(output))
        return list(outputs)

    def _whole_lines(self, name: str, text: str) -> list[Output]:
        text = _OVERWRITTEN.sub("", self._unfinished_lines[name] + text)
        whole, newline, self._unfinished_lines[name] = text.rpartition("\n")
        if len(self._unfinished_lines[name]) > self._characters_left:
            whole, newline, self._unfinished_lines[name] = text, "", ""
        return self._within_bounds(name, (whole + newline).replace("\r\n", "\n"))

    def _end_lines(self) -> list[Output]:
        unfinished, self._unfinished_lines = self._unfinished_lines, {"stdout": "", "stderr": ""}
        return [
            output
            for name, text in unfinished.items()
            for output in self._within_bounds(name, text.rstrip("\r"))
        ]

    def _within_bounds(self, name: str, text: str) -> list[Output]:
        shown, overflow = text[: self._characters_left], text[self._characters_left :]
        self._characters_left -= len(shown)
        if overflow and self._characters_cut < LOGGED_CHARACTERS:
            with self._log.open("a", encoding="utf-8", errors="replace") as log:
                log.write(overflow)
        self._characters_cut += len(overflow)
        return [stream(name, shown)] if shown else []

    def _rich(self, kind: str, content: dict[str, Any]) -> Output:
        data = {mime: value for mime, value in content["data"].items() if mime != _WIDGET_VIEW}
        output = {"output_type": kind, "data": data, "metadata": content["metadata"]}
        if kind == "execute_result":
            output["execution_count"] = content["execution_count"]
        if display_id := content.get("transient", {}).get("display_id"):
            output["transient"] = {"display_id": f"{self._task}/{display_id}"}
        return output


def stream(name: str, text: str) -> Output:
    """Returns text as an output."""
    return {"output_type": "stream", "name": name, "text": text}


def text_of(output: Output) -> str:
    """Returns an output as text, with a newline at the end if it has any."""
    kind = output.get("output_type")
    if kind == "stream":
        return str(output["text"])
    if kind == "error":
        return "\n".join(output["traceback"]).rstrip("\n") + "\n"
    return str(output["data"].get("text/plain", "")) + "\n"


class OrderedDisplay:
    """Shows outputs in the order of tasks, each under its name: live for one, then the next."""

    def __init__(self, tasks: Iterable[str]) -> None:
        self._waiting: dict[str, list[Output]] = {task: [] for task in tasks}
        self._ended: set[str] = set()
        self._current_task, self._line_is_open = "", False

    def add(self, task: str, outputs: Iterable[Output], *, is_last: bool = False) -> None:
        """Shows outputs once the task's turn has come, which `is_last` ends."""
        self._waiting[task] += outputs
        if is_last:
            self._ended.add(task)
        while self._waiting:
            task = next(iter(self._waiting))
            for output in self._waiting[task]:
                if self._current_task != task:
                    self._show_name(task)
                _show(output)
                self._line_is_open = not output.get("text", "\n").endswith("\n")
            self._waiting[task] = []
            if task not in self._ended:
                return
            del self._waiting[task]

    def refresh(self) -> None:
        """Shows nothing: what may be shown is."""

    def _show_name(self, task: str) -> None:
        self._current_task = task
        if self._line_is_open and shell() is None:  # there a name stands below other text
            sys.stdout.write("\n")
        display({"data": {"text/plain": task, "text/html": f"<b>{task}</b>"}})


def shell() -> Any:
    """Returns the IPython shell of this process; None without one."""
    ipython: Any = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython else None


def _show(output: Output) -> None:
    """Shows one output in this process: in the cell that runs, or on its standard streams."""
    kind = output["output_type"]
    if kind in ("stream", "error"):
        file = sys.stdout if output.get("name") == "stdout" else sys.stderr
        file.write(text_of(output))
        file.flush()
    else:
        display(output)


def display(output: Output) -> None:
    """Shows an output with data in the cell that runs; where there is no notebook, its text."""
    if shell() is None:
        sys.stdout.write(text_of(output))
        return
    from IPython.display import publish_display_data

    publish_display_data(
        output["data"],
        output.get("metadata"),
        transient=output.get("transient"),
        update=output.get("output_type") == "update_display_data",
    )
