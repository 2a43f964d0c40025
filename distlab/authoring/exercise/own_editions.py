"""Builds the editions of exercises, from sources anywhere into any folder.

    for built in build_editions([Path("20_my_topic.py")], BuildOptions(out=Path("handout"))):
        print(built.path, built.outcome)    # handout/exercises/20_my_topic.ipynb new

All are built before the first is written, so that an error leaves nothing half done.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from distlab.atomic_write import write_atomically
from distlab.authoring.build import run_draft
from distlab.authoring.source import Draft, Edition, Page, draft_page
from distlab.authoring.stored_form import stored_text
from distlab.autograder.intake.notebook import python_of
from distlab.course.checks.own_checks import load_own
from distlab.course.checks.registry import stems
from distlab.course.editions import Answer
from distlab.course.markup import CODE, TASK, TASK_LINE
from distlab.errors import InvalidArgument, NotebookError, did_you_mean

if TYPE_CHECKING:
    from nbformat import NotebookNode


_STEM = re.compile(r"[A-Za-z0-9_-]{1,50}")  # what ids of cells may hold, and their number beside it
_IN_LESSONS = "exercise.py"
# A cell that needs a file of checks: of a check, or of a report.
_ASKS = re.compile(r"^((dl\.)?check\(|# report: )", re.MULTILINE)


@dataclass(frozen=True)
class OwnPage(Page):
    """A page that is built from one file into any folder."""

    file: Path
    checks: Path | None

    @property
    def source(self) -> str:
        """The source as messages and the notebook name it, without this machine's folders."""
        is_in_lessons = self.file.name == _IN_LESSONS
        return f"{self.stem}/{_IN_LESSONS}" if is_in_lessons else self.file.name

    @property
    def path(self) -> Path:
        """The source's path."""
        return self.file

    def points(self) -> dict[str, float]:
        """Returns what each check and each report is worth, by its name."""
        if self.checks is None:
            return super().points()
        checks, reports = load_own(self.checks)
        points = {check.name: check.points for check in checks}
        return points | {report.name: report.points for report in reports}


def check_folder(folder: Path, *, asked: str) -> None:
    """Raises where nothing can be written into a folder, which need not be there yet."""
    path = folder.absolute()
    existing = next(place for place in (path, *path.parents) if place.exists())
    if not existing.is_dir():
        raise InvalidArgument(
            asked=asked, found=f"{existing}, which is a file", do="choose a folder"
        )
    if not os.access(existing, os.W_OK):
        raise InvalidArgument(
            asked=asked, found=f"{existing}, which cannot be written", do="choose another folder"
        )


def own_page(file: Path, edition: Edition, *, out: Path = Path()) -> OwnPage:
    """Returns the page of a source."""
    asked = f"the notebooks of {file}"
    if not file.is_file():
        inside = file / _IN_LESSONS
        raise InvalidArgument(
            asked=asked,
            found="a folder" if file.is_dir() else "no file of that name",
            do=f"name its source: {inside}"
            if inside.is_file()
            else "name an exercise's source, a .py file",
        )
    stem = (
        file.resolve().parent.name.removeprefix("lesson_")
        if file.name == _IN_LESSONS
        else file.stem
    )
    if file.suffix != ".py" or not _STEM.fullmatch(stem):
        raise InvalidArgument(
            asked=asked,
            found=f"the name {file.name!r}",
            do="name it .py, before that at most 50 of a-z, A-Z, 0-9, '_' and '-'",
        )
    checks = file.with_name(f"lesson_{stem}.py")
    if checks.is_file():
        load_own(checks)
    elif stem not in stems() and _ASKS.search(file.read_text(encoding="utf-8")):
        raise InvalidArgument(
            asked=asked,
            found=f"a check or a report, and no file of checks: there is no {checks}",
            do=f"define it in {checks.name}",
        )
    return OwnPage(out, stem, edition, file, checks if checks.is_file() else None)


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """How editions are built."""

    out: Path  # the folder that gets `exercises/` and `solutions/`
    execute: bool = False  # whether the notebooks are run, so that they show their outputs
    force: bool = False  # whether to overwrite notebooks that differ
    solutions: bool = True  # whether to write the solutions too


@dataclass(frozen=True)
class BuiltFile:
    """A file of an edition; "current" if the same was there before."""

    path: Path
    outcome: Literal["new", "current", "overwritten"]


def build_editions(sources: Sequence[Path], options: BuildOptions) -> list[BuiltFile]:
    """Writes the student edition and the solution of each source.

    A file of checks that a source imports goes beside its notebooks.
    """
    check_folder(options.out, asked=f"write to {options.out}")
    editions: list[Edition] = ["exercise", "solution"] if options.solutions else ["exercise"]
    texts: dict[Path, str] = {}
    for source in sources:
        for edition in editions:
            page = own_page(source, edition, out=options.out)
            target = options.out / page.target
            if target in texts:
                raise InvalidArgument(
                    asked=f"the notebooks of {source}",
                    found=f"another source that makes {target} too",
                    do="rename one of them, or build it into another folder",
                )
            texts |= _files_of(page, target, execute=options.execute)
    outcomes = [_outcome(path, text, force=options.force) for path, text in texts.items()]
    for built in outcomes:
        if built.outcome != "current":
            write_atomically(built.path, texts[built.path])
    return outcomes


def _files_of(page: OwnPage, target: Path, *, execute: bool) -> dict[Path, str]:
    draft = draft_page(page)
    proofread(draft, page)
    beside = _imported_checks(page)
    executed = _executed(draft, page, beside) if execute else draft.notebook
    files = {target: stored_text(draft.notebook, executed)}
    if beside is not None:
        files[target.with_name(beside.name)] = beside.read_text(encoding="utf-8")
    return files


def _imported_checks(page: OwnPage) -> Path | None:
    """The file of checks that the notebook needs beside it."""
    if page.checks is None:
        return None
    imported = rf"^\s*(import|from) {re.escape(page.checks.stem)}\b"
    text = page.path.read_text(encoding="utf-8")
    return page.checks if re.search(imported, text, re.MULTILINE) else None


def _executed(draft: Draft, page: OwnPage, beside: Path | None) -> NotebookNode:
    from distlab.authoring.execute import execute

    with tempfile.TemporaryDirectory(prefix="distlab-exercise-") as folder:
        if beside is not None:
            shutil.copy(beside, folder)

        def run(
            notebook: NotebookNode, *, on_cell: Callable[[int, NotebookNode], None] | None
        ) -> NotebookNode:
            return execute(notebook, cwd=Path(folder), on_cell=on_cell)

        return run_draft(draft, page, run)


def _outcome(path: Path, text: str, *, force: bool) -> BuiltFile:
    if not path.exists():
        return BuiltFile(path, "new")
    if path.is_file() and path.read_bytes() == text.encode():
        return BuiltFile(path, "current")
    if not force:
        raise InvalidArgument(
            asked=f"write {path}",
            found="a file of that name that differs",
            do="choose another --out, or overwrite it with --force",
        )
    return BuiltFile(path, "overwritten")


def proofread(draft: Draft, page: Page) -> None:
    """Raises where a page cannot be meant so."""
    for cell, line, parts in zip(draft.notebook.cells, draft.lines, draft.parts, strict=True):
        if cell.cell_type == "code":
            asked = f"the cell at {page.source}, line {line}"
            _refuse_answer(parts, asked)
            _refuse_no_python(cell.source, asked)
            if isinstance(page, OwnPage) and page.checks is not None:
                _refuse_other_names(cell.source, asked, page.checks)


def _refuse_answer(parts: Sequence[str | Answer], asked: str) -> None:
    is_task = parts and isinstance(parts[0], str) and TASK.match(parts[0])
    if is_task and not any(isinstance(part, Answer) for part in parts):
        raise NotebookError(
            asked=asked,
            found=f"a task without '{CODE.begin}': students would get all of it",
            do=f"write '{CODE.begin}' above the answer, and '{CODE.end}' below it",
        )


def _refuse_other_names(source: str, asked: str, file: Path) -> None:
    """Raises for a task without a check, a function without its task, and other checks' import."""
    checks = {check.name: check for check in load_own(file)[0]}
    for task in TASK_LINE.findall(source):
        if task not in checks:
            found = f"the task {task!r}, and no check of that name in {file.name}"
            raise NotebookError(asked=asked, found=found, do=did_you_mean(task, sorted(checks)))
        function = checks[task].function
        if function not in re.findall(r"^def (\w+)\(", source, re.MULTILINE):
            found = f"no function {function!r}, which the check {task!r} calls"
            raise NotebookError(asked=asked, found=found, do=f"define {function} in this cell")
    for module in re.findall(r"^(?:import|from) (lesson_\w+)", source, re.MULTILINE):
        if module != file.stem:
            found = f"an import of {module}, while its checks are in {file.name}"
            raise NotebookError(asked=asked, found=found, do=f"import {file.stem}")


def _refuse_no_python(source: str, asked: str) -> None:
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as of an escape that is none
            compile(python_of(source), asked, "exec", flags=flags)
    except (SyntaxError, ValueError) as error:
        text = error.text if isinstance(error, SyntaxError) else None
        where = f": {text.strip()}" if text else ""
        says = error.msg if isinstance(error, SyntaxError) else str(error)
        raise NotebookError(
            asked=asked, found=f"no Python: {says}{where}", do="repair the line, then build again"
        ) from error
