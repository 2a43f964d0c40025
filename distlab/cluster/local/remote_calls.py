"""Sends a function to a cluster's tasks, and reads what it returned there.

    call_file.write_bytes(pack_call(train, (3,)))    # in the caller
    answer(call_file, result_file)                   # in the task
    read_answer(result_file)                         # in the caller

A function goes with its code where a task could not import it: those of notebooks, scripts and
test modules. Tensors and variables come back as NumPy arrays: the caller needs no TensorFlow.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import linecache
import pickle
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import cloudpickle

from distlab.cluster.local.installed import is_installed
from distlab.errors import InvalidArgument
from distlab.source_lines import keep_lines


@dataclass(frozen=True, kw_only=True)
class CallResult:
    """What a call came to.

    Attributes:
        result: What the function returned, pickled; None where it did not come to that.
        error: The name of what it raised.
        text: The error's text.
        traceback: The whole traceback.
        own_traceback: Its frames that are not in installed packages.
        unpicklable: The type of a result that cannot be sent back.
    """

    result: bytes | None = None
    error: str = ""
    text: str = ""
    traceback: str = ""
    own_traceback: str = ""
    unpicklable: str = ""


def pack_call(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Returns a call as bytes that a task can be sent."""
    name = getattr(function, "__name__", type(function).__name__)
    if not callable(function):
        raise InvalidArgument(
            asked=f"run({function!r}) on tasks",
            found=f"a {type(function).__name__}, which cannot be called",
            do="give a function, and its arguments after it: cluster.run(train, 3)",
        )
    try:
        with _by_value(function):
            packed = cloudpickle.dumps((function, args))
    except Exception as problem:
        with _by_value(function):
            found = "; ".join(_culprits(function, args)) or f"it cannot be pickled: {problem}"
        raise InvalidArgument(
            asked=f"run({name}) on tasks",
            found=found,
            do="make inside the function what only this process can hold (models, data sets, "
            "strategies, locks, open files), and give numbers, arrays and names as arguments",
        ) from problem
    return pickle.dumps((list(sys.path), _cells(function), packed))


def answer(call_file: str, result_file: str) -> None:
    """Calls a function as it was sent, and writes what it returned or raised; runs in the task."""
    path, sources, packed = pickle.loads(Path(call_file).read_bytes())
    # First of all, for the function may need modules that are found there.
    sys.path += [folder for folder in path if folder not in sys.path]
    keep_lines(sources)
    try:
        call = pickle.loads(packed)
        function, args = call
        result = function(*args)
    except BaseException as problem:
        _write(result_file, _answer_from_error(problem, cells=sources))
        return
    try:
        _write(result_file, CallResult(result=_pickled(result)))
    except Exception as problem:
        told = CallResult(
            error=type(problem).__name__, text=str(problem), unpicklable=_kind(result)
        )
        _write(result_file, told)


def read_answer(result_file: Path) -> CallResult:
    """Returns what a call came to."""
    answer: CallResult = pickle.loads(result_file.read_bytes())
    return answer


def _write(path: str, answer: CallResult) -> None:
    Path(path).write_bytes(pickle.dumps(answer))


def _answer_from_error(problem: BaseException, *, cells: Iterable[str]) -> CallResult:
    trace = problem.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    problem.__traceback__ = trace
    full = "".join(traceback.format_exception(problem))
    own = [frame for frame in traceback.extract_tb(trace) if not is_installed(frame.filename)]
    short = "".join(traceback.format_list(own))
    for name in cells:  # a made-up one, another each time
        full, short = full.replace(name, "<cell>"), short.replace(name, "<cell>")
    return CallResult(
        error=type(problem).__name__, text=str(problem), traceback=full, own_traceback=short
    )


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Sends what TensorFlow holds as NumPy's arrays, at whatever depth it is met."""

    def reducer_override(self, obj: Any) -> Any:
        """Returns how an object is sent."""
        root = type(obj).__module__.partition(".")[0]
        if root in ("tensorflow", "keras"):
            if type(obj).__name__ == "PerReplica":
                return tuple, (obj.values,)
            if hasattr(obj, "numpy") and hasattr(obj, "dtype"):
                return _itself, (obj.numpy(),)
        return super().reducer_override(obj)


def _itself(value: Any) -> Any:
    return value


def _pickled(result: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file).dump(result)
    return file.getvalue()


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def _stands_alone(name: str, file: str) -> bool:
    """Whether a module is one file of the reader's own; `__main__` always goes by value."""
    is_package = Path(file).name == "__init__.py"
    return not (is_package or "." in name or name == "__main__" or is_installed(file))


@contextlib.contextmanager
def _by_value(function: Callable[..., Any]) -> Iterator[None]:
    """Inside, what the function's own module defines is pickled with its code."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    if module is None or file is None or not _stands_alone(module.__name__, file):
        yield
        return
    was_there = module.__name__ in cloudpickle.list_registry_pickle_by_value()
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        if not was_there:
            cloudpickle.unregister_pickle_by_value(module)


def _cells(function: Callable[..., Any]) -> dict[str, list[str]]:
    """Returns the lines of a notebook's cells by their made-up file names.

    Tracebacks show them, and AutoGraph reads them. A function may call those of other cells.
    """
    inner = inspect.unwrap(function)
    beside = getattr(inner, "__globals__", {}).values()
    # Only a look: to ask an object for what it has may load a module.
    bare = (inspect.getattr_static(one, "__wrapped__", one) for one in (inner, *beside))
    names = {one.__code__.co_filename for one in bare if isinstance(one, FunctionType)}
    lines = {name: linecache.getlines(name) for name in names if not Path(name).exists()}
    return {name: text for name, text in lines.items() if text}


def _culprits(function: Callable[..., Any], args: tuple[Any, ...]) -> Iterator[str]:
    """Yields what of a call cannot be pickled."""
    parts = {f"its argument {number}": value for number, value in enumerate(args)}
    if isinstance(inner := inspect.unwrap(function), FunctionType):
        used = inspect.getclosurevars(inner)
        parts |= {f"its variable {name!r}": value for name, value in used.nonlocals.items()}
        parts |= {f"its global {name!r}": value for name, value in used.globals.items()}
    for name, value in parts.items():
        try:
            cloudpickle.dumps(value)
        except Exception as problem:
            yield f"{name}, a {_kind(value)}, cannot be pickled: {problem}"
