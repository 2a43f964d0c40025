"""Makes mutants of a piece of Python: each has one small fault, as a hurried person makes it.

    for mutant in mutants_of("def half(n): return n // 2"):
        print(mutant.line, "->", mutant.changed)    # return n // 2 -> return n / 2

Only bodies of functions are changed. Docstrings stay, and so do texts with values in them.
"""

from __future__ import annotations

import ast
import builtins
import math
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any

Change = tuple[Any, str | int, Any]  # a node or a list, the field or the place, what goes there

_OTHER_OPERATORS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Lt: (ast.LtE,),
    ast.LtE: (ast.Lt,),
    ast.Gt: (ast.GtE,),
    ast.GtE: (ast.Gt,),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult, ast.FloorDiv),
    ast.FloorDiv: (ast.Div,),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
    ast.BitXor: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
}
_FLIPS = (ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Is, ast.IsNot)
_PAIRS = (
    ("min", "max"),
    ("minimum", "maximum"),
    ("argmin", "argmax"),
    ("any", "all"),
    ("floor", "ceil"),
    ("reduce_sum", "reduce_mean"),
    ("reduce_any", "reduce_all"),
    ("sum", "mean"),
    ("zeros", "ones"),
    ("SUM", "MEAN"),
)
OTHER_NAMES = {
    **dict(_PAIRS),
    **{second: first for first, second in _PAIRS},
    "float32": "float16",
    "float64": "float32",
    "int64": "int32",
    "float16": "bfloat16",
    "mixed_float16": "mixed_bfloat16",
}
_HARMLESS = ("strict", "verbose")  # arguments that no right answer depends on
_OTHER_FLOATS = {1e3: 2.0**10, 1e6: 2.0**20, 1e9: 2.0**30}
_COMPOUND = (ast.If, ast.For, ast.While, ast.With, ast.FunctionDef, ast.Try, ast.ClassDef)


@dataclass(frozen=True)
class Mutant:
    """A piece of Python with one fault."""

    line: str  # of the statement that was changed, as `ast.unparse` writes it
    changed: str
    source: str


def mutants_of(source: str, *, kept: Container[str] = ()) -> list[Mutant]:
    """Returns the mutants of a piece of Python, each once, in the order of their lines.

    Lines that are `kept` have none.
    """
    tree = ast.parse(source)
    made = {ast.unparse(tree): Mutant("", "", "")}
    lines = [line.strip() for line in source.splitlines()]
    statements = [each for each in _statements(tree) if lines[each.lineno - 1] not in kept]
    nodes = [node for each in statements if not _is_text(each) for node in _own_nodes(each)]
    words = list(dict.fromkeys(node.value for node in nodes if _is_word(node)))
    for statement in statements:
        before = _first_line(statement)
        for place, name, value in _changes(tree, statement, words):
            old = _get(place, name)
            _set(place, name, value)
            text = ast.unparse(tree)
            after = _first_line(value if old is statement else statement)
            made.setdefault(text, Mutant(before, after, text))
            _set(place, name, old)
    return [mutant for mutant in made.values() if mutant.source]


def _statements(tree: ast.Module) -> list[ast.stmt]:
    """Returns the statements in bodies of functions, in the order of their lines."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    inside = {node for function in functions for part in function.body for node in ast.walk(part)}
    found = (node for node in inside if isinstance(node, ast.stmt))
    return sorted(found, key=lambda node: (node.lineno, node.col_offset))


def _changes(tree: ast.Module, statement: ast.stmt, words: list[str]) -> Iterator[Change]:
    """Yields the changes of a statement's own line, and the one that leaves it out."""
    if _is_text(statement):
        return
    yield from _left_out(tree, statement)
    for node in _own_nodes(statement):
        yield from _other_operator(node)
        yield from _other_value(node)
        yield from _other_call(node)
        yield from _other_test(node)
        yield from _off_by_one(node)
        yield from _other_entry(node)
        yield from _other_word(node, words)


def _own_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yields the nodes of a statement that are in no statement below it."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.keyword) and node.arg in _HARMLESS:
            continue
        yield node
        children = ast.iter_child_nodes(node)
        if isinstance(node, ast.FunctionDef):
            children = iter(node.decorator_list)
        elif isinstance(node, ast.JoinedStr):  # its texts are no words
            children = (part for part in node.values if isinstance(part, ast.FormattedValue))
        waiting += [child for child in children if not isinstance(child, ast.stmt)]


def _left_out(tree: ast.Module, statement: ast.stmt) -> Iterator[Change]:
    if isinstance(statement, (*_COMPOUND, ast.Pass, ast.Import, ast.ImportFrom, ast.Raise)):
        return
    for node in ast.walk(tree):
        for body in (getattr(node, field, None) for field in ("body", "orelse", "finalbody")):
            if isinstance(body, list) and statement in body:
                yield body, body.index(statement), ast.Pass()


def _other_operator(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            yield from ((node.ops, place, new()) for new in _OTHER_OPERATORS[type(operator)])
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, ast.Add):
        field = "right" if isinstance(node, ast.BinOp) else "value"
        if isinstance(array := getattr(node, field), (ast.Name, ast.Subscript)):
            rounded = ast.Attribute(array, "astype", ast.Load())
            yield node, field, ast.Call(rounded, [ast.Constant("float16")], [])
    if isinstance(node, (ast.BinOp, ast.AugAssign, ast.BoolOp)):
        others = _OTHER_OPERATORS.get(type(node.op), ())
        yield from ((node, "op", new()) for new in others)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Sub, ast.Div, ast.FloorDiv)):
        yield node, "__dict__", {**node.__dict__, "left": node.right, "right": node.left}


def _other_value(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Constant):
        value = node.value
        if isinstance(value, bool):
            yield node, "value", not value
        elif isinstance(value, int):
            yield from ((node, "value", value + step) for step in (1, -1))
        elif isinstance(value, float) and math.isfinite(value):
            yield node, "value", _OTHER_FLOATS.get(value, value * 1.1 if value else 0.1)
        elif isinstance(value, str) and value in OTHER_NAMES:
            yield node, "value", OTHER_NAMES[value]
    if isinstance(node, ast.Attribute) and node.attr in OTHER_NAMES:
        yield node, "attr", OTHER_NAMES[node.attr]
    if isinstance(node, ast.Name) and hasattr(builtins, OTHER_NAMES.get(node.id, "")):
        yield node, "id", OTHER_NAMES[node.id]


def _other_call(node: ast.AST) -> Iterator[Change]:
    if not isinstance(node, ast.Call):
        return
    first, ordered = node.args[:2], getattr(node.func, "id", "") not in ("min", "max")
    if ordered and len(first) == 2 and not any(isinstance(each, ast.Starred) for each in first):
        yield node, "args", [node.args[1], node.args[0], *node.args[2:]]
    for place, keyword in enumerate(node.keywords):
        if keyword.arg not in _HARMLESS:
            yield node, "keywords", node.keywords[:place] + node.keywords[place + 1 :]


def _other_test(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, (ast.If, ast.While, ast.IfExp)) and not _has_opposite(node.test):
        yield node, "test", _negated(node.test)
    if isinstance(node, ast.comprehension):
        for place, test in enumerate(node.ifs):
            if not _has_opposite(test):
                yield node.ifs, place, _negated(test)


def _off_by_one(node: ast.AST) -> Iterator[Change]:
    """Constants have their own change; here are names, and what a range or a slice ends with."""
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
        yield node, "value", _plus(node.value, -1)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
        last = min(len(node.args), 2) - 1
        if last >= 0 and not isinstance(node.args[last], (ast.Constant, ast.Starred)):
            yield from ((node.args, last, _plus(node.args[last], step)) for step in (1, -1))
    if isinstance(node, ast.Slice):
        for field in ("lower", "upper"):
            bound = getattr(node, field)
            if bound is not None and not isinstance(bound, ast.Constant):
                yield from ((node, field, _plus(bound, step)) for step in (1, -1))


def _other_entry(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Dict):
        for place in range(len(node.keys)):
            keys, values = [*node.keys], [*node.values]
            del keys[place], values[place]
            yield node, "__dict__", {**node.__dict__, "keys": keys, "values": values}
        for inner in node.values:  # an outer one may hold more than was asked for
            if isinstance(inner, ast.Dict) and inner.keys:
                keys, values = [*inner.keys, ast.Constant("more")], [*inner.values, inner.values[0]]
                yield inner, "__dict__", {**inner.__dict__, "keys": keys, "values": values}


def _other_word(node: ast.AST, words: list[str]) -> Iterator[Change]:
    if _is_word(node) and len(words) > 1:
        yield node, "value", words[(words.index(node.value) + 1) % len(words)]


def _plus(value: ast.expr, step: int) -> ast.expr:
    operator = ast.Add() if step > 0 else ast.Sub()
    return ast.BinOp(value, operator, ast.Constant(abs(step)))


def _has_opposite(test: ast.expr) -> bool:
    """Whether the change of its operator negates it already."""
    return isinstance(test, ast.Compare) and isinstance(test.ops[0], _FLIPS)


def _negated(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    return ast.UnaryOp(ast.Not(), test)


def _is_word(node: Any) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _first_line(statement: ast.AST) -> str:
    lines = ast.unparse(statement).splitlines()
    decorators = len(getattr(statement, "decorator_list", ()))
    return lines[min(decorators, len(lines) - 1)].strip() if lines else ""


def _get(place: Any, name: str | int) -> Any:
    return place[name] if isinstance(place, list) else getattr(place, str(name))


def _set(place: Any, name: str | int, value: Any) -> None:
    if isinstance(place, list):
        place[name] = value
    else:
        setattr(place, str(name), value)
