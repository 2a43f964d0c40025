"""Records the outputs of one task while it runs code, up to a limit.

    recorder = Recorder("worker:0", log=path)
    for message in kernel.messages():
        recorder.add(message)            # the outputs that it adds, as notebooks keep them
    recorder.end()

Of text that carriage returns write over, as progress bars do, the last is kept.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

Output = dict[str, Any]

# For a task and a cell. What is written beyond goes to the task's log, which has a bound too.
SHOWN_CHARACTERS = 100_000
SHOWN_PICTURE_CHARACTERS = 10_000_000
LOGGED_CHARACTERS = 10_000_000

# Looked for where a line begins alone: else a long line takes the square of its length.
_OVERWRITTEN = re.compile(r"(?<![^\r\n])[^\r\n]*+\r(?=[^\r\n])")
_RICH = {"display_data", "update_display_data", "execute_result"}
# A widget's model lives in the kernel that made it: nobody could show its view here.
_HERE_ONLY = "application/vnd.jupyter.widget-view+json"


class Recorder:
    """Turns a kernel's messages into outputs."""

    def __init__(self, task: str, *, log: Path) -> None:
        self._outputs: list[Output] = []
        self._task, self._log = task, log
        self._open_lines = {"stdout": "", "stderr": ""}
        self._text_left, self._pictures_left = SHOWN_CHARACTERS, SHOWN_PICTURE_CHARACTERS
        self._more_text = self._more_outputs = 0

    @property
    def outputs(self) -> list[Output]:
        """All that was recorded, as a notebook keeps it."""
        return [{k: v for k, v in output.items() if k != "transient"} for output in self._outputs]

    def add(self, message: dict[str, Any]) -> list[Output]:
        """Records a message and returns the outputs that it adds."""
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            return self._add_text(content["name"], content["text"])
        if kind == "error":
            error = {name: content[name] for name in ("ename", "evalue", "traceback")}
            return self._keep(*self._end_lines(), {"output_type": "error", **error})
        if kind in _RICH:
            return self._keep(*self._end_lines(), *self._rich(kind, content))
        return []

    def end(self) -> list[Output]:
        """Returns the outputs that are left, once the code has ended."""
        left = self._end_lines()
        more = []
        if self._more_text:
            more.append(f"{self._more_text:,} more characters: cluster.logs({self._task!r})")
        if self._more_outputs:
            more.append(f"{self._more_outputs:,} more outputs, not kept")
        if more:
            left.append(_stream("stdout", f"\n... {'; '.join(more)}\n"))
        return self._keep(*left)

    def _keep(self, *outputs: Output) -> list[Output]:
        for output in outputs:
            last = self._outputs[-1] if self._outputs else {}
            if output["output_type"] == "update_display_data":
                for shown in self._outputs:
                    if shown.get("transient") == output["transient"]:
                        shown |= {name: output[name] for name in ("data", "metadata")}
            elif output["output_type"] == "stream" and output["name"] == last.get("name"):
                self._outputs[-1] = _stream(output["name"], last["text"] + output["text"])
            else:
                self._outputs.append(dict(output))
        return list(outputs)

    def _add_text(self, name: str, text: str) -> list[Output]:
        text = _OVERWRITTEN.sub("", self._open_lines[name] + text)
        whole, newline, self._open_lines[name] = text.rpartition("\n")
        if len(self._open_lines[name]) > self._text_left:
            whole, newline, self._open_lines[name] = text, "", ""
        return self._keep(*self._within_bounds(name, (whole + newline).replace("\r\n", "\n")))

    def _end_lines(self) -> list[Output]:
        left = [
            output
            for name, text in self._open_lines.items()
            for output in self._within_bounds(name, text.rstrip("\r"))
        ]
        self._open_lines = dict.fromkeys(self._open_lines, "")
        return left

    def _within_bounds(self, name: str, text: str) -> list[Output]:
        shown, rest = text[: self._text_left], text[self._text_left :]
        self._text_left -= len(shown)
        if rest:
            if self._more_text < LOGGED_CHARACTERS:
                with self._log.open("a", encoding="utf-8", errors="replace") as log:
                    log.write(rest)
            self._more_text += len(rest)
        return [_stream(name, shown)] if shown else []

    def _rich(self, kind: str, content: dict[str, Any]) -> list[Output]:
        data = {mime: value for mime, value in content["data"].items() if mime != _HERE_ONLY}
        sizes = {True: 0, False: 0}
        for mime, value in data.items():
            sizes[mime.startswith("image/")] += len(str(value))
        if sizes[True] > self._pictures_left or sizes[False] > self._text_left:
            self._more_outputs += 1
            return []
        self._pictures_left -= sizes[True]
        self._text_left -= sizes[False]
        output = {"output_type": kind, "data": data, "metadata": content["metadata"]}
        if kind == "execute_result":
            output["execution_count"] = content["execution_count"]
        if display_id := content.get("transient", {}).get("display_id"):
            output["transient"] = {"display_id": f"{self._task}/{display_id}"}
        return [output]


def _stream(name: str, text: str) -> Output:
    return {"output_type": "stream", "name": name, "text": text}
