"""Extracts the answers from a notebook that a learner handed in.

    answers = find_answers(open_notebook(path).code, {"09_multi_worker": checks, ...})
    answers.stem                            # '09_multi_worker', by the tasks that are in it
    answers.program("diagnose")             # what must run before `diagnose` can be called
    answers.has_more("diagnose", is_given)  # whether the notebook does more than that

An answer is the cell with the line `# task: NAME` that defines the function, and where there is
none, the last cell that defines it. It runs whole, and so do cells that begin with `# given`. Of
other cells only imports, definitions and assignments run, and only of names that the rest uses: a
notebook also holds trials, trainings and pictures, which take minutes. It's a shortcut. An answer
that fails so is asked for again after all cells of the notebook have run, as a kernel runs them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import CodeType
from typing import Any

from distlab.autograder.intake.notebook import Cell, python_of, source_of, statements_of
from distlab.course.checks.check import Check
from distlab.course.markup import GIVEN, TASK_LINE
from distlab.errors import InvalidArgument

_LONGEST = 100  # letters of names in a message
_CALL = r"\bcheck\(\s*['\"]{}['\"]"
_EVERY_NAME = "*"
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_Import = ast.Import | ast.ImportFrom
_Assignment = ast.Assign | ast.AnnAssign | ast.AugAssign


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to the task of a check."""

    check: str
    cell: int | None  # its place among the code cells
    other: int | None = None  # a later cell that defines the function as well, without the line
    notes: tuple[str, ...] = ()  # what was odd: a marker that is gone, several answers


@dataclass(frozen=True, kw_only=True)
class Answers:
    """A notebook's lesson, its code cells, and its answer to each check."""

    stem: str
    cells: tuple[Cell, ...]
    answers: tuple[Answer, ...]

    def places(self, check: str) -> tuple[int, ...]:
        """Returns the cells that may be the answer to a check, the more likely one first."""
        answer = next(answer for answer in self.answers if answer.check == check)
        return tuple(at for at in (answer.cell, answer.other) if at is not None)

    def program(self, check: str, at: int | None = None) -> tuple[Cell, ...]:
        """Returns what must run before a check's function can be called, of one of its places."""
        if (answer := self._place(check) if at is None else at) is None:
            return ()
        return needed_code(self._until_checked(check, answer), whole=answer)

    def whole(self) -> tuple[Cell, ...]:
        """Returns all cells that are Python, without what only a notebook understands."""
        cells = (replace(cell, source=python_of(cell.source)) for cell in self.cells)
        return tuple(cell for cell in cells if cell.source.strip())

    def has_more(self, check: str, is_given: Callable[[str], bool]) -> bool:
        """Whether a notebook does something that the program leaves out, and we don't hand out."""
        if (answer := self._place(check)) is None:
            return False
        kept = _kept(self._until_checked(check, answer), whole=answer)
        return any(
            not isinstance(node, _Import | _Definition) and not _is_check(node)
            for at, cell in enumerate(self.cells)
            if not is_given(cell.source)
            for node in statements_of(python_of(cell.source))
            if node.lineno not in {own.lineno for own in kept.get(at, [])}
        )

    def source(self, check: str, at: int | None = None) -> str:
        """Returns the code of the cell that answers a check; "" if no cell does."""
        answer = self._place(check) if at is None else at
        return "" if answer is None else self.cells[answer].source

    def functions_in(self, check: str) -> set[str]:
        """Returns the functions of the notebook that the program of a check defines."""
        nodes = (node for cell in self.program(check) for node in statements_of(cell.source))
        return {node.name for node in nodes if isinstance(node, _Definition)}

    def is_outside_of_functions(self, line: str) -> bool:
        """Whether a failure's line, as "line 3 in slices: ...", is code of a cell's top level."""
        match = re.match(r"line (\d+) in (.+?): ", line)
        return match is not None and any(
            cell.name == match[2] and node.lineno <= int(match[1]) <= (node.end_lineno or 0)
            for cell in self.cells
            for node in statements_of(cell.source)
            if not isinstance(node, _Definition)
        )

    def with_ours(self, ours: Mapping[str, str]) -> Answers:
        """Returns the answers with a cell of ours behind that of each task in a table."""
        cells, places = list[Cell](), dict[int | None, int]()
        for at, cell in enumerate(self.cells):
            places[at] = len(cells)
            tasks = [answer.check for answer in self.answers if answer.cell == at]
            cells += [cell, *(Cell(name=f"our {t}", source=ours[t]) for t in tasks if t in ours)]
        moved = (
            replace(answer, cell=places.get(answer.cell), other=places.get(answer.other))
            for answer in self.answers
        )
        return replace(self, cells=tuple(cells), answers=tuple(moved))

    def _place(self, check: str) -> int | None:
        return next(iter(self.places(check)), None)

    def _until_checked(self, check: str, answer: int) -> tuple[Cell, ...]:
        """By the cell that calls the check, the learner has run what the answer needs."""
        call = re.compile(_CALL.format(check))
        later = range(answer, len(self.cells))
        last = next((at for at in later if call.search(self.cells[at].source)), answer)
        return self.cells[: last + 1]


def find_answers(
    cells: Sequence[Cell], lessons: Mapping[str, Sequence[Check]], *, asked: str = "this notebook"
) -> Answers:
    """Returns the answers in code cells, of the lesson whose tasks they are."""
    scores = {stem: _score(cells, checks) for stem, checks in lessons.items()}
    stem = max(scores, key=lambda name: scores[name])
    if not scores[stem][1]:
        others = dict.fromkeys(name for cell in cells for name in TASK_LINE.findall(cell.source))
        raise InvalidArgument(
            asked=f"find the answers in {asked}",
            found=f"no check for its tasks ({', '.join(others)[:_LONGEST]})"
            if others
            else "no line '# task: ...', and no other mark of an exercise",
            do="check that it is the notebook of an exercise; an exercise of your own needs "
            "--extra-checks",
        )
    answers = tuple(_answer(cells, check) for check in lessons[stem])
    return Answers(stem=stem, cells=tuple(cells), answers=answers)


def misplaced(cells: Sequence[dict[str, Any]], answers: Answers) -> list[str]:
    """Returns a note for each task whose line is not in a code cell."""
    missing = {answer.check for answer in answers.answers if answer.cell is None}
    return [
        f"cell {number} has the line '# task: {name}', and is not a code cell"
        for number, cell in enumerate(cells, 1)
        for kind in ("markdown", "raw")
        for name in TASK_LINE.findall(source_of(cell, kind))
        if name in missing
    ]


def needed_code(cells: Sequence[Cell], *, whole: int) -> tuple[Cell, ...]:
    """Returns one cell whole, and what it needs of the others; lines stay where they are."""
    kept = _kept(cells, whole=whole)
    sources = {at: _lines_of(cells[at].source, nodes) for at, nodes in kept.items()}
    sources[whole] = python_of(cells[whole].source)
    return tuple(Cell(name=cells[at].name, source=sources[at]) for at in sorted(sources))


def _kept(cells: Sequence[Cell], *, whole: int) -> dict[int, list[ast.stmt]]:
    """Returns the statements that are needed, by their cell."""
    kept: dict[int, list[ast.stmt]] = {}
    binding: dict[str, list[tuple[int, ast.stmt]]] = {}  # statements that nothing needs so far
    names: list[str] = [_EVERY_NAME]
    for at, cell in enumerate(cells):
        for node in statements_of(python_of(cell.source)):
            if at == whole or cell.source.lstrip().startswith(GIVEN):
                kept.setdefault(at, []).append(node)
                names += _names_read(node)
            elif isinstance(node, _Import | _Definition | _Assignment):
                for name in _names_bound(node):
                    binding.setdefault(name, []).append((at, node))
    taken: set[ast.stmt] = set()
    while names:
        for at, node in binding.pop(names.pop(), ()):
            if node not in taken:
                taken.add(node)
                kept.setdefault(at, []).append(node)
                names += _names_read(node)
    return kept


def _is_check(node: ast.stmt) -> bool:
    """Whether a statement is a call of `check`, which asks for an answer and does nothing else."""
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] == "check"


def _names_bound(node: ast.stmt) -> set[str]:
    """Names that a statement binds or changes, as `x` in `x = 1`, `x.y = 1` and `x[0] += 1`."""
    if isinstance(node, _Import):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    if isinstance(node, _Definition):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    parts = (part for target in targets if target is not None for part in ast.walk(target))
    return {part.id for part in parts if isinstance(part, ast.Name)}


def _names_read(node: ast.stmt) -> set[str]:
    """Global names that a statement may use, at once or when what it defines is called."""
    try:
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT  # as in a notebook
        code = compile(ast.Module([node], []), "<cell>", "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):  # `return` outside of a function
        return set()
    return {name for part in _parts(code) for name in part.co_names}


def _parts(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _parts(constant)


def _lines_of(source: str, kept: Sequence[ast.stmt]) -> str:
    """Returns a cell's source with the lines of other statements left empty."""
    keep: set[int] = set()
    for node in kept:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        keep |= set(range(first, (node.end_lineno or first) + 1))
    lines = enumerate(python_of(source).split("\n"), 1)
    return "\n".join(line if number in keep else "" for number, line in lines).rstrip()


def _score(cells: Sequence[Cell], checks: Sequence[Check]) -> tuple[int, int]:
    """How many tasks are marked, and how many there are at all."""
    marked = {name for cell in cells for name in TASK_LINE.findall(cell.source)}
    answered = [check for check in checks if _answer(cells, check).cell is not None]
    return len(marked & {check.name for check in checks}), len(answered)


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
    chosen = both or defining or marked
    if chosen and not python_of(cells[chosen[-1]].source):
        first = cells[chosen[-1]].source.split()[0]
        notes.append(f"{cells[chosen[-1]].name} begins with {first}, so it is not Python")
    if marked and chosen[-1] not in marked:
        notes.append(
            f"{cells[chosen[-1]].name} counts: it defines `{check.function}`, and the cell with "
            f"the line '# task: {check.name}' does not"
        )
    elif len(chosen) > 1:
        notes.append(f"{cells[chosen[-1]].name} counts, because it is the last")
    return Answer(
        check=check.name,
        cell=chosen[-1] if chosen else None,
        other=defining[-1] if defining and defining[-1] != chosen[-1] else None,
        notes=tuple(notes),
    )


@lru_cache(maxsize=20_000)  # every check is looked for in every cell
def _defined(source: str) -> set[str]:
    """Names that a cell binds by def, class, import or assignment, also below `if` or `with`."""
    # Of what is half-written, and no Python yet, a look at the text must do.
    names = set(re.findall(r"^def (\w+)\(", source, re.MULTILINE))
    for node in _outside_of_functions(statements_of(python_of(source))):
        if isinstance(node, _Definition | ast.Assign | _Import):
            names |= _names_bound(node)
    return names


def _outside_of_functions(nodes: Sequence[ast.AST]) -> Iterator[ast.AST]:
    left = [*nodes]
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, _Definition):
            left += ast.iter_child_nodes(node)
