"""Completes names in a `%%workers` cell: those that the workers hold, not those of the notebook.

    register(shell, find=lambda line: (cluster, tasks))      # in the notebook
    names_of("model.optimizer")                              # in a task, as an expression

Only idle tasks are asked, and for a second at most; for the others stands what they said last. A
task looks names up and calls nothing: no property, no `__getattr__` on the way to an attribute.
"""

from __future__ import annotations

import builtins
import inspect
import json
import keyword
import re
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

from distlab.cluster.local.kernel_group import KernelGroup
from distlab.cluster.spec import TaskName
from distlab.errors import DistlabError

_ID = "distlab.workers"
_MAGIC = re.compile(r"%%workers(?!\S)(.*)")
_IMPORT = re.compile(r"\s*(?:from|import)\s")
# A name, perhaps of an attribute: "model.opt". Not of a result, nor in a text, nor a magic's.
_NAME = re.compile(r"(?<![\w.)\]}'\"%!/])((?:[^\W\d]\w*\.)*)(\w*)$")
_ASK = "__import__('{module}', fromlist=['names_of']).names_of({path!r})"
_MISSING = object()

Find = Callable[[str], tuple[KernelGroup, Sequence[TaskName]]]


def register(shell: Any, find: Find) -> None:
    """Lets a shell complete names in cells of `%%workers`.

    Args:
        shell: IPython's.
        find: Returns the kernels and the tasks that the text behind `%%workers` asks for.
    """
    from IPython.core.completer import SimpleCompletion, context_matcher

    @context_matcher(identifier=_ID)  # type: ignore[untyped-decorator]
    def match(context: Any) -> dict[str, Any]:
        before = context.full_text.split("\n")[: context.cursor_line + 1]
        before[-1] = before[-1][: context.cursor_position]
        first = context.full_text.partition("\n")[0]
        try:
            fragment, names = _completions(before, first, find)
        except DistlabError:  # no cluster, or no such task: the cell says so when it runs
            fragment, names = "", {}
        completions = [SimpleCompletion(text=n, type=holder) for n, holder in names.items()]
        return {"completions": completions, "matched_fragment": fragment, "suppress": True}

    matchers = shell.Completer.custom_matchers
    matchers[:] = [each for each in matchers if getattr(each, "matcher_identifier", "") != _ID]
    matchers.append(match)


def _completions(before: Sequence[str], first: str, find: Find) -> tuple[str, dict[str, str]]:
    """Returns what the cursor stands behind, and what may take its place, with who holds it."""
    magic, name = _MAGIC.fullmatch(first), _NAME.search(before[-1])
    if magic is None:
        return "", {}
    if len(before) == 1:  # the magic's own line: names of tasks
        start = before[0].split()[-1] if not before[0].endswith(" ") else ""
        kernels, _ = find("")
        options = {str(task) for task in kernels.by_task} | {task.job for task in kernels.by_task}
        return start, {o: "task" for o in sorted(options) if o.startswith(start)}
    if name is None or _IMPORT.match(before[-1]):
        return "", {}
    path, start = name[1].rstrip("."), name[2]
    kernels, tasks = find(magic[1])
    expression = _ASK.format(module=__name__, path=path)
    answers = kernels.ask(tasks, expression)
    holders: dict[str, list[str]] = {}
    for task, answer in answers.items():
        for each in json.loads(answer or "[]"):
            holders.setdefault(each, []).append(str(task))
    kinds = {  # without spaces, where JupyterLab would break the line
        each: "all" if len(tasks) > 1 and len(own) == len(tasks) else ",".join(own)
        for each, own in holders.items()
    }
    if start and not path:
        kinds = dict.fromkeys([*keyword.kwlist, *dir(builtins)], "Python") | kinds
    if not start:
        return start, {each: kinds[each] for each in sorted(kinds) if not each.startswith("_")}
    chosen = {each: kinds[each] for each in sorted(kinds) if each.startswith(start)}
    # At least what was typed: without any, IPython would complete the notebook's own names.
    return start, chosen or {start: "unknown"}


def names_of(path: str) -> str:
    """Returns the names that this process knows, or those of an object's attributes, as JSON."""
    shell: Any = sys.modules["IPython"].get_ipython()
    if not path:
        return json.dumps(sorted(shell.user_ns.keys() - shell.user_ns_hidden.keys()))
    first, *rest = path.split(".")
    value = shell.user_ns.get(first, vars(builtins).get(first, _MISSING))
    for name in rest:
        value = inspect.getattr_static(value, name, _MISSING)
        if isinstance(value, types.MemberDescriptorType | property | types.GetSetDescriptorType):
            value = _MISSING
    names = [] if value is _MISSING else dir(value)
    return json.dumps([name for name in names if isinstance(name, str)])
