"""Sends a function to a cluster's tasks, which answer with what it returns or raises.

    call_file.write_bytes(pack_call(train, (3,)))    # in the caller
    answer(call_file, result_file)                   # in the task, as the code of a cell
    pickle.loads(result_file.read_bytes())           # in the caller, if it raised nothing

A function goes with its code where a task could not import it: those of notebooks, scripts and
test modules. The lines of its source go along, which tracebacks show and AutoGraph reads. Tensors
and variables come back as NumPy arrays: the caller needs no TensorFlow.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import linecache
import marshal
import pickle
import sys
import traceback
from collections import ChainMap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, ClassVar

import cloudpickle

from distlab.errors import InvalidArgument, is_installed
from distlab.source_lines import keep_lines


class UnsendableResult(Exception):
    """A function returned what cannot be sent back."""


def pack_call(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Returns a call as bytes that a task can be sent."""
    if not callable(function):
        raise InvalidArgument(
            asked=f"run({function!r}) on tasks",
            found=f"a {type(function).__name__}, which cannot be called",
            do="pass a function, and its arguments after it: cluster.run(train, 3)",
        )
    file = io.BytesIO()
    with _by_value(function):
        try:
            _Pickler(file).dump((function, args))
        except Exception as error:
            culprits = "; ".join(_culprits(function, args))
            raise InvalidArgument(
                asked=f"run({getattr(function, '__name__', type(function).__name__)}) on tasks",
                found=culprits or f"it cannot be pickled: {error}",
                do="make inside the function what only this process can hold (models, data sets, "
                "strategies, locks, open files), and pass numbers, arrays and names as arguments",
            ) from error
    return pickle.dumps((list(sys.path), file.getvalue()))


def unpack_call(packed_call: bytes) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Returns a call's function and arguments, whose modules this process can then import."""
    path, packed = pickle.loads(packed_call)
    sys.path += [folder for folder in path if folder not in sys.path]
    function, args = pickle.loads(packed)
    return function, args


def answer(call_file: str, result_file: str) -> None:
    """Calls a function as it was sent, and writes what it returned; runs in the task."""
    try:
        function, args = unpack_call(Path(call_file).read_bytes())
        result = function(*args)
    except BaseException as error:
        _shorten_traceback(error)
        raise
    file = io.BytesIO()
    try:
        _ResultPickler(file).dump(result)
    except Exception as error:
        raise UnsendableResult(
            f"returned a {_kind(result)}, which cannot come back: {error}"
        ) from None
    Path(result_file).write_bytes(file.getvalue())


def _shorten_traceback(error: BaseException) -> None:
    """Makes IPython report an error's traceback in two parts: the user's own frames, and all."""
    trace = error.__traceback__.tb_next if error.__traceback__ else None  # below `answer`
    own = [frame for frame in traceback.extract_tb(trace) if not is_installed(frame.filename)]
    short = "".join(traceback.format_list(own))
    full = "".join(traceback.format_exception(type(error), error, trace))
    # A notebook's cell has a made-up file name, another one each time.
    for name in [name for name in linecache.cache if not _is_file(name)]:
        short, full = short.replace(name, "<cell>"), full.replace(name, "<cell>")
    error._render_traceback_ = lambda: [short, full]  # type: ignore[attr-defined]


def _is_file(name: str) -> bool:
    """Whether a code's file name needs no other name: it is a file's, or was no path at all."""
    return name.startswith("<") or Path(name).exists()


def _reduce_code(code: CodeType) -> tuple[Callable[..., CodeType], tuple[bytes, str, list[str]]]:
    """Sends code as Python's own files hold it: not every cloudpickle keeps its file name."""
    # The same list for all code of a file, so that a pickle has it once.
    lines = linecache.getlines(code.co_filename)
    return _code_with_source, (marshal.dumps(code), code.co_filename, lines)


def _code_with_source(code: bytes, name: str, lines: list[str]) -> CodeType:
    """Returns code that was sent, once tracebacks and AutoGraph can find its source."""
    if linecache.getlines(name) != lines:
        keep_lines({name: lines})
    loaded: CodeType = marshal.loads(code)
    return loaded


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Sends functions with the lines of their source."""

    dispatch_table: ClassVar = ChainMap(
        {CodeType: _reduce_code}, cloudpickle.Pickler.dispatch_table
    )


class _ResultPickler(_Pickler):
    """Sends what TensorFlow holds as NumPy's arrays, at whatever depth it is met."""

    def reducer_override(self, obj: Any) -> Any:
        """Returns how an object is sent."""
        root = type(obj).__module__.partition(".")[0]
        if root in ("tensorflow", "keras"):
            if type(obj).__name__ == "PerReplica":
                return tuple, (obj.values,)
            if hasattr(obj, "numpy") and hasattr(obj, "dtype"):
                return _identity, (obj.numpy(),)
        return super().reducer_override(obj)


def _identity(value: Any) -> Any:
    return value


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def _stands_alone(name: str, file: str) -> bool:
    """Whether a module is one file of the user's own; `__main__` always goes by value."""
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
    was_registered = module.__name__ in cloudpickle.list_registry_pickle_by_value()
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        if not was_registered:
            cloudpickle.unregister_pickle_by_value(module)


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
        except Exception as error:
            yield f"{name}, a {_kind(value)}, cannot be pickled: {error}"
