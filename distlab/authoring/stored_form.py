"""The stored form of a notebook: the same bytes whenever the same cells gave the same outputs.

text = stored_text(draft.notebook, executed)
write_atomically(path, text)
"""

from __future__ import annotations

import copy
import json
import re
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbformat import NotebookNode

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_WIDGET = "application/vnd.jupyter.widget-view+json"
_TAKEN_BACK = re.compile(r"[^\n]\x08")
_OVERWRITTEN = re.compile(r"(?m)^.*\r(?=[^\n])")


def stored_text(draft: NotebookNode, executed: NotebookNode) -> str:
    """Returns what is written to disk: the draft with the outputs of its execution.

    Cells and metadata are the draft's, so nothing that a run notes down (times, versions) is
    stored; only the state of widgets, which a page needs to show them, is the run's.
    """
    notebook = copy.deepcopy(draft)
    if "widgets" in executed.metadata:
        notebook.metadata["widgets"] = executed.metadata["widgets"]
    shows = json.dumps(notebook.metadata.get("widgets", {}))
    count = 0
    for cell, ran in zip(notebook.cells, executed.cells, strict=True):
        # A cell that was not run keeps its null, for the lint and the regression to refuse.
        if cell.cell_type == "code" and ran.execution_count is not None:
            count += 1
            cell.execution_count = count
            ran_outputs = [_without_lost_widget(output, shows) for output in ran.outputs]
            cell.outputs = stable_outputs(ran_outputs, execution_count=count)
    return canonical(notebook)


def canonical(notebook: NotebookNode) -> str:
    """Returns the one text of a notebook: sorted keys, indent 1, a newline at the end."""
    import nbformat

    nbformat.validate(notebook)
    return nbformat.writes(notebook, version=4).rstrip("\n") + "\n"  # type: ignore[no-untyped-call,no-any-return]


def stable_outputs(outputs: list[NotebookNode], *, execution_count: int) -> list[NotebookNode]:
    """Returns outputs without what differs from run to run or from machine to machine."""
    stable = settled(copy.deepcopy(outputs))
    for output in stable:
        if output.output_type == "execute_result":
            output.execution_count = execution_count
        elif output.output_type == "error":
            # Frames inside packages name this machine's folders and their line numbers move.
            output.traceback = [
                part for part in output.traceback if not _COLOUR.sub("", part).startswith("File ")
            ]
        data = output.get("data", {})
        for kind in data:
            if kind.startswith("image/") and kind != "image/svg+xml":
                data[kind] = "".join(data[kind].split())
    return [output for output in stable if "data" not in output or output.data]


def _without_lost_widget(output: NotebookNode, shows: str) -> NotebookNode:
    """A view of a model that was not stored would show readers an error, under a random id."""
    view = output.get("data", {}).get(_WIDGET)
    if view is None or view["model_id"] in shows:
        return output
    output = copy.deepcopy(output)
    del output.data[_WIDGET]
    return output


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
