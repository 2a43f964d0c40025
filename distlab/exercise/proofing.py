"""Looks over a page before it is written, for what a teacher would notice only in class.

proofread(draft, page)               # raises where a student would get the answer, or no Python
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Sequence

from distlab.autograder.intake.code_slice import python_of
from distlab.errors import NotebookError
from distlab.markup import CODE, TASK
from distlab.notebooks.editions import Answer
from distlab.notebooks.source import Draft, Page


def proofread(draft: Draft, page: Page) -> None:
    """Raises where a page cannot be meant so."""
    for cell, line, parts in zip(draft.notebook.cells, draft.lines, draft.parts, strict=True):
        if cell.cell_type == "code":
            asked = f"the cell at {page.source}, line {line}"
            _refuse_answer(parts, asked)
            _refuse_no_python(cell.source, asked)


def _refuse_answer(parts: Sequence[str | Answer], asked: str) -> None:
    is_task = parts and isinstance(parts[0], str) and TASK.match(parts[0])
    if is_task and not any(isinstance(part, Answer) for part in parts):
        raise NotebookError(
            asked=asked,
            found=f"a task without '{CODE.begin}': students would get all of it",
            do=f"write '{CODE.begin}' above the answer, and '{CODE.end}' below it",
        )


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
