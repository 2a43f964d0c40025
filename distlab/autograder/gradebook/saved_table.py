"""Opens a table that a spreadsheet or a platform saved, and fills cells without touching the rest.

    table = open_table(path)                     # commas, semicolons or tabs; UTF-8, UTF-16, cp1252
    table.rows[1][0].value
    table.filled({(1, 4): "7,5"})                # the same bytes, with one cell replaced

What isn't filled stays as it was saved: encoding, byte order mark, delimiter, quotes, line ends.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from distlab.errors import InvalidArgument

DELIMITERS = (",", ";", "\t")
_SAYS_DELIMITER = re.compile(r'"?sep=(.)"?(?:\r?\n|\r)')  # the first line, where Excel writes one
_END = r"\r\n|\n|\r|\Z"
_MARK = "\ufeff"
_NUMBER = re.compile(r"-?\d+(?:([.,])(\d+))?")
_THOUSANDS = 3  # digits behind a comma that is no decimal one


@dataclass(frozen=True)
class SavedCell:
    """A cell's value, and its place in the text."""

    value: str
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class SavedTable:
    """A table as it was saved, read with one delimiter."""

    text: str
    encoding: str
    delimiter: str
    rows: tuple[tuple[SavedCell, ...], ...]
    lines: tuple[int, ...]  # on which each row ends, counted from 1

    @property
    def header(self) -> list[str]:
        """The names of the columns."""
        return [cell.value for cell in self.rows[0]] if self.rows else []

    @property
    def has_decimal_comma(self) -> bool:
        """Whether most of its numbers with a fraction have a comma, as in 9,00."""
        signs = [
            found[1]
            for row in self.rows
            for cell in row
            if (found := _NUMBER.fullmatch(cell.value.strip())) and found[1]
            if found[1] == "." or len(found[2]) != _THOUSANDS
        ]
        return signs.count(",") > signs.count(".")

    def filled(self, values: Mapping[tuple[int, int], str]) -> bytes:
        """Returns the file with other values in some cells, by row and column."""
        parts, done = [], 0
        for (at, column), value in sorted(values.items()):
            row = self.rows[at]
            missing = column - len(row) + 1  # a row may be shorter than the header
            cell = row[-1] if missing > 0 else row[column]
            start = cell.end if missing > 0 else cell.start
            is_quoted = missing <= 0 and self.text[cell.start : cell.end].startswith('"')
            if is_quoted or any(letter in value for letter in (self.delimiter, '"', "\n", "\r")):
                value = '"' + value.replace('"', '""') + '"'
            parts += [self.text[done:start], self.delimiter * max(0, missing), value]
            done = cell.end
        text = "".join((*parts, self.text[done:]))
        return text.encode(self.encoding, errors="surrogateescape")


def open_table(path: Path, *, asked: str, do: str) -> dict[str, SavedTable]:
    """Returns a table as it is read with each delimiter; an error says what was asked and to do."""

    def refuse(found: str, do: str = do) -> InvalidArgument:
        return InvalidArgument(asked=asked, found=found, do=do)

    try:
        data = path.read_bytes()
    except OSError as problem:
        raise refuse(f"nothing to read ({problem.strerror})") from problem
    if data.startswith(b"PK\x03\x04"):
        raise refuse("an Excel workbook", "save the table as CSV (UTF-8)")
    text, encoding = _decoded(data)
    start = len(_MARK) if text.startswith(_MARK) else 0
    if says := _SAYS_DELIMITER.match(text, start):
        start = says.end()
    return {mark: _read(text, encoding, start, mark) for mark in DELIMITERS}


def _decoded(data: bytes) -> tuple[str, str]:
    """Returns a text with its byte order mark, and its encoding."""
    for mark, encoding in ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")):
        if data.startswith(mark):
            return data.decode(encoding, errors="replace"), encoding
    try:
        return data.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:  # as Excel on Windows saves "CSV"
        return data.decode("cp1252", errors="surrogateescape"), "cp1252"


def _read(text: str, encoding: str, start: int, delimiter: str) -> SavedTable:
    """Returns a table; a quote that never ends is a letter."""
    cell = re.compile(
        rf'("(?:[^"]|"")*"[^{delimiter}\r\n]*|[^{delimiter}\r\n]*)({delimiter}|{_END})'
    )
    rows, row, lines = list[tuple[SavedCell, ...]](), list[SavedCell](), list[int]()
    line = 1 + _breaks_in(text[:start])
    while start < len(text) or row:
        found = cell.match(text, start)
        assert found is not None  # the second half of the pattern matches everywhere
        row.append(SavedCell(_value(found[1]), *found.span(1)))
        line += _breaks_in(found[1])
        start = found.end()
        if found[2] != delimiter:
            rows.append(tuple(row))
            lines.append(line)
            row, line = [], line + 1
    return SavedTable(
        text=text, encoding=encoding, delimiter=delimiter, rows=tuple(rows), lines=tuple(lines)
    )


def _breaks_in(text: str) -> int:
    return len(re.findall(r"\r\n|\n|\r", text))


def _value(text: str) -> str:
    if quoted := re.match(r'"((?:[^"]|"")*)"', text):
        text = quoted[1].replace('""', '"') + text[quoted.end() :]
    return re.sub(r"[\udc80-\udcff]", "\ufffd", text)  # bytes that are no letters
