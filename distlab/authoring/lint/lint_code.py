"""Rules for the code cells of a notebook and for what they wrote."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from distlab.authoring.compare import is_tolerance
from distlab.authoring.notebook_text import Finding, code_cells, runs, tags_of, unexpected_errors

if TYPE_CHECKING:
    from nbformat import NotebookNode

MAX_LINES = 30
TAGS = frozenset(
    f"{verb}-{part}" for verb in ("hide", "remove") for part in ("cell", "input", "output")
) | {
    "nbval-check-output",
    "nbval-ignore-output",
    "nbval-raises-exception",
    "nbval-skip",
    "predict",
    "raises-exception",
    "reveal",
}
# The regression does not compare what these cells write, so it may change.
_NOT_COMPARED = {"nbval-ignore-output", "nbval-skip"}
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PATHS = {
    "a path of this machine": re.compile(
        r"(?<![\w.])/(?:home|Users)/\w|(?<![\w./])/root/|(?<![\w.])/(?:var/folders|private/var|tmp)/"
        r"|[A-Za-z]:\\Users\\"
    ),
}
_CHANGING = {
    "a memory address": re.compile(r"\b0x[0-9a-fA-F]{5,}"),
    "a time": re.compile(
        r"\b\d{1,2}:\d\d:\d\d\b|\b20\d\d-\d\d-\d\d\b|\b\d+[mu]?s/(?:step|epoch)\b|Wall time:"
    ),
    "a device name": re.compile(r"\bdevice:[CG]PU:\d"),
}


def short_cells(notebook: NotebookNode) -> list[Finding]:
    """No code cell is longer than a reader takes in at once."""
    counts = [(number, len(cell.source.splitlines())) for number, cell in code_cells(notebook)]
    return [
        Finding(number, f"{count} lines of code; at most {MAX_LINES}")
        for number, count in counts
        if count > MAX_LINES
    ]


def all_executed(notebook: NotebookNode) -> list[Finding]:
    """Every code cell was run, from the first to the last, in one go."""
    findings = []
    ran = ((number, cell) for number, cell in code_cells(notebook) if runs(cell))
    for expected, (number, cell) in enumerate(ran, 1):
        if cell.execution_count is None:
            findings.append(Finding(number, "was never run; run 'make notebooks'"))
        elif cell.execution_count != expected:
            message = f"run as [{cell.execution_count}], must be [{expected}]"
            findings.append(Finding(number, message))
    return findings


def known_tags(notebook: NotebookNode) -> list[Finding]:
    """Only tags that some tool of ours understands."""
    return [
        Finding(
            number,
            f"unknown tag {tag!r}; known are {', '.join(sorted(TAGS))}, "
            "numbers-vary, numbers-within-0.02 and numbers-within-5%",
        )
        for number, cell in enumerate(notebook.cells, 1)
        for tag in tags_of(cell)
        if tag not in TAGS and not is_tolerance(tag)
    ]


def no_errors(notebook: NotebookNode) -> list[Finding]:
    """No stored exception, but where the cell is tagged to raise one."""
    return [
        Finding(number, f"ends in {output.ename}; tag it raises-exception if that is meant")
        for number, cell in code_cells(notebook)
        for output in unexpected_errors(cell)
    ]


def stable_text(notebook: NotebookNode) -> list[Finding]:
    """Nothing in the outputs that belongs to one machine or one moment."""
    findings = []
    for number, cell in code_cells(notebook):
        compared = not _NOT_COMPARED & set(tags_of(cell))
        patterns = _PATHS | _CHANGING if compared else _PATHS
        text = "\n".join(output_texts(cell))
        for habit, pattern in patterns.items():
            if match := pattern.search(text):
                line = text[text.rfind("\n", 0, match.start()) + 1 :].splitlines()[0].strip()
                findings.append(Finding(number, f"output holds {habit}: {line[:80]!r}"))
    return findings


def output_texts(cell: NotebookNode) -> Iterator[str]:
    """Yields each text that a code cell wrote, without colours."""
    for output in cell.outputs:
        if output.output_type == "stream":
            yield _COLOUR.sub("", output.text)
        elif output.output_type == "error":
            yield _COLOUR.sub("", "\n".join([output.evalue, *output.traceback]))
        else:
            for kind, value in output.data.items():
                # Pictures inside HTML are base64, where anything may seem to stand.
                if kind.startswith("text/"):
                    yield re.sub(r"data:[\w/+.-]+;base64,[\w+/=\s]+", "", str(value))
