"""Runs the notebooks whose sources changed and stores them; says which are not current.

    results = build_pages(find_pages(root), jobs=2, say=print)
    sum(result.error is not None for result in results)
    for difference in find_drift(root):
        print(difference)       # notebooks/00_start_here.ipynb: cell 3 is not its source's

Whether the outputs still hold is what the regression asks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from distlab.atomic_write import write_atomically
from distlab.authoring.notebook_text import runs, unexpected_errors
from distlab.authoring.source import (
    EDITIONS,
    LESSONS,
    Draft,
    Page,
    draft_page,
    find_pages,
    lesson_folder,
    lesson_stems,
)
from distlab.authoring.stored_form import canonical, stored_text
from distlab.errors import DistlabError, InvalidArgument, NotebookError, UnsupportedEnvironment

if TYPE_CHECKING:
    from nbformat import NotebookNode


Outcome = Literal["built", "current", "failed"]


class Execute(Protocol):
    """Runs all cells of a notebook; raises at the first failure."""

    def __call__(
        self, notebook: NotebookNode, *, on_cell: Callable[[int, NotebookNode], None] | None
    ) -> NotebookNode:
        """Returns a copy with outputs; calls `on_cell(index, cell)` behind each code cell."""


@dataclass(frozen=True)
class Built:
    """One page's build: its outcome, its duration, and its error if it failed."""

    page: Page
    outcome: Outcome
    elapsed_secs: float
    error: DistlabError | None = None


def build_pages(
    pages: Sequence[Page],
    *,
    force: bool = False,
    jobs: int = 2,
    execute: Execute | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[Built]:
    """Builds what changed; a notebook that fails leaves its old file, and the others go on."""
    if jobs < 1:
        raise InvalidArgument(
            asked=f"build notebooks with --jobs {jobs}",
            found=f"--jobs {jobs}",
            do="build 1 notebook at a time or more",
        )

    run = execute or _executor()

    def build(page: Page) -> Built:
        return _build(page, force=force, execute=run, say=say)

    with ThreadPoolExecutor(max_workers=jobs) as pool:
        try:
            return list(pool.map(build, pages))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _build(page: Page, *, force: bool, execute: Execute, say: Callable[[str], None]) -> Built:
    start = time.monotonic()

    def ended(outcome: Outcome, error: DistlabError | None = None) -> Built:
        elapsed_secs = time.monotonic() - start
        say(f"{outcome:8}{page.target}  ({elapsed_secs:.1f} s)")
        return Built(page, outcome, elapsed_secs, error)

    try:
        draft = draft_page(page)
        target = page.root / page.target
        difference = difference_from(draft.notebook, target)
        why = difference or ("forced" if force else "")
        if not why:
            return ended("current")
        say(f"{'run':8}{page.target}: {why}")
        hands_out_new_code = page.edition == "exercise" and bool(difference)
        with _in_place(draft.notebook, target) if hands_out_new_code else nullcontext():
            executed = run_draft(draft, page, execute)
        write_atomically(target, stored_text(draft.notebook, executed))
    except DistlabError as error:
        return ended("failed", error)
    except Exception as error:  # a full disk, say: the other notebooks are still worth building
        return ended("failed", _unexpected(page, error))
    return ended("built")


@contextmanager
def _in_place(notebook: NotebookNode, target: Path) -> Iterator[None]:
    """Puts an exercise where it is handed out, before it runs; puts the old file back if it fails.

    Its checks look there for the code that a learner is given, to say "not started". A build
    that is killed leaves an exercise that "was never run", which the next build mends.
    """
    old = target.read_bytes() if target.is_file() else None
    write_atomically(target, canonical(notebook))
    try:
        yield
    except BaseException:
        if old is None:
            target.unlink()
        else:
            write_atomically(target, old)
        raise


def run_draft(draft: Draft, page: Page, execute: Execute) -> NotebookNode:
    """Returns a draft with its outputs."""
    done: list[int] = []

    def on_cell(index: int, cell: NotebookNode) -> None:
        if not unexpected_errors(cell):
            done.append(index)

    try:
        return execute(draft.notebook, on_cell=on_cell)
    except UnsupportedEnvironment:
        raise
    except Exception as error:  # the kernel's failure, whatever its kind, is the page's
        found = (
            error.found if isinstance(error, DistlabError) else f"{type(error).__name__}: {error}"
        )
        raise NotebookError(
            asked=f"run {page.target}",
            found=f"{_first_not_done(draft, done)} of {page.source}: {found}",
            do=f"mend that cell of {page.source}, then build again",
        ) from error


def _first_not_done(draft: Draft, done: list[int]) -> str:
    """Names the cell that ended a run, of which only the cells before it reported."""
    for index, cell in enumerate(draft.notebook.cells):
        if index > max(done, default=-1) and runs(cell):
            return f"cell {index + 1}, line {draft.lines[index]}"
    return "the end"


def _executor() -> Execute:
    from distlab.authoring.execute import execute

    return execute


def _unexpected(page: Page, error: Exception) -> NotebookError:
    return NotebookError(
        asked=f"build {page.target}",
        found=f"{type(error).__name__}: {error}",
        do="the old notebook, if any, is still there; repair the cause and build again",
    )


def find_drift(root: Path) -> list[str]:
    """Returns one line for each thing that is not as the sources ask; empty when all is well."""
    lines = []
    pages = find_pages(root)
    for stem in lesson_stems(root):
        for name in sorted({source for _, source in EDITIONS.values()}):
            if not (lesson_folder(root, stem) / name).is_file():
                lines.append(f"{LESSONS}/lesson_{stem}: has no {name}; write it")
    for page in pages:
        try:
            difference = difference_from(draft_page(page).notebook, root / page.target)
        except NotebookError as error:
            difference = f"cannot be built: {error}"
        if difference:
            lines.append(f"{page.target}: {difference}")
    wanted = {page.target for page in pages}
    for folder, source in EDITIONS.values():
        for path in sorted((root / folder).glob("*.ipynb")):
            if f"{folder}/{path.name}" not in wanted:
                lines.append(
                    f"{folder}/{path.name}: has no {LESSONS}/lesson_{path.stem}/{source}; "
                    "write it, or delete the notebook"
                )
    return lines


def difference_from(draft: NotebookNode, path: Path) -> str:
    """Returns how a stored notebook differs from what its source builds, or ""."""
    import nbformat

    if not path.is_file():
        return "is missing"
    text = path.read_text(encoding="utf-8")
    try:
        stored = nbformat.reads(text, as_version=nbformat.NO_CONVERT)  # type: ignore[no-untyped-call]
        same_form = canonical(stored) == text
    except Exception as error:  # whatever a damaged file makes nbformat raise
        return f"is no readable notebook ({type(error).__name__})"
    # The state of widgets comes from the run, as outputs do.
    draft_notes, stored_notes = draft.metadata, {**stored.metadata}
    stored_notes.pop("widgets", None)
    if draft_notes != stored_notes:
        if {**draft_notes, "distlab": None} == {**stored_notes, "distlab": None}:
            return "its source has changed since it was built"
        return "its metadata is not what the builder writes"
    for number, (cell, stored_cell) in enumerate(zip(draft.cells, stored.cells, strict=False), 1):
        for key in ("id", "cell_type", "source", "metadata"):
            if cell[key] != stored_cell.get(key):
                return f"cell {number}: its {key} is not what the source builds"
        if runs(stored_cell) and stored_cell.execution_count is None:
            return f"cell {number}: was never run"
    if len(draft.cells) != len(stored.cells):
        return f"has {len(stored.cells)} cells, its source {len(draft.cells)}"
    return "" if same_form else "was not written by the builder (keys, indent or last newline)"
