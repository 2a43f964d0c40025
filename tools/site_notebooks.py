"""Rewrites the site's copies of the notebooks, so that a page answers without a kernel.

Each prediction becomes a card: its question, what the kernel would say to each answer, and the
folded answer, which is what a page without JavaScript shows. What the tag `after-reveal` marks is
put where `docs/_static/predictions.js` finds it. All words are those of the stored outputs. Each
view gets the numbers of all its positions, which `docs/_static/views.js` draws.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path

import nbformat
from nbformat import NotebookNode, v4

from distlab.authoring.notebook_text import tags_of
from distlab.authoring.prediction_cells import PredictionCall, pairs
from distlab.course import palette
from distlab.course.predictions.question import Answer, Question, agree, compared, revealed

_NUMBER = re.compile(r" \(a number(?: of (.+))?\)$")
_ANSWER = re.compile(r"<summary>Answer</summary>\n\n\*\*(.+?)\*\*\n\n(.*)\n\n</details>", re.DOTALL)
_WORD = re.compile(r"^- \*(.+?)\*: (.*(?:\n  .*)*)\n?", re.MULTILINE)
_VIEW = re.compile(r"^from (distlab\.course\.\w+\.view) import (explore_\w+)$", re.MULTILINE)
COLOURS = {
    "replicas": [palette.replica(number).colour for number in range(4)],
    "categories": [palette.category(number).colour for number in range(4)],
    "right": palette.RIGHT.colour,
    "wrong": palette.WRONG.colour,
    "reference": palette.REFERENCE,
}
_HEADING = re.compile(r"^#+ ", re.MULTILINE)


def rewrite(path: Path) -> None:
    """Rewrites one notebook in its place."""
    notebook = nbformat.read(path, as_version=4)
    cells = notebook.cells
    for question, answer in pairs(cells):
        if cells[answer.cell].outputs:  # an exercise's was not run
            name = f"{path.stem}/{question.name}"
            asked, shown = stored(cells[question.cell]), stored(cells[answer.cell])
            card = _card(asked, shown, within=tolerance_of(answer))
            cells[question.cell] = _block("prediction", card, name=name)
            cells[answer.cell] = _block("reveal", shown, name=name)
    notebook.cells = [shown for cell in cells for shown in _on_the_page(cell)]
    nbformat.write(notebook, path)


def _on_the_page(cell: NotebookNode) -> Iterator[NotebookNode]:
    """Yields what stands for a cell on its page."""
    tags = tags_of(cell)
    if cell.cell_type == "markdown" and "after-reveal" in tags:
        heading = _HEADING.search(cell.source)  # a section does not fit into a block
        end = heading.start() if heading else len(cell.source)
        yield _block("after-reveal", cell.source[:end])
        if heading:
            yield v4.new_markdown_cell(cell.source[end:])
        return
    if "hide-output" in tags:
        prompts = {"code_prompt_show": "Show the result", "code_prompt_hide": "Hide the result"}
        cell.metadata["mystnb"] = prompts
    if cell.cell_type == "code" and "recap()" in cell.source:
        yield _block("recap", "")
    else:
        yield cell
    if view := _VIEW.search(cell.source):
        explore = getattr(importlib.import_module(view[1]), view[2])
        numbers = json.dumps(explore().positions() | {"colours": COLOURS}, separators=(",", ":"))
        script = f'<script type="application/json">{numbers}</script>'
        yield _block("view", script, name=view[2])


def _block(kind: str, markdown: str, **data: str) -> NotebookNode:
    return v4.new_markdown_cell(_div(kind, markdown, **data))


def _div(kind: str, markdown: str, *, hidden: bool = False, **data: str) -> str:
    notes = "".join(f' data-{key}="{escape(value)}"' for key, value in data.items())
    return f'<div class="{kind}"{notes}{" hidden" * hidden}>\n\n{markdown}\n\n</div>'


def stored(cell: NotebookNode) -> str:
    """What a cell of a prediction shows, in Markdown."""
    return str(cell.outputs[0].data["text/markdown"])


def _card(asked: str, shown: str, *, within: float) -> str:
    """A question as it stands on the page, and what the kernel would say to each answer."""
    question, answer, words = read_back(asked, shown)
    assert revealed(question, answer, words, within)[0] == shown, f"not read back: {shown}"
    said = [
        _div("said", compared(question, guess, answer, words, within)[0], hidden=True, **data)
        for guess, data in _guesses(question, answer, words, within)
    ]
    return "\n\n".join([asked, *said])


def read_back(asked: str, shown: str) -> tuple[Question, Answer, dict[Answer, str]]:
    """Returns the question, the answer, and the words to each, from what a notebook stores."""
    question = _question(asked)
    return question, *_answer(question, shown)


def _question(asked: str) -> Question:
    text, *choices = asked.removeprefix("**Predict:** ").split("\n- ")
    text = text.strip()
    if choices:
        return Question(text, tuple(choices))
    number = _NUMBER.search(text)
    return Question(_NUMBER.sub("", text), unit=(number and number[1]) or "")


def _answer(question: Question, shown: str) -> tuple[Answer, dict[Answer, str]]:
    """The answer, and the words to it and to what is wrong."""
    match = _ANSWER.search(shown)
    assert match, shown

    def read(text: str) -> Answer:
        return question.read(text.removesuffix(f" {question.unit}"), asked="a page of the site")

    answer = read(match[1])
    first = _WORD.search(match[2])
    reason = match[2][: first.start() if first else None].strip()
    words = {read(key): word.replace("\n  ", "\n") for key, word in _WORD.findall(match[2])}
    return answer, words | ({answer: reason} if reason else {})


def _guesses(
    question: Question, answer: Answer, words: dict[Answer, str], within: float
) -> Iterator[tuple[Answer, dict[str, str]]]:
    """Yields each guess to which the kernel says something else, and how a page knows it.

    Of a number, the page takes the first entry that is near enough, and the last has no place.
    """
    if isinstance(answer, str):
        for choice in question.choices:
            yield choice, {"guess": choice, "right": str(choice == answer).lower()}
        return
    yield answer, {"guess": f"{answer:g}", "within": "0", "right": "true"}
    if within:
        yield answer + within, {"guess": f"{answer:g}", "within": f"{within:g}", "right": "true"}
    wrong = [key for key in words if not agree(key, answer, within)]
    for key in wrong:
        yield key, {"guess": str(key), "within": f"{within:g}", "right": "false"}
    yield max(map(float, [answer, *words])) + 2 * within + 1, {"right": "false"}


def tolerance_of(answer: PredictionCall) -> float:
    """Returns how far from the answer a number may be."""
    (within,) = [key.value for key in answer.call.keywords if key.arg == "within"] or [None]
    return float(ast.literal_eval(within)) if within else 0.0
