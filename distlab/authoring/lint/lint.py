"""The lint of notebooks: their form, their links, what their outputs may hold.

report = lint_tree(Path.cwd())
for finding in report.findings:
    print(finding)          # notebooks/00_start_here.ipynb: cell 7: 34 lines of code; at most 30
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from distlab.authoring.lint import lint_predictions, lint_rules
from distlab.authoring.lint.claims import lint_claims
from distlab.authoring.notebook_text import Finding, anchors_of, code_cells, links_of
from distlab.authoring.source import (
    EDITIONS,
    Draft,
    Edition,
    draft_page,
    find_pages,
    notebook_tools,
)
from distlab.course.editions import leaking_lines
from distlab.course.learner_folder import FOLDERS, PAGES
from distlab.errors import NotebookError

if TYPE_CHECKING:
    from nbformat import NotebookNode

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")

RULES = (
    lint_rules.one_title,
    lint_rules.no_skipped_level,
    lint_rules.sentence_case,
    lint_rules.lists_on_purpose,
    lint_rules.short_cells,
    lint_rules.all_executed,
    lint_rules.known_tags,
    lint_rules.no_errors,
    lint_rules.stable_text,
    lint_predictions.asked_and_answered,
    lint_predictions.nothing_gives_it_away,
    lint_predictions.a_word_to_each_wrong_choice,
    lint_predictions.conclusions_follow_an_answer,
)


@dataclass(frozen=True)
class LintResult:
    """The lint's findings in all notebooks, and their summary."""

    findings: tuple[Finding, ...]
    summary: str


def lint_tree(root: Path) -> LintResult:
    """Reads every notebook below `root`, and the claims of every lesson."""
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
                page_findings = lint_notebook(notebook, edition=edition, root=root)
                if edition == "exercise" and file in pages:
                    page_findings += no_leak(notebook, draft_page(pages[file]))
            except (NotebookError, nbformat.reader.NotJSONError, nbformat.ValidationError) as error:
                page_findings = [Finding(None, f"cannot be read: {str(error).splitlines()[0]}")]
            else:
                lengths += [len(c.source.splitlines()) for _, c in code_cells(notebook)]
            findings += [replace(finding, file=file) for finding in page_findings]
    findings += lint_claims(root)
    average = f"{sum(lengths) / len(lengths):.1f}" if lengths else "no"
    summary = (
        f"{notebooks} notebooks, {len(lengths)} code cells of {average} lines on average, "
        f"{len(findings)} findings"
    )
    return LintResult(tuple(findings), summary)


def lint_notebook(notebook: NotebookNode, *, edition: Edition, root: Path) -> list[Finding]:
    """Asks every rule about one notebook."""
    findings = [finding for rule in RULES for finding in rule(notebook)]
    findings += lint_rules.fixed_sections(notebook, edition=edition)
    if edition == "lesson":
        findings += lint_predictions.counted_at_the_end(notebook)
        findings += lint_rules.complete_opening(notebook)
    else:
        findings += lint_rules.tasks_on_a_path(notebook)
    findings += links_resolve(notebook, edition=edition, root=root)
    return sorted(findings, key=lambda finding: finding.cell or 0)


def no_leak(exercise: NotebookNode, draft: Draft) -> list[Finding]:
    """Returns the lines of solutions that the exercise shows, as code or in its outputs."""
    findings = []
    for secret in leaking_lines(list(draft.parts)):
        for number, cell in enumerate(exercise.cells, 1):
            written = lint_rules.output_texts(cell) if cell.cell_type == "code" else ()
            shown = {line.strip() for line in cell.source.splitlines()}
            if secret in shown or any(secret in text for text in written):
                findings.append(Finding(number, f"gives the solution away: {secret!r}"))
    return findings


def links_resolve(notebook: NotebookNode, *, edition: Edition, root: Path) -> list[Finding]:
    """Relative links lead to a file, '#' links to a heading; web addresses are not visited."""
    findings = []
    for number, target in links_of(notebook):
        message = _problem(notebook, unquote(target), edition, root.resolve())
        if message:
            findings.append(Finding(number, f"link {target!r} {message}"))
    return findings


def _problem(notebook: NotebookNode, target: str, edition: Edition, root: Path) -> str:
    if _SCHEME.match(target):
        local = target.lower().startswith(("file:", "attachment:"))
        return "is no web address and no path" if local else ""
    if target.startswith("/"):
        return "is absolute; write it from the notebook's own folder"
    path, _, anchor = target.partition("#")
    if not path:
        known = anchors_of(notebook)
    else:
        linked = (root / EDITIONS[edition][0] / path).resolve()
        # A solution is read in the repository, where everything is.
        # `distlab lab` lays these folders and pages, and nothing else, into a learner's copy.
        laid = [root] if edition == "solution" else [root / name for name in (*FOLDERS, *PAGES)]
        if not any(linked.is_relative_to(place) for place in laid):
            return "leaves notebooks/, exercises/ and the pages that a learner's copy has"
        if not linked.exists():
            return "leads nowhere"
        if not anchor or linked.suffix not in (".ipynb", ".md"):
            return ""
        is_page = linked.suffix == ".md"
        known = _anchors_of_page(linked) if is_page else anchors_of(_read(linked))
    if anchor and anchor not in known:
        return f"names no heading; they are written as {sorted(known)[:3]}"
    return "" if anchor or path else "is empty"


def _anchors_of_page(page: Path) -> set[str]:
    """Returns the anchors of a Markdown page, as GitHub and the site make them of its headings."""
    headings = re.findall(r"^#+ +(.+?) *$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _read(path: Path) -> NotebookNode:
    import nbformat

    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call,no-any-return]
