"""Prints every error that distlab raises on purpose, in its three parts, to be read as one text.

    python tools/error_list.py            # `make errors`
    python tools/error_list.py training   # those of distlab/training/

Values stand as their code in braces, and a part that is computed elsewhere as its expression.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_PARTS = ("asked", "found", "do")


def errors(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields the place of each error below a folder, and its parts."""
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                parts = {word.arg: word.value for word in node.keywords}
                if set(_PARTS) <= parts.keys():
                    texts = {name: _text(parts[name]) for name in _PARTS}
                    yield f"{file.relative_to(ROOT)}:{node.lineno}", texts


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    return f"{{{ast.unparse(node.value if isinstance(node, ast.FormattedValue) else node)}}}"


if __name__ == "__main__":
    for place, texts in errors(ROOT / "distlab" / Path(*sys.argv[1:])):
        print(place, *(f"{f'{name}:':>8} {text}" for name, text in texts.items()), "", sep="\n")
