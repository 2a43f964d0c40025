"""Is every notebook what its source builds?

    for difference in find_drift(Path.cwd()):
        print(difference)       # notebooks/00_start_here.ipynb: cell 3 is not its source's

Compared are cells, their ids and metadata and the hash of the source; whether the outputs
still hold is what the regression asks.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from distlab.authoring.notebook_text import runs
from distlab.authoring.source import (
    EDITIONS,
    LESSONS,
    draft_page,
    find_pages,
    lesson_folder,
    lesson_stems,
)
from distlab.authoring.storing import canonical
from distlab.errors import NotebookError

if TYPE_CHECKING:
    from nbformat import NotebookNode


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
