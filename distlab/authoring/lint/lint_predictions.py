"""Rules for predictions: each is asked, is answered once, and is given away by nothing.

A stored answer is read from the output of its `reveal`, because the source may compute it.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from distlab.authoring.notebook_text import Finding, code_cells, headings_of, tags_of
from distlab.authoring.prediction_cells import PredictionCall, answers, between, pairs, questions

if TYPE_CHECKING:
    from nbformat import NotebookNode

_COMPARED = re.compile(r"\b(expected|below)\s*=(?!=)")
_STORED_ANSWER = re.compile(r"^Answer: (.+)$", re.MULTILINE)


def asked_and_answered(notebook: NotebookNode) -> list[Finding]:
    """A tagged cell assigns each question to a name, and a later tagged cell reveals it, once."""
    asked, reveals = questions(notebook.cells), answers(notebook.cells)
    findings = [*_untagged(notebook, "predict", asked), *_untagged(notebook, "reveal", reveals)]
    names = Counter(question.name for question in asked)
    for question in asked:
        name, number = question.name, question.cell + 1
        later = [answer.cell for answer in reveals if answer.name == name]
        if not name:
            findings.append(Finding(number, "assigns its question to no name"))
        elif names[name] > 1:
            findings.append(Finding(number, f"{name!r} is the name of two questions"))
        elif len(later) != 1 or later[0] <= question.cell:
            times = f"revealed {len(later)} times" if len(later) != 1 else "revealed before"
            findings.append(Finding(number, f"{name!r} is {times}; a later cell must, once"))
    return findings


def nothing_gives_it_away(notebook: NotebookNode) -> list[Finding]:
    """Between question and answer nothing compares, says the answer or shows it unfolded."""
    findings = []
    for question, answer in pairs(notebook.cells):
        name, stored_answer = question.name, _stored_answer(notebook, answer)
        for index, cell in between(notebook.cells, question, answer):
            if cell.cell_type == "code" and (match := _COMPARED.search(cell.source)):
                findings.append(Finding(index + 1, f"'{match[1]}=' answers {name!r} too early"))
            if cell.cell_type == "code" and not _is_folded(cell):
                findings.append(Finding(index + 1, f"shows the outputs that answer {name!r}"))
            if cell.cell_type == "markdown" and stored_answer and stored_answer.search(cell.source):
                findings.append(Finding(index + 1, f"says the answer of {name!r} too early"))
        for heading in headings_of(notebook):
            if stored_answer and stored_answer.search(heading.text):
                findings.append(Finding(heading.cell, f"its heading says the answer of {name!r}"))
    return findings


def a_word_to_each_wrong_choice(notebook: NotebookNode) -> list[Finding]:
    """Each choice but the right one has a word in `reveal`."""
    findings = []
    for question, answer in pairs(notebook.cells):
        choices, words = _listed(question.call, "choices"), _listed(answer.call, "words")
        right = _literal(_argument(answer.call, 0, "answer"))
        missing = [choice for choice in choices if choice not in (*words, str(right))]
        # Where the answer is computed, one choice more needs no word.
        if len(missing) > (right is None):
            message = f"no word to {', '.join(map(repr, missing))} of {question.name!r}"
            findings.append(Finding(answer.cell + 1, message))
    return findings


def counted_at_the_end(notebook: NotebookNode) -> list[Finding]:
    """Behind the last answer, `recap()` says how many predictions came true."""
    reveals = answers(notebook.cells)
    last = max((answer.cell for answer in reveals), default=None)
    if last is None or any("recap()" in cell.source for cell in notebook.cells[last:]):
        return []
    return [Finding(last + 1, "no cell behind it calls recap(), from distlab.course.predictions")]


def conclusions_follow_an_answer(notebook: NotebookNode) -> list[Finding]:
    """Returns the cells tagged `after-reveal` that no prediction's answer precedes."""
    first = min((answer.cell for answer in answers(notebook.cells)), default=len(notebook.cells))
    return [
        Finding(index + 1, "is tagged 'after-reveal', and no cell before it reveals an answer")
        for index, cell in enumerate(notebook.cells[:first])
        if "after-reveal" in tags_of(cell)
    ]


def _untagged(notebook: NotebookNode, tag: str, calls: list[PredictionCall]) -> Iterator[Finding]:
    calling = {call.cell + 1 for call in calls}
    for number, cell in code_cells(notebook):
        if number in calling and tag not in tags_of(cell):
            yield Finding(number, f"calls {tag} and is not tagged {tag!r}")
        elif number not in calling and tag in tags_of(cell):
            yield Finding(number, f"is tagged {tag!r} and calls none")


def _is_folded(cell: NotebookNode) -> bool:
    hidden = cell.metadata.get("jupyter", {}).get("outputs_hidden")
    return bool(hidden) and "hide-output" in tags_of(cell)


def _stored_answer(notebook: NotebookNode, answer: PredictionCall) -> re.Pattern[str] | None:
    """Returns what finds an answer in a text; a single word or number is found by chance."""
    for output in notebook.cells[answer.cell].get("outputs", ()):
        if match := _STORED_ANSWER.search(output.get("data", {}).get("text/plain", "")):
            choice = match[1].strip()
            if len(choice.split()) > 1:
                return re.compile(rf"(?<!\w){re.escape(choice)}(?!\w)", re.IGNORECASE)
    return None


def _listed(call: ast.Call, name: str) -> list[str]:
    """Returns the choices, or the keys of the words, as far as they are written out."""
    node = _argument(call, 1, name)
    items = getattr(node, "keys", None) or getattr(node, "elts", None) or []
    return [str(value) for item in items if (value := _literal(item)) is not None]


def _argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    named = [keyword.value for keyword in call.keywords if keyword.arg == name]
    return next(iter([*call.args[position : position + 1], *named]), None)


def _literal(node: ast.expr | None) -> object:
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None
