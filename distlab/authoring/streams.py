"""What a cell printed, as it looks in the end: the same however it arrived.

cell.outputs = settled(cell.outputs)
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbformat import NotebookNode

_TAKEN_BACK = re.compile(r"[^\n]\x08")
_OVERWRITTEN = re.compile(r"(?m)^.*\r(?=[^\n])")


def settled(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Returns outputs with the text between two others in one piece for each stream.

    Text stays where it was printed: below a picture, or below the name of the task that wrote it.
    """
    settled: list[NotebookNode] = []
    for is_text, group in groupby(outputs, lambda output: output.output_type == "stream"):
        same = list(group)
        settled += _merged(same) if is_text else same
    return settled


def _merged(streams: list[NotebookNode]) -> list[NotebookNode]:
    """Which of stdout and stderr arrives first is a race, so stdout is always put first."""
    merged = []
    for name in ("stdout", "stderr"):
        own_streams = [stream for stream in streams if stream.name == name]
        if own_streams:
            text = _as_shown("".join(stream.text for stream in own_streams))
            merged.append(type(own_streams[0])({**own_streams[0], "text": text}))
    return merged


def _as_shown(text: str) -> str:
    before = ""
    while before != text:
        before, text = text, _TAKEN_BACK.sub("", text)
    return _OVERWRITTEN.sub("", text)
