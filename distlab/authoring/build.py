"""Runs the notebooks whose sources changed and stores them.

results = build_pages(find_pages(root), jobs=2, say=print)
sum(result.error is not None for result in results)
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
from distlab.authoring.drift import difference_from
from distlab.authoring.notebook_text import runs, unexpected_errors
from distlab.authoring.source import Draft, Page, draft_page
from distlab.authoring.storing import canonical, stored_text
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
    """What became of one page."""

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
        raise InvalidArgument(asked=f"jobs={jobs}", found="no job", do="pass 1 or more")

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
        do="the old notebook, if any, is still there; mend the cause and build again",
    )
