"""The two editions of an exercise, from one source.

    def step(x):
        ### BEGIN SOLUTION
        return x * 2
        ### END SOLUTION

The solution edition keeps the answer and loses the markers; the exercise edition gets
`raise NotImplementedError("your code here")` in its place, or the lines of a stub:

    ### BEGIN SOLUTION
    rate = 0.1 * replicas
    ### STUB
    rate = ...
    ### END SOLUTION

In a text cell, one that a learner writes, the markers are comments of HTML, and there is a stub:

    <!-- report: speed -->
    <!-- BEGIN SOLUTION -->
    Four replicas are slower, because ...
    <!-- STUB -->
    *Your answer, two or three sentences.*
    <!-- END SOLUTION -->
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from distlab.course.markup import CODE, TEXT, Marks
from distlab.errors import NotebookError

# A misspelt marker would let the answer into the exercise, so near misses are refused.
_NEARLY = re.compile(
    r"\s*(#+\s*(begin|end)[ _-]*solutions?|##+\s*stub"
    r"|#*\s*<!-*\s*((begin|end)[ _-]*solutions?|stub))\b",
    re.IGNORECASE,
)
_PLACEHOLDER = 'raise NotImplementedError("your code here")'


@dataclass(frozen=True)
class Answer:
    """One solution block of a cell."""

    indent: str
    solution: tuple[str, ...]
    stub: tuple[str, ...] | None


@dataclass
class _Open:
    line: int
    indent: str
    solution: list[str] = field(default_factory=list)
    stub: list[str] | None = None

    def take(self, text: str) -> None:
        (self.solution if self.stub is None else self.stub).append(text)


def parse_answers(source: str, *, file: str, line: int, marks: Marks = CODE) -> list[str | Answer]:
    """Splits a cell's source into its lines and its solution blocks, in order."""
    parts: list[str | Answer] = []
    block: _Open | None = None

    def refused(number: int, found: str) -> NotebookError:
        return _unbalanced(file, number, found, marks)

    for number, text in enumerate(source.splitlines(), line):
        mark = text.strip()
        if mark == marks.begin:
            if block:
                raise refused(number, f"the block of line {block.line} is still open")
            block = _Open(number, text[: len(text) - len(text.lstrip())])
        elif mark == marks.stub:
            if block is None or block.stub is not None:
                raise refused(number, f"'{marks.stub}' where no solution stands before it")
            block.stub = []
        elif mark == marks.end:
            if block is None:
                raise refused(number, f"'{marks.end}' without '{marks.begin}'")
            parts.append(_closed(block, file, marks))
            block = None
        elif _NEARLY.match(text):
            raise refused(number, f"{mark!r}, which is no marker but looks like one")
        elif block:
            block.take(text)
        else:
            parts.append(text)
    if block:
        raise refused(block.line, f"'{marks.begin}' without '{marks.end}' in its cell")
    return parts


def answered(parts: list[str | Answer]) -> str:
    """Returns the source of the solution edition."""
    lines: list[str] = []
    for part in parts:
        lines += part.solution if isinstance(part, Answer) else [part]
    return "\n".join(lines)


def stubbed(parts: list[str | Answer]) -> str:
    """Returns the source of the exercise edition."""
    lines: list[str] = []
    for part in parts:
        if isinstance(part, str):
            lines.append(part)
        else:
            lines += [part.indent + _PLACEHOLDER] if part.stub is None else part.stub
    return "\n".join(lines)


def leaking_lines(cells: list[list[str | Answer]]) -> list[str]:
    """Returns the lines of the solutions that would give an answer away, stripped.

    Left out are lines of fewer than three words (`return x`, `else:`), which give nothing
    away, and lines that the exercise shows elsewhere.
    """
    shown = {line.strip() for parts in cells for line in stubbed(parts).splitlines()}
    secret = [
        line.strip()
        for parts in cells
        for part in parts
        if isinstance(part, Answer)
        for line in part.solution
    ]
    telling = [line for line in secret if len(re.findall(r"\w+", line)) >= 3]
    return [line for line in dict.fromkeys(telling) if line not in shown]


def _closed(block: _Open, file: str, marks: Marks) -> Answer:
    if block.stub is None and (marks is TEXT or not block.indent):
        found = (
            "a text without the lines that stand in its place"
            if marks is TEXT
            else "a solution outside any function, so its placeholder would stop 'run all'"
        )
        raise NotebookError(
            asked=f"the exercise edition of {file}, line {block.line}",
            found=found,
            do=f"put the lines that the exercise shows behind '{marks.stub}', before '{marks.end}'",
        )
    stub = None if block.stub is None else tuple(block.stub)
    return Answer(block.indent, tuple(block.solution), stub)


def _unbalanced(file: str, line: int, found: str, marks: Marks) -> NotebookError:
    return NotebookError(
        asked=f"the two editions of {file}, line {line}",
        found=found,
        do=f"write '{marks.begin}', the answer, perhaps '{marks.stub}' and its lines, then "
        f"'{marks.end}'",
    )
