"""Opens a notebook that a learner handed in, without trusting it or running any of it.

notebook = open_notebook(path)
notebook.code                    # its code cells, for the answers
notebook.cells                   # all of its cells, as the file has them
"""

from __future__ import annotations

import ast
import codecs
import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distlab.errors import InvalidArgument

MOST_BYTES = 100_000_000  # an answer is a few lines, whatever its cells have printed
_MOST_VALUES = 5_000_000  # each takes a hundred times its bytes in memory
_LARGE_BYTES = 10_000_000
MOST_CODE = 200_000  # letters; an exercise with its answers has less than 10,000
# Cell magics below which a cell is Python of the notebook, as it would be without them.
_PYTHON_BELOW = {"%%time", "%%capture", "%%prun"}
_LARGE = threading.Lock()  # a text with one emoji takes four times its bytes, and then JSON's copy
_LFS = "version https://git-lfs.github.com/spec/"
_CONFLICT = re.compile(r"^<{7} ", re.MULTILINE)
_REPORT = re.compile(r"(\w+): [^\n]*\((\d+(?:\.\d+)?) of \d")  # how `dl.check` begins
_TIMED = re.compile(r"^(\s*(?:[\w.]+\s*=\s*)?)%time\s+(?=\S)")  # runs what follows
_MAGIC = re.compile(r"^(\s*)(?:%\w|[!?]).*|^(\s*)[\w.]+\?{1,2}\s*$")
_ASSIGNED = re.compile(r"^(\s*[\w.]+\s*=\s*)(?:%\w|!).*")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A code cell: its source, and its name as in "cell 7", counted over all cells."""

    name: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Notebook:
    """A notebook file: all its cells, none of them validated, and the code cells with code."""

    cells: tuple[dict[str, Any], ...]
    code: tuple[Cell, ...]


def open_notebook(path: Path) -> Notebook:
    """Returns what a notebook holds."""

    def refuse(found: str, do: str) -> InvalidArgument:
        return InvalidArgument(asked=f"read {path.name}", found=found, do=do)

    again = "ask for it again, as File > Download in Jupyter or Colab saves it"
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise refuse(
            f"{size:,} bytes, more than a notebook of an exercise has", "clear its outputs first"
        )
    if not size:
        raise refuse("an empty file", again)
    with _LARGE if size > _LARGE_BYTES else contextlib.nullcontext():
        return _opened(path.read_bytes(), refuse, again)


def _opened(data: bytes, refuse: Callable[[str, str], InvalidArgument], again: str) -> Notebook:
    if (values := sum(data.count(mark) for mark in b"{[,")) > _MOST_VALUES:
        raise refuse(f"a file of {values:,} values", "clear its outputs first")
    has_mark = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = data.decode("utf-16" if has_mark else "utf-8-sig")
    except UnicodeDecodeError as problem:
        found = "a zip with the name of a notebook" if data[:2] == b"PK" else "a file of no text"
        raise refuse(found, again) from problem
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as problem:
        found = _known_mistake(text) or f"a file that is not JSON ({problem})"
        raise refuse(found, again) from problem
    cells = content.get("cells") if isinstance(content, dict) else None
    if not isinstance(cells, list):
        older = isinstance(content, dict) and "worksheets" in content
        found = "a notebook of format 3 or older" if older else "JSON that is not a notebook"
        raise refuse(found, "open it in Jupyter and save it" if older else again)
    code = tuple(
        Cell(name=f"cell {number}", source=source.replace("\r\n", "\n").replace("\r", "\n"))
        for number, cell in enumerate(cells, 1)
        if isinstance(cell, dict) and (source := source_of(cell, "code")).strip()
    )
    if not code:
        raise refuse("a notebook without code cells", again)
    if (letters := sum(len(cell.source) for cell in code)) > MOST_CODE:
        raise refuse(
            f"{letters:,} letters of code, more than {MOST_CODE:,}",
            "look for text that was pasted into a cell",
        )
    return Notebook(cells=tuple(cell for cell in cells if isinstance(cell, dict)), code=code)


def _known_mistake(text: str) -> str:
    """Returns what a text is that is handed in as a notebook and often is none; "" if unknown."""
    start = text[:1000].lstrip().lower()
    if start.startswith(_LFS):
        return "a pointer of Git LFS, without the notebook that it points to"
    if start.startswith(("<!doctype html", "<html")):
        return "a web page with the name of a notebook, such as a login page"
    if _CONFLICT.search(text):
        return "a notebook with a merge conflict of Git (lines that begin with <<<<<<<)"
    code = statements_of(text) if len(text) <= MOST_CODE else []
    is_python = any(not isinstance(statement, ast.Expr) for statement in code)
    return "Python code with the name of a notebook" if is_python else ""


def source_of(cell: dict[str, Any], kind: str) -> str:
    """Returns the text of a cell, "" if it is of a different kind."""
    return text_of(cell.get("source")) if cell.get("cell_type") == kind else ""


def text_of(value: Any) -> str:
    """Returns a text that notebooks also write as a list of lines; "" for anything else."""
    if isinstance(value, list):
        value = "".join(line for line in value if isinstance(line, str))
    return value if isinstance(value, str) else ""


def shown_points(cells: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Returns the points that checks have shown in a notebook, the most of each by its name."""
    points: dict[str, float] = {}
    for cell in cells:
        outputs = cell.get("outputs")
        for output in outputs if isinstance(outputs, list) else []:
            data = output.get("data") if isinstance(output, dict) else None
            text = text_of(data.get("text/plain")) if isinstance(data, dict) else ""
            if shown := _REPORT.match(text):
                points[shown[1]] = max(float(shown[2]), points.get(shown[1], 0.0))
    return points


def python_of(source: str) -> str:
    """Returns a cell's Python: without magics and shell commands, lines stay where they are."""
    above, _, rest = source.lstrip().partition("\n")
    if above.startswith("%%"):
        if above.split()[0] not in _PYTHON_BELOW:
            return ""
        source = "\n" * (source.count("\n") - rest.count("\n")) + rest
    if statements_of(source):  # what looks like a magic may be part of a string
        return source
    return "\n".join(_python_line(line) for line in source.split("\n"))


def statements_of(source: str) -> list[ast.stmt]:
    """Returns the top-level statements of a cell's Python; none if it is no Python."""
    try:
        return ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # as ast says of too deep ones
        return []


def _python_line(line: str) -> str:
    line = _TIMED.sub(r"\1", line)
    line = _MAGIC.sub(lambda m: f"{m[1] or m[2] or ''}pass", line)
    return _ASSIGNED.sub(r"\1None", line)
