"""Shows what tasks print in a notebook side by side, and once where several print the same.

    columns = OutputColumns(["worker:0", "worker:1"], status=cluster.status)
    columns.add("worker:1", recorder.add(message))
    columns.refresh()          # while they run: the last lines of each, and in a silence the status
    columns.add("worker:1", recorder.end(), is_last=True)

It is one output with HTML, which needs no JavaScript, and with a text that says the same. Tasks
stand under each other where their lines are too long for columns, and from four blocks on each can
be folded. What is no text, such as a picture, makes it an `OrderedDisplay`.
"""

from __future__ import annotations

import html
import itertools
import json
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from distlab.cluster.local.outputs import (
    COLOUR,
    OrderedDisplay,
    Output,
    display,
    stream,
    text_of,
)
from distlab.cluster.local.status import ClusterStatus

_REFRESH_SECS = 0.2
# After so long without output the status is shown, then after twice the time: a look at where a
# task is interrupts its system calls.
QUIET_SECS = 10.0
_LIVE_LINES = 10
_MOST_COLUMNS = 3
_TEXTS = {"text/plain", "text/html"}

# Those of JupyterLab's theme, mixed with the text's own colour so that light and dark are legible.
_COLOURS = {
    name: f"color-mix(in srgb,var(--jp-{name}-color1,{other}) 60%,currentColor)"
    for name, other in {
        "error": "red",
        "success": "green",
        "warn": "orange",
        "info": "blue",
    }.items()
}
_STYLES = {
    1: ("font-weight", "bold"),
    22: ("font-weight", ""),
    31: ("color", _COLOURS["error"]),
    32: ("color", _COLOURS["success"]),
    33: ("color", _COLOURS["warn"]),
    34: ("color", _COLOURS["info"]),
    36: ("color", _COLOURS["info"]),
    39: ("color", ""),
}
_PALETTES = (38, 48)  # what follows is the number of a colour
_ROW = "display:flex;flex-wrap:wrap;gap:0.6em 2em"
_BLOCK = "min-width:0;max-width:100%;padding-left:0.8em"
_BLOCK += ";border-left:3px solid var(--jp-border-color1,#8886);white-space:pre-wrap"
_BLOCK += ";overflow-wrap:anywhere"
_BLOCK += ";font:var(--jp-code-font-size,0.85em)/1.35 var(--jp-code-font-family,monospace)"
_STDERR = "background:var(--jp-rendermime-error-background,#d443)"


class OutputColumns:
    """Shows outputs of several tasks as one display of a notebook's cell."""

    def __init__(self, tasks: Iterable[str], *, status: Callable[[], ClusterStatus]) -> None:
        self._outputs: dict[str, list[Output]] = {task: [] for task in tasks}
        self._open = set(self._outputs)
        self._ordered: OrderedDisplay | None = None
        self._id, self._status, self._quiet_secs = uuid.uuid4().hex, status, QUIET_SECS
        self._is_shown, self._has_changed, self._shown_at = False, False, time.monotonic()

    def add(self, task: str, outputs: Sequence[Output], *, is_last: bool = False) -> None:
        """Adds outputs of a task; all are shown in full once each task has ended."""
        if self._ordered:
            self._ordered.add(task, outputs, is_last=is_last)
            return
        self._outputs[task] += outputs
        self._has_changed |= bool(outputs)
        if is_last:
            self._open.discard(task)
        if not all(map(_is_text, outputs)):
            self._show_in_order()
        elif not self._open:
            self._show()

    def refresh(self) -> None:
        """Shows the last lines of each task if there are new ones, and not too often."""
        if not self._open or self._ordered:
            return
        waited = time.monotonic() - self._shown_at
        if self._has_changed and waited > _REFRESH_SECS:
            self._show(_LIVE_LINES)
        elif waited > self._quiet_secs:
            silence = f"Nothing was printed for {waited:.0f} s. Where the tasks are:"
            self._show(_LIVE_LINES, silence, self._status())
            self._quiet_secs *= 2

    def _show(
        self, last_lines: int | None = None, note: str = "", status: ClusterStatus | None = None
    ) -> None:
        self._shown_at, self._has_changed = time.monotonic(), False
        blocks = _blocks(self._outputs, last_lines)
        texts = [*(block.text for block in blocks), *([note, repr(status)] if status else [])]
        if not texts:
            if self._is_shown:
                self._publish({})
            return
        if last_lines or len(blocks) <= _MOST_COLUMNS:
            parts = "".join(f'<div style="{_BLOCK}">{block.html}</div>' for block in blocks)
            body = f'<div style="{_ROW}">{parts}</div>'
        else:
            opened = [" open", *[""] * len(blocks)]
            body = "".join(
                f'<details{is_open} style="{_BLOCK}">{block.folded}</details>'
                for block, is_open in zip(blocks, opened, strict=False)
            )
        if status:
            body += f"<p>{note}</p>{status._repr_html_()}"
        self._publish({"text/plain": "\n".join(texts), "text/html": body})

    def _show_in_order(self) -> None:
        if self._is_shown:
            self._publish({})
        self._ordered = OrderedDisplay(self._outputs)
        for task, outputs in self._outputs.items():
            self._ordered.add(task, outputs, is_last=task not in self._open)

    def _publish(self, data: dict[str, str]) -> None:
        shown = {"output_type": "display_data", "data": data}
        if self._is_shown:
            shown["output_type"] = "update_display_data"
        if self._is_shown or self._open:
            shown["transient"] = {"display_id": self._id}
        self._is_shown = True
        display(shown)


@dataclass(frozen=True)
class _Block:
    """The outputs of tasks that agree."""

    name: str
    outputs: Sequence[Output]

    @property
    def text(self) -> str:
        """The outputs below the name."""
        texts = "".join(COLOUR.sub("", text_of(output)) for output in self.outputs)
        return f"{self.name}\n{texts}".rstrip("\n")

    @property
    def html(self) -> str:
        """The outputs below the name."""
        return f"<b>{self.name}</b>{''.join(map(_as_html, self.outputs))}"

    @property
    def folded(self) -> str:
        """The outputs behind the name and their last line."""
        last = html.escape(self.text.rpartition("\n")[2])
        last = f'<span style="opacity:0.75">{last}</span>'
        return f"<summary><b>{self.name}</b> {last}</summary>{''.join(map(_as_html, self.outputs))}"


def _blocks(outputs: Mapping[str, Sequence[Output]], last_lines: int | None) -> list[_Block]:
    """Returns a block for all tasks that show the same, in the order of their first task."""
    names: dict[str, list[str]] = {}
    for task, own in outputs.items():
        if own:
            names.setdefault(json.dumps(_settled(own, last_lines)), []).append(task)
    return [_Block(", ".join(tasks), json.loads(shown)) for shown, tasks in names.items()]


def _settled(outputs: Sequence[Output], last_lines: int | None) -> list[Output]:
    """Returns outputs without what differs by chance: which stream came first, and numbers."""
    settled: list[Output] = []
    for is_rich, group in itertools.groupby(outputs, lambda output: "data" in output):
        if is_rich:
            settled += [{"output_type": "display_data", "data": each["data"]} for each in group]
            continue
        texts = {"stdout": "", "stderr": ""}
        for output in group:
            texts[output.get("name", "stderr")] += text_of(output)
        lines = {name: text.splitlines(keepends=True) for name, text in texts.items()}
        cut = slice(-last_lines if last_lines else None, None)
        settled += [stream(name, "".join(own[cut])) for name, own in lines.items() if own]
    return settled[-last_lines:] if last_lines else settled


def _is_text(output: Output) -> bool:
    """Whether columns can show an output, and nothing updates it later."""
    if "data" not in output:
        return True
    data = output["data"]
    is_still = "transient" not in output and output["output_type"] != "update_display_data"
    return is_still and _TEXTS.issuperset(data) and "<script" not in data.get("text/html", "")


def _as_html(output: Output) -> str:
    if own := output.get("data", {}).get("text/html"):
        return f'<div style="white-space:normal">{own}</div>'
    style = f' style="{_STDERR}"' if output.get("name") == "stderr" else ""
    return f"<div{style}>{_coloured(text_of(output))}</div>"


def _coloured(text: str) -> str:
    """Returns a terminal's text as HTML, with the colours that JupyterLab's themes name."""
    first, *rest = COLOUR.split(text)  # text, codes, text, codes, text
    shown = html.escape(first, quote=False)
    styles: dict[str, str] = {}
    for codes, part in zip(rest[::2], rest[1::2], strict=True):
        numbers = [int(code or 0) for code in codes.split(";")]
        for number in itertools.takewhile(lambda number: number not in _PALETTES, numbers):
            if number in _STYLES:
                styles |= [_STYLES[number]]
            elif number == 0:
                styles.clear()
        style = ";".join(f"{name}:{value}" for name, value in styles.items() if value)
        escaped = html.escape(part, quote=False)
        shown += f'<span style="{style}">{escaped}</span>' if style and part else escaped
    return shown


def task_display(
    tasks: Sequence[str], *, status: Callable[[], ClusterStatus]
) -> OrderedDisplay | OutputColumns:
    """Returns what shows the outputs of tasks: columns for several in a notebook's cell."""
    is_cell = type(sys.stdout).__module__ == "ipykernel.iostream"  # and nothing collects it
    is_several = is_cell and len(tasks) > 1
    return OutputColumns(tasks, status=status) if is_several else OrderedDisplay(tasks)
