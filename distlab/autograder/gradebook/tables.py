"""Reads tables that a teacher saved from a spreadsheet, and writes tables that one opens.

    table = read_table(path, needs=("learner", "points"), begins="learner,check,points,comment")
    for line, row in table.rows:
        row["learner"], number_in(row["points"])
    write_table(path, rows)

Read are commas, semicolons or tabs; UTF-8, UTF-16, or Windows' own letters; columns in any order,
in capitals, and others besides; a comma for the decimal point. If a text that is written looks
like a formula to a spreadsheet, its cell starts with an apostrophe.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from distlab.atomic_write import write_atomically
from distlab.autograder.gradebook.saved_table import SavedTable, open_table
from distlab.errors import InvalidArgument, printable

Cell = str | float | int

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%", "＝", "＋", "－", "＠")  # noqa: RUF001


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table as it was saved: rows with their numbers, empty ones left out, cells by column."""

    rows: tuple[tuple[int, dict[str, str]], ...]
    delimiter: str = ","


def read_table(path: Path, *, needs: Sequence[str], begins: str) -> Table:
    """Returns a table."""
    asked, begin = f"read {path}", f"begin with the line {begins}"
    tables = open_table(path, asked=asked, do="give a CSV file").values()
    table = max(tables, key=lambda table: len(set(needs) & set(_names(table))))
    names = _names(table)
    if missing := [name for name in needs if name not in names]:
        known = ", ".join(name for name in names if name) or "none"
        found = f"no column {missing[0]!r} among {known}"
        raise InvalidArgument(asked=asked, found=found, do=begin)
    if twice := [name for name in names if name and names.count(name) > 1]:
        found = f"two columns {twice[0]!r}"
        raise InvalidArgument(asked=asked, found=found, do="delete one of them")
    values = ([cell.value for cell in row] for row in table.rows[1:])
    return Table(
        rows=tuple(
            (line, dict(zip(names, cells, strict=False)))
            for line, cells in zip(table.lines[1:], values, strict=True)
            if any(cell.strip() for cell in cells)
        ),
        delimiter=table.delimiter,
    )


def number_in(cell: str) -> float | None:
    """Returns the number in a cell, None for none in an empty one, NaN for anything else."""
    text = cell.strip()
    try:
        number = float(text.replace(",", ".")) if text else None
    except ValueError:
        return math.nan
    return number if number is None or math.isfinite(number) else math.nan


def safe(cell: Cell) -> Cell:
    """Returns a cell that a spreadsheet shows as it is; numbers stay numbers, 7.0 as 7."""
    if not isinstance(cell, str):
        return f"{cell:.10g}" if isinstance(cell, float) else cell
    text = printable(cell)
    return f"'{text}" if cell.startswith(_FORMULA) or text.lstrip().startswith(_FORMULA) else text


def write_table(path: Path, rows: Iterable[Sequence[Cell]]) -> None:
    """Writes a table in which nothing runs, whole or not at all."""
    write_rows(path, ([safe(cell) for cell in row] for row in rows))


def write_rows(path: Path, rows: Iterable[Sequence[Cell]], *, delimiter: str = ",") -> None:
    """Writes a table as it is, whole or not at all."""
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter).writerows(rows)
    write_atomically(path, text.getvalue().encode("utf-8-sig"))  # the mark tells Excel UTF-8


def _names(table: SavedTable) -> list[str]:
    return [name.strip().lower() for name in table.header]
