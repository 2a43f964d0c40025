"""The lint of notebooks: their form, their links, what their outputs may hold.

report = lint_tree(Path.cwd())
for finding in report.findings:
    print(finding)          # notebooks/00_start_here.ipynb: cell 7: 34 lines of code; at most 30
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from distlab.errors import NotebookError
from distlab.notebooks import lint_code, lint_predictions, lint_text
from distlab.notebooks.claims import lint_claims
from distlab.notebooks.editions import leaking_lines
from distlab.notebooks.lint_links import links_resolve
from distlab.notebooks.notebook_text import Finding, code_cells
from distlab.notebooks.reading_time import lint_reading_time
from distlab.notebooks.source import (
    EDITIONS,
    Draft,
    Edition,
    draft_page,
    find_pages,
    notebook_tools,
)

if TYPE_CHECKING:
    from nbformat import NotebookNode

RULES = (
    lint_text.one_title,
    lint_text.no_skipped_level,
    lint_text.sentence_case,
    lint_text.lists_on_purpose,
    lint_code.short_cells,
    lint_code.all_executed,
    lint_code.known_tags,
    lint_code.no_errors,
    lint_code.stable_text,
    lint_predictions.asked_with_a_control,
    lint_predictions.asked_and_answered,
    lint_predictions.nothing_gives_it_away,
    lint_predictions.a_word_to_each_wrong_choice,
)


@dataclass(frozen=True)
class LintResult:
    """What the lint found in all notebooks."""

    findings: tuple[Finding, ...]
    summary: str


def lint_tree(root: Path) -> LintResult:
    """Reads every notebook below `root`, and the claims and the minutes of every lesson."""
    notebook_tools()  # asked here for its message
    import nbformat

    pages = {page.target: page for page in find_pages(root)}
    findings: list[Finding] = []
    lengths: list[int] = []
    notebooks = 0
    for edition, (folder, _) in EDITIONS.items():
        for path in sorted((root / folder).glob("*.ipynb")):
            file = f"{folder}/{path.name}"
            notebooks += 1
            try:
                notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
                mine = lint_notebook(notebook, edition=edition, root=root)
                if edition == "exercise" and file in pages:
                    mine += no_leak(notebook, draft_page(pages[file]))
            except (NotebookError, nbformat.reader.NotJSONError, nbformat.ValidationError) as error:
                mine = [Finding(None, f"cannot be read: {str(error).splitlines()[0]}")]
            else:
                lengths += [len(c.source.splitlines()) for _, c in code_cells(notebook)]
            findings += [replace(finding, file=file) for finding in mine]
    findings += lint_claims(root)
    findings += lint_reading_time(root)
    average = f"{sum(lengths) / len(lengths):.1f}" if lengths else "no"
    summary = (
        f"{notebooks} notebooks, {len(lengths)} code cells of {average} lines on average, "
        f"{len(findings)} findings"
    )
    return LintResult(tuple(findings), summary)


def lint_notebook(notebook: NotebookNode, *, edition: Edition, root: Path) -> list[Finding]:
    """Asks every rule about one notebook."""
    found = [finding for rule in RULES for finding in rule(notebook)]
    found += lint_text.fixed_sections(notebook, edition=edition)
    if edition == "lesson":
        found += lint_predictions.counted_at_the_end(notebook)
    found += links_resolve(notebook, edition=edition, root=root)
    return sorted(found, key=lambda finding: finding.cell or 0)


def no_leak(exercise: NotebookNode, draft: Draft) -> list[Finding]:
    """No line of a solution stands in the exercise, neither as code nor in what it wrote."""
    found = []
    for secret in leaking_lines(list(draft.parts)):
        for number, cell in enumerate(exercise.cells, 1):
            written = lint_code.output_texts(cell) if cell.cell_type == "code" else ()
            shown = {line.strip() for line in cell.source.splitlines()}
            if secret in shown or any(secret in text for text in written):
                found.append(Finding(number, f"gives the solution away: {secret!r}"))
    return found
