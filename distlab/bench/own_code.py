"""Finds the two functions of a reader's own code that `distlab bench` calls.

    build, data = own_functions("train.py")
    build, data = own_functions("my_project.models:build_small")

`build()` returns a compiled Keras model. `data(batch_size)` returns a `tf.data.Dataset` of batches
`(x, y)` with so many examples. It is in the same file or module as `build`.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distlab.errors import InvalidArgument


def own_functions(target: str) -> tuple[Callable[[], Any], Callable[[int], Any]]:
    """Returns `build` and `data`."""
    path, name = Path(target), "build"
    if target.endswith(".py"):
        if not path.is_file():
            raise _refusal(target, "no such file", "give the path of a Python file")
        sys.path.insert(0, str(path.resolve().parent))
        names = runpy.run_path(str(path))
    else:
        module, colon, name = target.partition(":")
        if not (colon and name.isidentifier()):
            raise _refusal(target, "no file and no function", "give train.py or module:function")
        sys.path.insert(0, "")
        try:
            names = vars(importlib.import_module(module))
        except ModuleNotFoundError as error:
            do = "run the command in the folder from which the module can be imported"
            raise _refusal(target, f"no module named {error.name!r}", do) from error
    missing = [wanted for wanted in (name, "data") if not callable(names.get(wanted))]
    if missing:
        wanted = "a compiled Keras model" if missing[0] == name else "a dataset of (x, y) batches"
        arguments = "" if missing[0] == name else "batch_size"
        raise _refusal(
            target,
            f"no function {missing[0]!r}",
            f"define {missing[0]}({arguments}), which returns {wanted}",
        )
    return names[name], names["data"]


def _refusal(target: str, found: str, do: str) -> InvalidArgument:
    return InvalidArgument(asked=f"distlab bench {target}", found=found, do=do)
