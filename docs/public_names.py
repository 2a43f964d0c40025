"""A Sphinx extension: documents the names of `import distlab` without importing them.

    - `dl.distribute`: Builds ...   in the reference: its documentation takes the line's place

    .. public:: distribute          a function: its signature and its docstring
    .. public:: LocalCluster        a class: those of its methods that have a docstring, too
    .. public:: measure.timing.time_call        a name of a module

Importing a name would import TensorFlow, which takes longer than all pages together.
"""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.util.docutils import SphinxDirective

import distlab

_PACKAGE = Path(distlab.__file__).parent
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


class Public(SphinxDirective):
    """Writes what Sphinx's Python domain reads, and lets it read that."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Returns the documentation of one name."""
        asked = self.arguments[0]
        module, _, name = asked.rpartition(".")
        path = _PACKAGE / ((module or distlab._ROOMS[name]).replace(".", "/") + ".py")
        self.env.note_dependency(str(path))
        return self.parse_text_to_nodes("\n".join(_described(asked, _find(path, name))))


def _find(path: Path, name: str) -> Any:
    # The last one: before a function stand its overloads, which have no docstring.
    for node in reversed(ast.parse(path.read_text(encoding="utf-8")).body):
        if isinstance(node, (*_FUNCTION, ast.ClassDef)) and node.name == name:
            return node
    raise ValueError(f"{path} defines no {name!r}, which distlab offers")


def _described(name: str, node: Any) -> list[str]:
    if isinstance(node, _FUNCTION):
        return _object("function", f"distlab.{name}", node, node.args)
    methods = [one for one in node.body if isinstance(one, _FUNCTION)]
    start = next((one.args for one in methods if one.name == "__init__"), None)
    lines = _object("class", f"distlab.{name}", node, start, skip=1)
    for method in methods:
        if method.name.startswith("_") or not ast.get_docstring(method):
            continue
        decorators = [ast.unparse(one) for one in method.decorator_list]
        kind = "property" if "property" in decorators else "method"
        args = None if kind == "property" else method.args
        lines += [f"   {line}" for line in _object(kind, method.name, method, args, skip=1)]
    return lines


def _object(kind: str, name: str, node: Any, args: Any, *, skip: int = 0) -> list[str]:
    docstring = inspect.cleandoc(ast.get_docstring(node) or "")
    # A letter may follow what is marked as code, as in `tf.Variable`s.
    docstring = re.sub(r"(`[^`]+`)(?=(\w?))", lambda m: m[1] + ("\\ " if m[2] else ""), docstring)
    settings = Config(napoleon_use_rtype=False, napoleon_use_ivar=True)
    content = str(GoogleDocstring(docstring, settings, what="function")).splitlines()
    signature = f"{name}({_signature(args, skip)})" if args else name
    return [f".. py:{kind}:: {signature}", "", *(f"   {line}" for line in content), ""]


def _signature(args: ast.arguments, skip: int) -> str:
    """Returns parameters and defaults without types; the docstring says what each is."""
    for one in (*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg):
        if one:
            one.annotation = None
    del args.args[:skip]
    return ast.unparse(args)


# A list of names, each with a sentence: what a reader sees where Sphinx has not run.
_LIST = re.compile(r"(?:^- `(?:dl|distlab)\.[\w.]+`: .+\n)+", re.MULTILINE)
_NAME = re.compile(r"^- `(?:dl|distlab)\.([\w.]+)`", re.MULTILINE)


def _document_lists(app: Any, page: str, source: list[str]) -> None:
    def directives(listed: re.Match[str]) -> str:
        lines = [f".. public:: {name}" for name in _NAME.findall(listed[0])]
        return "\n".join(["```{eval-rst}", *lines, "```", ""])

    if page == "docs/reference":
        source[0] = _LIST.sub(directives, source[0])


def setup(app: Any) -> dict[str, bool]:
    """Adds the directive, and the reference's lists of names."""
    app.add_directive("public", Public)
    app.connect("source-read", _document_lists)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
