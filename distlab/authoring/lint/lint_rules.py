"""Rules for one notebook: its title, its headings, its cells, and what they wrote."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from distlab.authoring.compare import is_tolerance
from distlab.authoring.notebook_text import (
    Finding,
    code_cells,
    headings_of,
    runs,
    tags_of,
    unexpected_errors,
)
from distlab.authoring.source import Edition
from distlab.course.exercise_table import COLUMNS, DIFFICULTIES, PATHS, table_of

if TYPE_CHECKING:
    from nbformat import NotebookNode

# The second-level headings that open and close every notebook.
FIXED_SECTIONS: dict[Edition, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "lesson": ((), ("Check yourself", "Next steps")),
    "exercise": (("Overview",), ("Next steps",)),
    "solution": (("Overview",), ("Next steps",)),
}
# What the opening of a lesson says, besides its minutes.
_OPENING = {
    "what a learner can do afterwards: 'you can', and a list": r"\byou can\b.*? - ",
    "what a learner needs: '**Needs:** lesson NN', or 'You need lesson NN'": r"\*\*Needs:|\bneed ",
}
# Words that keep their capital inside a heading. Words with a capital further in
# (TensorFlow, TF_CONFIG, GPUs) need no entry.
PROPER_NAMES = frozenset(
    """Adam Amdahl Colab Gaussian Google Gustafson Jupyter Keras Linux Nesterov Python Ray Slurm
    Windows""".split()  # noqa: SIM905 - one name a line would be longer than the module
)
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_PARAGRAPH = re.compile(r"(?!- |\d+\. |#|\||<|>)\S")
# The end of an item, and the mark of the next one in the same line.
_SWALLOWED = re.compile(r"^(?:- |\d+\. |  ).*[,.;:)] (- [a-z\[`*].{0,20}|\d\. [A-Z`\[].{0,20})")
_WORD = re.compile(r"`|\w[\w']*|[.!?:](?=\s)")


def one_title(notebook: NotebookNode) -> list[Finding]:
    """Exactly one H1, and it opens the notebook."""
    titles = [heading.cell for heading in headings_of(notebook) if heading.level == 1]
    first = notebook.cells[0].source.lstrip() if notebook.cells else ""
    if titles[:1] != [1] or not first.startswith("# "):
        findings = [Finding(1, "the first cell must open with the title, '# Title'")]
    else:
        findings = []
    return findings + [Finding(cell, "a second title; use '##'") for cell in titles[1:]]


def no_skipped_level(notebook: NotebookNode) -> list[Finding]:
    """A heading is at most one level below the one before it."""
    headings = headings_of(notebook)
    return [
        Finding(below.cell, f"heading {below.text!r} skips from H{above.level} to H{below.level}")
        for above, below in pairwise(headings)
        if below.level > above.level + 1
    ]


def sentence_case(notebook: NotebookNode) -> list[Finding]:
    """Headings are written like sentences: 'Split the batch', not 'Split The Batch'."""
    findings = []
    for heading in headings_of(notebook):
        before = "."
        for word in _WORD.findall(heading.prose):
            bare = word.removesuffix("'s")
            # After a colon both cases are good English.
            if before in (".", "!", "?") and word.islower():
                findings.append(Finding(heading.cell, f"heading {heading.text!r}: capital first"))
            elif before not in (".", "!", "?", ":") and _is_title_case(bare):
                message = f"heading {heading.text!r}: sentence case, so {word.lower()!r}"
                findings.append(Finding(heading.cell, message))
            before = word
    return findings


def lists_on_purpose(notebook: NotebookNode) -> list[Finding]:
    """A list begins after an empty line, and each item begins on a new line.

    A paragraph whose line happens to begin with "- " is drawn as a list. An item that a new line
    break has moved into the one before is drawn as its text.
    """
    findings = []
    for number, cell in enumerate(notebook.cells, 1):
        if cell.cell_type != "markdown":
            continue
        for before, line in pairwise(_FENCED.sub("", f"\n{cell.source}").splitlines()):
            if line.startswith("- ") and _PARAGRAPH.match(before):
                findings.append(
                    Finding(number, f"{line[:30]!r} is drawn as a list: break elsewhere")
                )
            if swallowed := _SWALLOWED.search(line):
                findings.append(Finding(number, f"{swallowed[1]!r} is drawn as text: a new line"))
    return findings


def fixed_sections(notebook: NotebookNode, *, edition: Edition) -> list[Finding]:
    """The sections that open and close every notebook are there, in their order."""
    sections = [heading.text for heading in headings_of(notebook) if heading.level == 2]
    opening, closing = FIXED_SECTIONS[edition]
    findings = []
    if tuple(sections[: len(opening)]) != opening:
        findings.append(Finding(None, f"the first section must be {_listed(opening)}"))
    if tuple(sections[-len(closing) :]) != closing:
        findings.append(Finding(None, f"must end with {_listed(closing)}"))
    return findings


def complete_opening(notebook: NotebookNode) -> list[Finding]:
    """Before the first section, or in '## Overview', a lesson says how long and what for."""
    text = _opening(notebook)
    low, high = notebook.metadata.get("distlab", {}).get("minutes", (0, 0))
    findings = []
    if f"{low} to {high} minutes" not in text:
        found = re.search(r"\b\d+ (?:to \d+ )?minutes", text)
        typed = f" in place of {found[0]!r}" if found else ""
        findings.append(
            Finding(None, f"the opening must say how long it takes: write '{{minutes}}'{typed}")
        )
    for words, pattern in _OPENING.items():
        if not re.search(pattern, text):
            findings.append(Finding(None, f"the opening must say {words}"))
    return findings


def tasks_on_a_path(notebook: NotebookNode) -> list[Finding]:
    """The table of an exercise says of each task how long it takes, how hard it is and for whom."""
    texts = [(n, c.source) for n, c in enumerate(notebook.cells, 1) if c.cell_type == "markdown"]
    tables = [(number, rows) for number, text in texts if (rows := table_of(text))]
    if not tables:
        return [Finding(None, f"has no table of its tasks: | {' | '.join(COLUMNS)} |")]
    number, rows = tables[0]
    if tuple(rows[0]) != COLUMNS:
        return [Finding(number, f"the table of tasks must have | {' | '.join(COLUMNS)} |")]
    findings = []
    for row in rows[1:]:
        for column, allowed in (("difficulty", DIFFICULTIES), ("path", PATHS)):
            if row.get(column) not in allowed:
                found = f"{row['task']}: {column} {row.get(column)!r}; write {' or '.join(allowed)}"
                findings.append(Finding(number, found))
        if not row.get("minutes", "").isdigit():
            findings.append(Finding(number, f"{row['task']}: no whole number of minutes"))
        if "no points" in row.get("what you do", "") and row.get("path") == "core":
            findings.append(Finding(number, f"{row['task']}: has no points, so it's extra"))
    if not any(row.get("path") == "core" for row in rows[1:]):
        findings.append(Finding(number, "has no core task"))
    return findings


def _opening(notebook: NotebookNode) -> str:
    """Returns the text before the first section; '## Overview' is none."""
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    text = "\n\n".join(texts).replace("## Overview", "", 1)
    opening = re.split(r"^###? ", text, maxsplit=1, flags=re.MULTILINE)[0]
    return " ".join(opening.split())


def _is_title_case(word: str) -> bool:
    # One letter alone (the I of English, a Plan B) is no title case.
    return word.istitle() and len(word) > 1 and word not in PROPER_NAMES


def _listed(sections: tuple[str, ...]) -> str:
    return " and ".join(f"'## {section}'" for section in sections)


# Code cells, and what they wrote

MAX_LINES = 30
# A whole program that readers copy has the tag `whole-program`.
MAX_PROGRAM_LINES = 60
TAGS = frozenset(
    f"{verb}-{part}" for verb in ("hide", "remove") for part in ("cell", "input", "output")
) | {
    "after-reveal",
    "nbval-check-output",
    "nbval-ignore-output",
    "nbval-raises-exception",
    "nbval-skip",
    "predict",
    "raises-exception",
    "reveal",
    "whole-program",
}
# The regression does not compare what these cells write, so it may change.
_NOT_COMPARED = {"nbval-ignore-output", "nbval-skip"}
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PATHS = {
    "a path of this machine": re.compile(
        r"(?<![\w.])/(?:home|Users)/\w|(?<![\w./])/root/|(?<![\w.])/(?:var/folders|private/var|tmp)/"
        r"|[A-Za-z]:\\Users\\"
    ),
}
_CHANGING = {
    "a memory address": re.compile(r"\b0x[0-9a-fA-F]{5,}"),
    "a time": re.compile(
        r"\b\d{1,2}:\d\d:\d\d\b|\b20\d\d-\d\d-\d\d\b|\b\d+[mu]?s/(?:step|epoch)\b|Wall time:"
    ),
    "a device name": re.compile(r"\bdevice:[CG]PU:\d"),
}


def short_cells(notebook: NotebookNode) -> list[Finding]:
    """No code cell is longer than a reader takes in at once."""
    findings = []
    for number, cell in code_cells(notebook):
        count = len(cell.source.splitlines())
        most = MAX_PROGRAM_LINES if "whole-program" in tags_of(cell) else MAX_LINES
        if count > most:
            findings.append(Finding(number, f"{count} lines of code; at most {most}"))
    return findings


def all_executed(notebook: NotebookNode) -> list[Finding]:
    """Every code cell was run, from the first to the last, in one go."""
    findings = []
    ran = ((number, cell) for number, cell in code_cells(notebook) if runs(cell))
    for expected, (number, cell) in enumerate(ran, 1):
        if cell.execution_count is None:
            findings.append(Finding(number, "was never run; run 'make notebooks'"))
        elif cell.execution_count != expected:
            message = f"run as [{cell.execution_count}], must be [{expected}]"
            findings.append(Finding(number, message))
    return findings


def known_tags(notebook: NotebookNode) -> list[Finding]:
    """Only tags that some tool of ours understands."""
    return [
        Finding(
            number,
            f"unknown tag {tag!r}; known are {', '.join(sorted(TAGS))}, "
            "numbers-vary, numbers-within-0.02 and numbers-within-5%",
        )
        for number, cell in enumerate(notebook.cells, 1)
        for tag in tags_of(cell)
        if tag not in TAGS and not is_tolerance(tag)
    ]


def no_errors(notebook: NotebookNode) -> list[Finding]:
    """No stored exception, but where the cell is tagged to raise one."""
    return [
        Finding(number, f"ends in {output.ename}; tag it raises-exception if that is meant")
        for number, cell in code_cells(notebook)
        for output in unexpected_errors(cell)
    ]


def stable_text(notebook: NotebookNode) -> list[Finding]:
    """Nothing in the outputs that belongs to one machine or one moment."""
    findings = []
    for number, cell in code_cells(notebook):
        compared = not _NOT_COMPARED & set(tags_of(cell))
        patterns = _PATHS | _CHANGING if compared else _PATHS
        text = "\n".join(output_texts(cell))
        for habit, pattern in patterns.items():
            if match := pattern.search(text):
                line = text[text.rfind("\n", 0, match.start()) + 1 :].splitlines()[0].strip()
                findings.append(Finding(number, f"output holds {habit}: {line[:80]!r}"))
    return findings


def output_texts(cell: NotebookNode) -> Iterator[str]:
    """Yields each text that a code cell wrote, without colours."""
    for output in cell.outputs:
        if output.output_type == "stream":
            yield _COLOUR.sub("", output.text)
        elif output.output_type == "error":
            yield _COLOUR.sub("", "\n".join([output.evalue, *output.traceback]))
        else:
            for kind, value in output.data.items():
                # Pictures inside HTML are base64, where anything may seem to stand.
                if kind.startswith("text/"):
                    yield re.sub(r"data:[\w/+.-]+;base64,[\w+/=\s]+", "", str(value))
