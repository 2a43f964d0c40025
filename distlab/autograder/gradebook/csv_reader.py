"""Reads tables that a teacher saved from a spreadsheet, in any of its formats.

    sheet = read_sheet(path, needs=("learner", "points"), begins="learner,check,points,comment")
    for line, row in sheet.rows:
        row["learner"], number_in(row["points"])

Commas, semicolons or tabs; UTF-8 with or without a mark, UTF-16, or Windows' own letters; columns
in any order, in capitals, and others besides; a comma for the decimal point.
"""

from __future__ import annotations

import codecs
import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from distlab.errors import InvalidArgument

_DELIMITERS = (",", ";", "\t")
_SAYS_DELIMITER = re.compile(r'"?sep=(.)"?\r?\n')  # the first line, where Excel writes one


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A table as it was saved.

    Attributes:
        columns: Their names; known ones as they were asked for.
        rows: Each with its number and its cells by column. Empty ones are left out.
        delimiter: The character between its cells.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[int, dict[str, str]], ...]
    delimiter: str = ","


def read_sheet(path: Path, *, needs: Sequence[str], begins: str) -> Sheet:
    """Returns a table."""

    def refuse(found: str, do: str) -> InvalidArgument:
        return InvalidArgument(asked=f"read {path}", found=found, do=do)

    try:
        data = path.read_bytes()
    except OSError as problem:
        raise refuse(f"nothing to read ({problem.strerror})", "give a CSV file") from problem
    if data.startswith(b"PK\x03\x04"):
        raise refuse("an Excel workbook", "save the table as CSV (UTF-8)")
    text = _text_of(data)
    if told := _SAYS_DELIMITER.match(text):
        text = text[told.end() :]
    tables = [(mark, _rows_of(text, mark)) for mark in _DELIMITERS]
    delimiter, rows = max(tables, key=lambda one: len(set(needs) & set(_names(one[1]))))
    names = _names(rows)
    if missing := [name for name in needs if name not in names]:
        there = ", ".join(name for name in names if name) or "none"
        raise refuse(f"no column {missing[0]!r} among {there}", f"begin with the line {begins}")
    if twice := [name for name in names if name and names.count(name) > 1]:
        raise refuse(f"two columns {twice[0]!r}", "delete one of them")
    filled = [one for one in rows[1:] if any(cell.strip() for cell in one[1])]
    names += [""] * (max((len(cells) for _, cells in filled), default=0) - len(names))
    # A column without a name counts only if it has something in it.
    columns = {
        at: name or f"column {at + 1}"
        for at, name in enumerate(names)
        if name or any(cells[at:] and cells[at].strip() for _, cells in filled)
    }
    return Sheet(
        columns=tuple(columns.values()),
        rows=tuple(
            (line, {name: cells[at] if cells[at:] else "" for at, name in columns.items()})
            for line, cells in filled
        ),
        delimiter=delimiter,
    )


def number_in(cell: str) -> float | None:
    """Returns the number in a cell, None for none in an empty one, NaN for anything else."""
    text = cell.strip()
    try:
        number = float(text.replace(",", ".")) if text else None
    except ValueError:
        return math.nan
    return number if number is None or math.isfinite(number) else math.nan


def _text_of(data: bytes) -> str:
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", errors="replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:  # as Excel on Windows saves "CSV"
        return data.decode("cp1252", errors="replace")


def _rows_of(text: str, delimiter: str) -> list[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        return [(reader.line_num, cells) for cells in reader]
    except csv.Error:  # a cell without end: with a different delimiter it may be a table
        return []


def _names(rows: list[tuple[int, list[str]]]) -> list[str]:
    return [name.strip().lower() for name in rows[0][1]] if rows else []
