"""Opens a notebook that a learner handed in, without trusting it or running any of it.

notebook = open_notebook(path)
notebook.code                    # its code cells, for the answers
notebook.cells                   # all of its cells, as the file has them
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distlab.autograder.intake.code_slice import Cell
from distlab.errors import InvalidArgument

MOST_BYTES = 50_000_000
MOST_CODE = 200_000  # letters; an exercise with its answers has less than 10,000


@dataclass(frozen=True, kw_only=True)
class Notebook:
    """What a file holds.

    Attributes:
        cells: All cells: dictionaries, of which nothing else is sure.
        code: The code cells that are not empty.
    """

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
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as problem:
        raise refuse("a file that is not UTF-8 text", again) from problem
    except (ValueError, RecursionError) as problem:
        raise refuse(f"a file that is not JSON ({problem})", again) from problem
    cells = content.get("cells") if isinstance(content, dict) else None
    if not isinstance(cells, list):
        older = isinstance(content, dict) and "worksheets" in content
        found = "a notebook of format 3 or older" if older else "JSON that is not a notebook"
        raise refuse(found, "open it in Jupyter and save it" if older else again)
    code = tuple(
        Cell(name=f"cell {number}", source=_lines_of_python(source))
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


def _lines_of_python(source: str) -> str:
    return source.replace("\r\n", "\n").replace("\r", "\n")


def source_of(cell: dict[str, Any], kind: str) -> str:
    """Returns the text of a cell, "" if it is of a different kind."""
    return text_of(cell.get("source")) if cell.get("cell_type") == kind else ""


def text_of(value: Any) -> str:
    """Returns a text that notebooks also write as a list of lines; "" for anything else."""
    if isinstance(value, list):
        value = "".join(line for line in value if isinstance(line, str))
    return value if isinstance(value, str) else ""
