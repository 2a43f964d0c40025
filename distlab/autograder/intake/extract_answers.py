"""Extracts the answers from a notebook that a learner handed in.

    answers = find_answers(open_notebook(path).code, {"09_multi_worker": checks, ...})
    answers.stem                            # '09_multi_worker', by the tasks that are in it
    answers.program("my_part")              # what must run before `my_part` can be called

Only the text of code cells counts. Metadata, outputs and the cells that call checks may be lost,
doubled or forged: an answer is the cell with the line `# task: NAME`, and where that line is gone,
the cell that defines the function.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from distlab.autograder.intake.code_slice import Cell, python_of, slice_of, statements_of
from distlab.autograder.intake.notebook_file import text_of
from distlab.course.checks.check import Check
from distlab.course.markup import TASK_LINE
from distlab.errors import InvalidArgument

_LONGEST = 100  # letters of names in a message
_CALL = r"\bcheck\(\s*['\"]{}['\"]"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to one task.

    Attributes:
        check: The check's name.
        cell: Its cell's place among the code cells; None if there is none.
        notes: What was odd: a marker that is gone, several answers.
    """

    check: str
    cell: int | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What a notebook answers.

    Attributes:
        stem: Of the lesson.
        cells: All code cells.
        answers: One for each check of the lesson, in its order.
    """

    stem: str
    cells: tuple[Cell, ...]
    answers: tuple[Answer, ...]
    functions: Mapping[str, str]

    def program(self, check: str) -> tuple[Cell, ...]:
        """Returns what must run before a check's function can be called.

        The cell of the answer runs whole, and of the others what it needs.
        """
        (answer,) = (one for one in self.answers if one.check == check)
        if answer.cell is None:
            return ()
        wanted = [self.functions[check]]
        return slice_of(
            self.cells, wanted=wanted, whole=answer.cell, until=self._until(answer.cell, check)
        )

    def source(self, check: str) -> str:
        """Returns the code of the cell that answers a check; "" if no cell does."""
        (answer,) = (one for one in self.answers if one.check == check)
        return "" if answer.cell is None else self.cells[answer.cell].source

    def _until(self, cell: int, check: str) -> int:
        """The cell that calls the check, by which the learner has run what it needs."""
        call = re.compile(_CALL.format(check))
        later = range(cell, len(self.cells))
        return next((at for at in later if call.search(self.cells[at].source)), cell)


def find_answers(
    cells: Sequence[Cell], lessons: Mapping[str, Sequence[Check]], *, asked: str = "this notebook"
) -> Answers:
    """Returns the answers in code cells, of the lesson whose tasks they are."""
    scores = {stem: _score(cells, checks) for stem, checks in lessons.items()}
    stem = max(scores, key=lambda one: scores[one])
    if not scores[stem][1]:
        others = dict.fromkeys(name for cell in cells for name in TASK_LINE.findall(cell.source))
        raise InvalidArgument(
            asked=f"find the answers in {asked}",
            found=f"no check for its tasks ({', '.join(others)[:_LONGEST]})"
            if others
            else "no line '# task: ...', and no function of an exercise",
            do="check that it is the notebook of an exercise; an exercise of your own needs "
            "--extra-checks",
        )
    checks = lessons[stem]
    return Answers(
        stem=stem,
        cells=tuple(cells),
        answers=tuple(_answer(cells, check) for check in checks),
        functions={check.name: check.function for check in checks},
    )


def misplaced(cells: Sequence[dict[str, Any]], answers: Answers) -> list[str]:
    """Returns a note for each task whose line is not in a code cell."""
    missing = {one.check for one in answers.answers if one.cell is None}
    return [
        f"cell {number} has the line '# task: {name}', and is not a code cell"
        for number, cell in enumerate(cells, 1)
        if cell.get("cell_type") in ("markdown", "raw")
        for name in TASK_LINE.findall(text_of(cell.get("source")))
        if name in missing
    ]


def _score(cells: Sequence[Cell], checks: Sequence[Check]) -> tuple[int, int]:
    """How many tasks are marked, and how many there are at all."""
    marked = {name for cell in cells for name in TASK_LINE.findall(cell.source)}
    found = [check for check in checks if _answer(cells, check).cell is not None]
    return len(marked & {check.name for check in checks}), len(found)


def _answer(cells: Sequence[Cell], check: Check) -> Answer:
    marked = [at for at, cell in enumerate(cells) if check.name in TASK_LINE.findall(cell.source)]
    defining = [at for at, cell in enumerate(cells) if check.function in _defined(cell.source)]
    both = [at for at in marked if at in defining]
    notes = []
    if len(marked) > 1:
        places = ", ".join(cells[at].name for at in marked)
        notes.append(f"{len(marked)} cells have the line '# task: {check.name}' ({places})")
    if not marked and defining:
        notes.append(f"the line '# task: {check.name}' is gone")
    chosen = both or marked or defining
    if chosen and not python_of(cells[chosen[-1]].source):
        first = cells[chosen[-1]].source.split()[0]
        notes.append(f"{cells[chosen[-1]].name} begins with {first}, so it is not Python")
    if len(chosen) > 1:
        notes.append(f"{cells[chosen[-1]].name} counts, because it is the last")
    return Answer(check=check.name, cell=chosen[-1] if chosen else None, notes=tuple(notes))


@lru_cache(maxsize=256)  # every check of every lesson is looked for
def _defined(source: str) -> set[str]:
    """Names that a cell's top level binds by def, class or assignment."""
    # Of what is half-written, and no Python yet, a look at the text must do.
    names = set(re.findall(r"^def (\w+)\(", source, re.MULTILINE))
    for node in statements_of(python_of(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names
