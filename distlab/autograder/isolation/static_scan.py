"""Searches a learner's code for what no honest answer needs.

    for reason in suspicions([("split", source)]):
        ...                     # "it reaches for the checks (line 2 of split: import distlab...)"

Nothing here fails an answer: a person looks at it. What is computed from parts of names is not
seen here; `distlab.autograder.isolation.audit_hook` looks on while the code runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

Cells = Sequence[tuple[str, str]]

CHECKS, FRAMES = "it reaches for the checks", "it looks into Python's own frames and objects"
_PATCH = "it replaces a function of a library"
_EQUAL = "it decides itself what it is equal to"
_LONGEST_LINE = 120
# At most so many reasons for one answer, each at most so long.
MOST_REASONS, LONGEST_REASON = 20, 300

# An exercise imports `distlab.course.runs`; no honest answer needs one of these rooms.
CLOSED_ROOMS = ("checks", "results", "autograder")
_CLOSED = tuple(f"distlab.{room}." for room in CLOSED_ROOMS)
_AS_TEXT = tuple(f"distlab{dot}{room}" for room in CLOSED_ROOMS for dot in "./")
_LIBRARIES = {"numpy", "tensorflow", "keras", "builtins", "distlab", "json", "os"}
_IMPORTS = {
    "inspect": FRAMES,
    "ctypes": "it reaches past Python, with ctypes",
    "unittest.mock": _PATCH,
}
_NAMES = {
    **dict.fromkeys(
        (
            *("_getframe", "_current_frames", "settrace", "setprofile", "f_back", "f_locals"),
            *("f_globals", "tb_frame", "gi_frame", "cr_frame", "__globals__", "__closure__"),
            *("cell_contents", "__subclasses__", "__builtins__", "__getattribute__"),
            *("get_objects", "get_referrers", "get_referents"),
        ),
        FRAMES,
    ),
    **dict.fromkeys(
        ("input_transformers_cleanup", "input_transformers_post", "input_transformer_manager"),
        "it changes what the notebook runs",
    ),
}
_METHODS = {"__eq__", "__array__", "__array_ufunc__", "__array_function__"}


def suspicions(cells: Cells) -> list[str]:
    """Returns what looks odd in cells, each with its line."""
    trees = [(name, source, tree) for name, source in cells if (tree := _parsed(source))]
    libraries = {alias for _, _, tree in trees for alias in _aliases(tree)}
    found = [
        f"{reason} ({_line(name, source, node)})"
        for name, source, tree in trees
        for node in ast.walk(tree)
        for reason in _reasons(node, libraries)
    ]
    return list(dict.fromkeys(found))


def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # reported when it is run
        return None


def _line(name: str, source: str, node: ast.AST) -> str:
    number = getattr(node, "lineno", 1)
    text = source.splitlines()[number - 1].strip()
    return f"line {number} of {name}: {text[:_LONGEST_LINE]}"


def _reasons(node: ast.AST, libraries: set[str]) -> Iterator[str]:
    yield from (reason for module in _modules(node) if (reason := _of_import(module)))
    if isinstance(node, ast.Attribute):
        if node.attr in _NAMES:
            yield _NAMES[node.attr]
        elif node.attr == "modules" and _root(node) == "sys":
            yield FRAMES
        elif isinstance(node.ctx, (ast.Store, ast.Del)) and _root(node) in libraries:
            yield _PATCH
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        first = node.args[0] if node.args else None
        if node.func.id == "setattr" and first is not None and _root(first) in libraries:
            yield _PATCH
    elif isinstance(node, (ast.FunctionDef, ast.Name)):
        name = node.name if isinstance(node, ast.FunctionDef) else node.id
        if name in _METHODS:
            yield _EQUAL
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from (_of_text(node.value))


def _of_text(text: str) -> Iterator[str]:
    """Names that are given as text, to getattr, importlib or open; prose is longer."""
    if text in _NAMES:
        yield _NAMES[text]
    elif text in _METHODS:
        yield _EQUAL
    elif len(text.split()) == 1 and (any(room in text for room in _AS_TEXT) or is_of_checks(text)):
        yield CHECKS


def is_of_checks(module: str) -> bool:
    """Returns whether a module belongs to a room that no answer needs."""
    return f"{module}.".startswith(_CLOSED)


def _of_import(module: str) -> str:
    if is_of_checks(module):
        return CHECKS
    parts = module.split(".")
    above = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
    return next((_IMPORTS[name] for name in above if name in _IMPORTS), "")


def _modules(node: ast.AST) -> Iterable[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def _aliases(tree: ast.Module) -> Iterator[str]:
    """The names under which a notebook knows the libraries, and parts of them."""
    for node in ast.walk(tree):
        for alias in node.names if isinstance(node, (ast.Import, ast.ImportFrom)) else ():
            module = node.module if isinstance(node, ast.ImportFrom) else alias.name
            if (module or "").partition(".")[0] in _LIBRARIES:
                yield alias.asname or alias.name.partition(".")[0]


def _root(node: ast.expr) -> str:
    """'np' of np.testing.assert_allclose; "" if it does not begin with a name."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
