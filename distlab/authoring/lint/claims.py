"""The claims of each lesson: every surprising statement, and where it is shown.

`claims.md` of a lesson is a table; several places in one row are separated by `;` or `<br>`:

    | claim | where it is shown |
    |---|---|
    | A sum over replicas is four times too large. | cell: `dl.show("SUM over replicas"` |
    | The same in `fit`. | test: tests/test_fit.py::test_sums; source: https://www.tensorflow.org |

The text after `cell:` is found in exactly one cell of lesson.py and exercise.py together, whatever
its white space.

    for finding in lint_claims(Path.cwd()):
        print(finding)            # ...lesson_00_a/claims.md: line 3: there is no file 'tests/x.py'
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from distlab.authoring.notebook_text import Finding
from distlab.authoring.source import EDITIONS, STEM, lesson_folder, lesson_stems, notebook_tools

_FORM = "'cell: text', 'test: tests/test_x.py::test_y' or 'source: https://...'"
_BETWEEN_CELLS = re.compile(r"(?<!\\)\|")
_RULER = re.compile(r"[\s:|-]+")
_BETWEEN_POINTERS = re.compile(r"\s*(?:<br\s*/?>|;)\s*(?=`?(?:cell|test|source):)")
_POINTER = re.compile(r"`?(cell|test|source):\s*(.+)")
_WEB_ADDRESS = re.compile(r"https://[\w-]+(\.[\w-]+)+")


def lint_claims(root: Path) -> list[Finding]:
    """Returns what is wrong with the claims of the lessons below `root`."""
    findings = []
    for stem in lesson_stems(root):
        folder = lesson_folder(root, stem)
        if STEM.fullmatch(stem) and (folder / "lesson.py").is_file():
            file = (folder / "claims.md").relative_to(root).as_posix()
            findings += [Finding(None, message, file) for message in _problems(root, folder)]
    return findings


def _problems(root: Path, lesson: Path) -> Iterator[str]:
    path = lesson / "claims.md"
    if not path.is_file():
        yield "is missing; list each surprising statement with the place that shows it"
        return
    rows = list(_rows(path.read_text(encoding="utf-8")))
    if not rows:
        yield "has no row; write a table '| claim | where it is shown |'"
        return
    cells = cells_of(lesson)
    for line, columns in rows:
        if len(columns) != 2 or not all(columns):
            yield f"line {line}: {len(columns)} columns; write the claim and where it is shown"
            continue
        for problem in pointer_problems(columns[1], root, cells):
            yield f"line {line}: {problem}"


def _rows(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the rows below the head of each table, with the numbers of their lines."""
    is_below_head = False
    for number, line in enumerate(text.splitlines(), 1):
        if not line.lstrip().startswith("|"):
            is_below_head = False
        elif _RULER.fullmatch(line):
            is_below_head = True
        elif is_below_head:
            columns = _BETWEEN_CELLS.split(line.strip().removeprefix("|").removesuffix("|"))
            yield number, [column.strip().replace(r"\|", "|") for column in columns]


def cells_of(lesson: Path) -> list[str]:
    """Returns the source of each cell, every white space in it one space."""
    jupytext, _ = notebook_tools()
    return [
        " ".join(cell.source.split())
        for name in sorted({source for _, source in EDITIONS.values()})
        if (path := lesson / name).is_file()
        for cell in jupytext.reads(path.read_text(encoding="utf-8"), fmt="py:percent").cells
    ]


def pointer_problems(pointers: str, root: Path, cells: list[str]) -> list[str]:
    """Returns what is wrong with the places that show a statement."""
    problems = (_problem(pointer, root, cells) for pointer in _BETWEEN_POINTERS.split(pointers))
    return [problem for problem in problems if problem]


def _problem(pointer: str, root: Path, cells: list[str]) -> str:
    match = _POINTER.fullmatch(pointer.strip())
    if not match:
        return f"{pointer!r} points to nothing; write {_FORM}"
    kind, place = match[1], match[2].strip().strip("`").strip()
    if kind == "cell":
        count = sum(" ".join(place.split()) in cell for cell in cells)
        return "" if count == 1 else f"{place!r} is in {count} cells; it must be in one"
    if kind == "test":
        return _test_problem(place, root)
    return "" if _WEB_ADDRESS.match(place) else f"{place!r} is no https address"


def _test_problem(place: str, root: Path) -> str:
    file, _, name = place.partition("::")
    name = name.rpartition("::")[2].partition("[")[0]
    path = root / file
    if not path.is_file():
        return f"there is no file {file!r}"
    if name.startswith("test") and name in _functions_in(path.read_text(encoding="utf-8")):
        return ""
    return f"{file} has no test {name!r}"


@functools.cache
def _functions_in(source: str) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)}
