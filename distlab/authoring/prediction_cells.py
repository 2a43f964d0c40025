"""The cells of predictions: a question, the experiment, and the cell that shows the answer.

# %% tags=["predict"]
copies = dl.predict("How many copies?", ["one", "two"])

# %%
...                                                   # its output is folded

# %% tags=["reveal"]
copies.reveal("two", {"one": "..."})                  # its source is folded
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distlab.authoring.notebook_text import plain_python, tags_of

if TYPE_CHECKING:
    from nbformat import NotebookNode

# JupyterLab shows the first line of a source that is hidden.
REVEAL_LINE = "# Run this cell: it compares your prediction with what happened."


@dataclass(frozen=True)
class PredictionCall:
    """A question of a notebook, or an answer."""

    name: str
    cell: int
    call: ast.Call


def questions(cells: Sequence[NotebookNode]) -> list[PredictionCall]:
    """Returns each call of `predict`, in order."""
    questions_so_far = []
    for index, tree in _trees(cells):
        names = {
            id(node.value): target.id
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name)
        }
        for call in _calls(tree, "predict"):
            if ast.unparse(call.func) == "dl.predict":
                questions_so_far.append(PredictionCall(names.get(id(call), ""), index, call))
    return questions_so_far


def answers(cells: Sequence[NotebookNode]) -> list[PredictionCall]:
    """Returns each call of a name's `reveal`, in order."""
    return [
        PredictionCall(call.func.value.id, index, call)
        for index, tree in _trees(cells)
        for call in _calls(tree, "reveal")
        if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name)
    ]


def pairs(cells: Sequence[NotebookNode]) -> list[tuple[PredictionCall, PredictionCall]]:
    """Returns each question with the first later cell that answers it."""
    reveals = answers(cells)
    pairs = []
    for question in questions(cells):
        later = [
            reveal
            for reveal in reveals
            if reveal.name == question.name and reveal.cell > question.cell
        ]
        pairs += [(question, reveal) for reveal in later[:1]]
    return pairs


def between(
    cells: Sequence[NotebookNode], question: PredictionCall, answer: PredictionCall
) -> Iterator[tuple[int, NotebookNode]]:
    """Yields the cells of an experiment, with their indices: neither questions nor answers."""
    for index in range(question.cell + 1, answer.cell):
        if not {"predict", "reveal"} & set(tags_of(cells[index])):
            yield index, cells[index]


def fold_cells(cells: Sequence[NotebookNode]) -> None:
    """Folds what would answer a question, and the source of each cell with the tag `hide-input`.

    The site folds by tags, JupyterLab by metadata. The site also folds the code of a question,
    whose output says the same; JupyterLab's panel does so once it is asked.
    """
    for question, answer in pairs(cells):
        for _, cell in between(cells, question, answer):
            if cell.cell_type == "code":
                _fold(cell, tag="hide-output", jupyter="outputs_hidden")
    for cell in cells:
        tags = tags_of(cell)
        if "predict" in tags:
            _fold(cell, tag="hide-input")
        elif "hide-input" in tags or "reveal" in tags:
            _fold(cell, tag="hide-input", jupyter="source_hidden")
        if "reveal" in tags:
            cell.source = f"{REVEAL_LINE}\n{cell.source}"


def _fold(cell: NotebookNode, *, tag: str, jupyter: str = "") -> None:
    tags = cell.metadata.setdefault("tags", [])
    if tag not in tags:
        tags.append(tag)
    if jupyter:
        cell.metadata["jupyter"] = {**cell.metadata.get("jupyter", {}), jupyter: True}


def _trees(cells: Sequence[NotebookNode]) -> Iterator[tuple[int, ast.Module]]:
    """Yields what Python reads in each code cell; of one with a shell command inside, nothing."""
    for index, cell in enumerate(cells):
        if cell.cell_type == "code":
            with contextlib.suppress(SyntaxError):
                yield index, ast.parse(plain_python(cell.source))


def _calls(tree: ast.Module, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == name:
            yield node
