"""From a lesson's plain text to its notebooks, not yet run.

for page in find_pages(root):
    draft = draft_page(page)
    draft.notebook          # cells, ids and metadata, as the stored notebook must have them
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from distlab.authoring.minutes import Counted, count_minutes, fill_minutes
from distlab.authoring.nbgrader import mark_cells
from distlab.authoring.prediction_cells import fold_cells
from distlab.course.checks.registry import checks_of, reports_of
from distlab.course.editions import Answer, answered, parse_answers, stubbed
from distlab.course.markup import CODE, REPORT, TASK, TEXT
from distlab.environment import require_modules
from distlab.errors import InvalidArgument, NotebookError, did_you_mean

if TYPE_CHECKING:
    from nbformat import NotebookNode

Edition = Literal["lesson", "exercise", "solution"]
# The folder of each edition, and the source it is built from.
EDITIONS: dict[Edition, tuple[str, str]] = {
    "lesson": ("notebooks", "lesson.py"),
    "exercise": ("exercises", "exercise.py"),
    "solution": ("solutions", "exercise.py"),
}
# Where the lessons lie in a clone, each in a folder `lesson_<stem>`.
LESSONS = "distlab/course"
# Part of every notebook's hash: raise it when the builder writes something else.
FORMAT_VERSION = 1
STEM = re.compile(r"\d\d_[a-z0-9_]{1,50}")
_CELL_MARK = re.compile(r"# ?%%%*(\s|$)")


@dataclass(frozen=True)
class Page:
    """One notebook and the source it is built from."""

    root: Path
    stem: str
    edition: Edition

    @property
    def source(self) -> str:
        """The source's path from the root."""
        return f"{LESSONS}/lesson_{self.stem}/{EDITIONS[self.edition][1]}"

    @property
    def path(self) -> Path:
        """The source's path."""
        return self.root / self.source

    @property
    def target(self) -> str:
        """The notebook's path from the root."""
        return f"{EDITIONS[self.edition][0]}/{self.stem}.ipynb"

    def points(self) -> dict[str, float]:
        """Returns what each check and each report of the lesson is worth, by its name."""
        checks = {check.name: check.points for check in checks_of(self.stem)}
        return checks | {report.name: report.points for report in reports_of(self.stem)}


@dataclass(frozen=True)
class Draft:
    """A notebook before it is run.

    Attributes:
        notebook: Its cells and metadata.
        lines: The line of the source at which each cell starts.
        parts: The lines and the answers of each cell.
        counted: What there is to read in a lesson.
    """

    notebook: NotebookNode
    lines: tuple[int, ...]
    parts: tuple[list[str | Answer], ...]
    counted: Counted | None = None


def lesson_folder(root: Path, stem: str) -> Path:
    """The folder of a lesson, by its stem."""
    return root / LESSONS / f"lesson_{stem}"


def lesson_stems(root: Path) -> list[str]:
    """The stems of all lessons that lie below `root`, in their order."""
    folders = (path for path in (root / LESSONS).glob("lesson_*") if path.is_dir())
    return sorted(path.name.removeprefix("lesson_") for path in folders)


def find_pages(root: Path, stems: Sequence[str] = ()) -> list[Page]:
    """Returns the pages that the sources below `root` ask for."""
    known = lesson_stems(root)
    if not known:
        raise InvalidArgument(
            asked=f"the lessons of {root}",
            found=f"no {LESSONS}/lesson_* there",
            do="run this in the root of a clone of distlab, or name that with --root",
        )
    for name in known:
        if not STEM.fullmatch(name):
            raise NotebookError(
                asked=f"the lesson {LESSONS}/lesson_{name}",
                found="a name that is not two digits, '_' and at most 50 of a-z, 0-9 and '_'",
                do="rename the folder, as in lesson_00_start_here",
            )
    for stem in stems:
        if stem not in known:
            raise InvalidArgument(
                asked=f"the notebooks of {stem!r}",
                found=f"no lesson named {stem!r}",
                do=did_you_mean(stem, known),
            )
    pages = [Page(root, stem, edition) for stem in (stems or known) for edition in EDITIONS]
    return [page for page in pages if page.path.is_file()]


def draft_page(page: Page) -> Draft:
    """Reads a page's source into the notebook it asks for, not yet run."""
    jupytext, v4 = notebook_tools()
    text = page.path.read_text(encoding="utf-8-sig")  # Notepad of Windows writes the mark
    raw = jupytext.reads(text, fmt="py:percent").cells
    lines = _cell_lines(text)
    if len(raw) != len(lines) or not raw:
        raise NotebookError(
            asked=f"the cells of {page.source}",
            found=f"{len(lines)} lines that start a cell, but {len(raw)} cells",
            do="start every cell, the first as well, with a line '# %%' or '# %% [markdown]'",
        )
    cells, parts, names = [], [], set[str]()
    for index, (cell, line) in enumerate(zip(raw, lines, strict=True)):
        pieces = _pieces(cell, page, line)
        _take_name(pieces, names, cell, page=page, line=line)
        cell.source = (stubbed if page.edition == "exercise" else answered)(pieces)
        if not cell.source.strip():
            raise _refused(page, line, "an empty cell", "fill the cell, or take it out")
        # jupytext notes for itself how the text was laid out; that is not the notebook's.
        kept = {key: cell.metadata[key] for key in cell.metadata if key != "lines_to_next_cell"}
        new = v4.new_code_cell if cell.cell_type == "code" else v4.new_markdown_cell
        cells.append(new(cell.source, metadata=kept, id=f"{page.stem}-{index + 1:03}"))
        parts.append(pieces)
    _pair_reports(names, page)
    counted = count_minutes(cells) if page.edition == "lesson" else None
    if counted:
        fill_minutes(cells, counted)
    fold_cells(cells)
    if page.edition == "exercise":
        places = [f"{page.source}, line {line}" for line in lines]
        mark_cells(cells, points_of=page.points, places=places)
    metadata = _metadata(page, text)
    metadata["distlab"] |= counted.notes() if counted else {}
    notebook = v4.new_notebook(cells=cells, metadata=metadata, nbformat_minor=5)
    return Draft(notebook, tuple(lines), tuple(parts), counted)


def _metadata(page: Page, text: str) -> dict[str, dict[str, Any]]:
    digest = hashlib.sha256(f"{FORMAT_VERSION}\n{page.edition}\n{text}".encode()).hexdigest()
    return {
        "distlab": {"sha256": digest, "source": page.source},
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        # Without a version, which differs from one machine to the next.
        "language_info": {"name": "python"},
    }


def _pieces(cell: NotebookNode, page: Page, line: int) -> list[str | Answer]:
    marks = CODE if cell.cell_type == "code" else TEXT
    pieces = parse_answers(cell.source, file=page.source, line=line + 1, marks=marks)
    if page.edition == "lesson" and any(isinstance(piece, Answer) for piece in pieces):
        raise _refused(page, line, "a solution in a lesson", "move it to exercise.py")
    return pieces


def _take_name(
    pieces: list[str | Answer], names: set[str], cell: NotebookNode, *, page: Page, line: int
) -> None:
    """The grader finds an answer by its first line alone, so that line must be there, once."""
    first = pieces[0] if pieces and isinstance(pieces[0], str) else ""
    is_code = cell.cell_type == "code"
    if not ((is_code and TASK.fullmatch(first)) or REPORT.fullmatch(first)):
        if any(isinstance(piece, Answer) for piece in pieces):
            found, do = (
                ("a solution in a cell that is no task", "start it with '# task: name'")
                if is_code
                else ("a solution in a text cell", "start it with '<!-- report: name -->'")
            )
            raise _refused(page, line, found, do)
        return
    if first in names:
        raise _refused(page, line, f"a second {first!r}", "give each its own name")
    names.add(first)


def _pair_reports(names: set[str], page: Page) -> None:
    reports = [match for name in names if (match := REPORT.fullmatch(name))]
    pictures, texts = ({match[n] for match in reports} - {None} for n in (1, 2))
    if unpaired := sorted(pictures ^ texts):
        raise NotebookError(
            asked=f"the reports of {page.source}",
            found=f"{unpaired[0]!r} without its picture, or without its text",
            do="write two cells: a code cell that starts with '# report: name', and a text cell "
            "that starts with '<!-- report: name -->'",
        )


def _cell_lines(text: str) -> list[int]:
    return [n for n, line in enumerate(text.splitlines(), 1) if _CELL_MARK.match(line)]


def _refused(page: Page, line: int, found: str, do: str) -> NotebookError:
    return NotebookError(asked=f"the cell at {page.source}, line {line}", found=found, do=do)


def notebook_tools() -> tuple[Any, Any]:
    """Returns jupytext and nbformat's `v4`, which only an install with [test] has."""
    require_modules("notebooks from their sources", "jupytext", "nbformat")
    import jupytext
    from nbformat import v4

    return jupytext, v4
