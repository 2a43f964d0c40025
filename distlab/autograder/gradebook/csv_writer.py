"""Writes CSV files that a spreadsheet opens without running anything in them.

    write_table(path, rows)

If a learner's text looks like a formula to a spreadsheet, its cell starts with an apostrophe.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from distlab.atomic_write import write_atomically

Cell = str | float | int
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%")


def safe(cell: Cell) -> Cell:
    """Returns a cell that a spreadsheet shows as it is; numbers stay numbers, 7.0 as 7."""
    if not isinstance(cell, str):
        return f"{cell:.10g}" if isinstance(cell, float) else cell
    text = "".join(letter if letter.isprintable() else " " for letter in cell)
    return f"'{text}" if cell.startswith(_FORMULA) or text.lstrip().startswith(_FORMULA) else text


def write_table(path: Path, rows: Iterable[Sequence[Cell]]) -> None:
    """Writes a table in which nothing runs, whole or not at all."""
    write_rows(path, ([safe(cell) for cell in row] for row in rows))


def write_rows(path: Path, rows: Iterable[Sequence[Cell]], *, delimiter: str = ",") -> None:
    """Writes a table as it is, whole or not at all."""
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter).writerows(rows)
    write_atomically(path, text.getvalue().encode("utf-8-sig"))  # the mark tells Excel UTF-8
