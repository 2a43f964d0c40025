"""Pages whose tables are measured: what docs/support_matrix.md and docs/zoo.md have in common."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping
from multiprocessing import get_context
from pathlib import Path

Cells = dict[str, dict[str, str]]  # by row and column
TABLE = re.compile(r"(?:^\|.*\|\n)+", re.MULTILINE)


def measure_rows(measure: Callable[[str], dict[str, str]], names: Iterable[str]) -> Cells:
    """Measures rows in two processes, which others replace: TensorFlow's memory grows."""
    names = list(names)
    with get_context("spawn").Pool(2, maxtasksperchild=13) as pool:
        rows = pool.imap(measure, names)
        return {name: rows.next(timeout=900) for name in names}


def table(corner: str, cells: Cells, *, bold: bool = False) -> str:
    """Returns cells in Markdown; if `bold`, those that are not "equal" are bold."""
    rows = [[corner, *next(iter(cells.values()))]]
    rows.append(["---"] * len(rows[0]))
    for name, row in cells.items():
        shown = [f"**{text}**" if bold and text != "equal" else text for text in row.values()]
        rows.append([name, *shown])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def read_tables(text: str) -> list[Cells]:
    """Returns the tables of a page, without what makes some of their cells bold."""
    tables = []
    for block in TABLE.findall(text):
        lines = [
            [part.strip().strip("*") for part in line.strip().strip("|").split(" | ")]
            for line in block.splitlines()
        ]
        (_, *columns), _, *rows = lines
        tables.append({name: dict(zip(columns, row, strict=True)) for name, *row in rows})
    return tables


def write_page(path: Path, tables: Iterable[str], lines: Mapping[str, str]) -> None:
    """Writes tables in place of those with the same corners, and lines of those that begin so."""
    new = {_corner(each): each for each in tables}
    old = path.read_text(encoding="utf-8")
    text = TABLE.sub(lambda match: new.get(_corner(match[0]), match[0]), old)
    for begin, line in lines.items():
        text = re.sub(rf"^{begin}.*", lambda _, line=line: line, text, flags=re.MULTILINE)
    path.write_text(text, encoding="utf-8")


def _corner(table: str) -> str:
    return table.split("|")[1].strip()


def changes(stored: Cells, measured: Cells) -> list[str]:
    """Returns a line for each cell that differs, by its row and column."""
    was, now = (
        {f"{row} | {column}": text for row in cells for column, text in cells[row].items()}
        for cells in (stored, measured)
    )
    return [
        f"{name}: {was.get(name)!r} is written, {now.get(name)!r} was measured"
        for name in was | now
        if was.get(name) != now.get(name)
    ]


def asked_to_write(description: str) -> bool:
    """Reads the command line: whether to write the page, or to compare with it."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help="write the page")
    action.add_argument("--check", action="store_true", help="fail where the page says other")
    return bool(parser.parse_args().write)


def report(changed: list[str]) -> int:
    """Prints what changed, and returns the exit code."""
    print("\n".join(changed) or "every cell is as it is written")
    return int(bool(changed))
