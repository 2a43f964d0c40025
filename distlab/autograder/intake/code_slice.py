"""Selects the statements of a notebook that a function needs before it can be called.

    program = slice_of(cells, wanted=["train"], until=7)
    for cell in program:
        exec(compile(cell.source, cell.name, "exec"), names)

A notebook also holds what takes minutes: trials, trainings, pictures. Of its top-level statements
those are kept that bind a name which the function uses, at whatever distance, and those that
change what such a name holds: `x = ...`, `x[0] = ...`, `x.y = ...`, `x += ...`, `x.append(...)`,
`import`, `def`, `class`. A change by a second name for the same thing is not seen. Lines stay where
they are, so that a traceback shows them.
"""

from __future__ import annotations

import ast
import heapq
import re
import symtable
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

_MOST_STEPS = 300_000  # for one answer; an exercise needs less than 1,000
# Cell magics below which a cell is Python of the notebook, as it would be without them.
_PYTHON_BELOW = {"%%time", "%%capture", "%%prun"}
_TIMED = re.compile(r"^(\s*(?:[\w.]+\s*=\s*)?)%time\s+(?=\S)")  # runs what follows
_MAGIC = re.compile(r"^(\s*)(?:%\w|[!?]).*|^(\s*)[\w.]+\?{1,2}\s*$")
_ASSIGNED = re.compile(r"^(\s*[\w.]+\s*=\s*)(?:%\w|!).*")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A code cell, or what of it is to be run.

    Attributes:
        name: As in "cell 7", counted from 1 over all cells of the notebook.
        source: Its code.
    """

    name: str
    source: str


@dataclass(frozen=True, kw_only=True)
class _Statement:
    cell: int
    node: ast.stmt
    reads: frozenset[str]  # at once, and when what it defines is called
    binds: frozenset[str]
    changes: frozenset[str]

    def settles(self, name: str) -> bool:
        """Whether, after it, it does not matter what the name was before."""
        simple = isinstance(
            self.node,
            ast.Assign | ast.AnnAssign | ast.Import | ast.ImportFrom | _Definition,
        )
        return simple and name in self.binds and name not in self.reads_at_once()

    def reads_at_once(self) -> frozenset[str]:
        return frozenset() if isinstance(self.node, _Definition) else self.reads


_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def python_of(source: str) -> str:
    """Returns a cell's Python: without magics and shell commands, lines stay where they are."""
    above, _, rest = source.lstrip().partition("\n")
    if above.startswith("%%"):
        if above.split()[0] not in _PYTHON_BELOW:
            return ""
        source = "\n" * (source.count("\n") - rest.count("\n")) + rest
    if statements_of(source):  # what looks like a magic may be part of a string
        return source
    return "\n".join(_python_line(line) for line in source.split("\n"))


def _python_line(line: str) -> str:
    line = _TIMED.sub(r"\1", line)
    line = _MAGIC.sub(lambda m: f"{m[1] or m[2] or ''}pass", line)
    return _ASSIGNED.sub(r"\1None", line)


def statements_of(source: str) -> list[ast.stmt]:
    """Returns the top-level statements of a cell's Python; none if it is no Python."""
    try:
        return ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # as ast says of too deep ones
        return []


def slice_of(
    cells: Sequence[Cell], *, wanted: Iterable[str], until: int, whole: int | None = None
) -> tuple[Cell, ...]:
    """Returns what must run so that some names are there."""
    statements = [
        statement
        for index, cell in enumerate(cells)
        for statement in _statements(index, python_of(cell.source))
    ]
    # Calls of a module are taken to change nothing: else every picture would be drawn.
    modules = {
        name
        for statement in statements
        if isinstance(statement.node, ast.Import | ast.ImportFrom)
        for name in statement.binds
    }
    statements = [replace(one, changes=one.changes - modules) for one in statements]
    end = sum(1 for statement in statements if statement.cell <= until)
    kept: set[int] = set()
    asked = [(name, end) for name in wanted]
    seen = set(asked)

    def keep(position: int, before: int) -> None:
        kept.add(position)
        one = statements[position]
        # What is defined may be called as late as the name is asked for.
        late = before if isinstance(one.node, _Definition) else position
        needs = {(read, max(late, position)) for read in one.reads} - seen
        seen.update(needs)
        asked.extend(needs)

    for position, statement in enumerate(statements):
        if statement.cell == whole:
            keep(position, end)
    makers, steps = _makers_by_name(statements), 0
    while asked and steps < _MOST_STEPS:
        name, before = asked.pop()
        for position in _makers(statements, makers, name, before=before):
            keep(position, before)
            steps += 1
    if asked:  # written to take hours; whatever it needs, it may run all
        kept.update(range(end))
    sources = (
        python_of(cell.source)
        if index == whole
        else _lines_of(cell, [statements[k] for k in kept if statements[k].cell == index])
        for index, cell in enumerate(cells)
    )
    return tuple(
        Cell(name=cell.name, source=source)
        for cell, source in zip(cells, sources, strict=True)
        if source
    )


def _makers_by_name(statements: Sequence[_Statement]) -> dict[str, list[int]]:
    """Returns the positions of what binds or changes each name, in order; "*" is any name."""
    makers: dict[str, list[int]] = {}
    for position, one in enumerate(statements):
        for name in one.binds | one.changes:
            makers.setdefault(name, []).append(position)
    return makers


def _makers(
    statements: Sequence[_Statement], makers: Mapping[str, list[int]], name: str, *, before: int
) -> Iterator[int]:
    """Yields the positions of what a name comes from, the last one first."""
    found, own = False, makers.get(name, [])
    for position in heapq.merge(*map(reversed, (own, makers.get("*", []))), reverse=True):
        if position < before:
            one = statements[position]
            found = found or "*" not in one.binds
            yield position
            if one.settles(name):
                return
    if not found:  # a function may use what is only bound after it
        yield from [at for at in own if at >= before and name in statements[at].binds][:1]


def _statements(cell: int, source: str) -> Iterator[_Statement]:
    for node in statements_of(source):
        try:
            reads, binds = _names(node)
        except (SyntaxError, RecursionError):  # `return` outside of a function
            continue
        yield _Statement(
            cell=cell, node=node, reads=reads, binds=binds, changes=frozenset(_changed(node))
        )


def _names(node: ast.stmt) -> tuple[frozenset[str], frozenset[str]]:
    """Returns the global names that a statement reads, and those that it binds."""
    if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
        return frozenset(), frozenset("*")
    table = symtable.symtable(ast.unparse(node), "cell", "exec")
    reads: set[str] = set()
    binds: set[str] = set()
    for one in table.get_symbols():
        if one.is_referenced():
            reads.add(one.get_name())
        if one.is_assigned() or one.is_imported() or one.is_namespace():
            binds.add(one.get_name())
    inside = list(table.get_children())
    while inside:
        scope = inside.pop()
        inside += scope.get_children()
        for one in scope.get_symbols():
            if one.is_global():
                (reads if one.is_referenced() else binds).add(one.get_name())
    return frozenset(reads), frozenset(binds)


def _changed(node: ast.stmt) -> Iterator[str]:
    """Yields names of what a statement may change: of `x.y[0] = 1` and `x.add(1)` it is x."""
    if isinstance(node, _Definition):
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield from _root(node.value.func)
    for one in ast.walk(node):
        if isinstance(one, ast.Subscript | ast.Attribute) and not isinstance(one.ctx, ast.Load):
            yield from _root(one)


def _root(node: ast.expr) -> Iterator[str]:
    whole = node
    while isinstance(whole, ast.Subscript | ast.Attribute | ast.Call):
        whole = whole.func if isinstance(whole, ast.Call) else whole.value
    if isinstance(whole, ast.Name) and whole is not node:
        yield whole.id


def _lines_of(cell: Cell, kept: Sequence[_Statement]) -> str:
    """Returns a cell's source with the lines of other statements left empty."""
    lines = python_of(cell.source).split("\n")
    keep: set[int] = set()
    for one in kept:
        first = min([one.node.lineno, *(d.lineno for d in getattr(one.node, "decorator_list", []))])
        keep |= set(range(first, (one.node.end_lineno or first) + 1))
    if not keep:
        return ""
    shown = [line if number in keep else "" for number, line in enumerate(lines, 1)]
    return "\n".join(shown).rstrip()
