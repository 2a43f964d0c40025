"""Functions of TensorFlow's C interface that join a cluster, called without the GIL.

enable_collective_ops(handle, server)      # waits for all workers; other threads run meanwhile
set_server_def(handle, server, keep_alive_secs=600)     # likewise, for all servers
put(handle, "key", "value")                # in the store that the coordination service keeps
get(handle, "key", timeout_ms=20)          # None where it is not there yet
remove(handle, "key")

TensorFlow's own binding holds the GIL while these wait, and an interrupt that comes while it makes
an exception is lost in another one. `handle` is what TensorFlow's Python calls its context handle.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator
from typing import Any

from tensorflow.python import _pywrap_tfe
from tensorflow.python.framework import errors

_POINTER, _TEXT, _SIZE = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t


class _Buffer(ctypes.Structure):
    """TF_Buffer."""

    _fields_ = (("data", _POINTER), ("length", _SIZE), ("deallocator", _POINTER))


_BUFFER = ctypes.POINTER(_Buffer)
_SIGNATURES = {
    "TF_NewStatus": (_POINTER, []),
    "TF_DeleteStatus": (None, [_POINTER]),
    "TF_GetCode": (ctypes.c_int, [_POINTER]),
    "TF_Message": (_TEXT, [_POINTER]),
    "TF_NewBuffer": (_BUFFER, []),
    "TF_DeleteBuffer": (None, [_BUFFER]),
    "TFE_EnableCollectiveOps": (None, [_POINTER, _TEXT, _SIZE, _POINTER]),
    "TFE_ContextSetServerDef": (None, [_POINTER, ctypes.c_int, _TEXT, _SIZE, _POINTER]),
    "TFE_InsertConfigKeyValue": (None, [_POINTER, _TEXT, _TEXT, _POINTER]),
    "TFE_DeleteConfigKeyValue": (None, [_POINTER, _TEXT, _POINTER]),
    "TFE_GetConfigKeyValue": (None, [_POINTER, _TEXT, ctypes.c_int64, _BUFFER, _POINTER]),
}


def enable_collective_ops(handle: Any, server: bytes) -> None:
    """Starts this process's server and waits until all tasks of the cluster have come."""
    with _status() as status:
        _library().TFE_EnableCollectiveOps(_pointer(handle), server, len(server), status)


def set_server_def(handle: Any, server: bytes, *, keep_alive_secs: int) -> None:
    """Connects this process, which coordinates, to the servers of its cluster."""
    with _status() as status:
        _library().TFE_ContextSetServerDef(
            _pointer(handle), keep_alive_secs, server, len(server), status
        )


def put(handle: Any, key: str, value: str) -> None:
    """Writes to the store."""
    with _status() as status:
        _library().TFE_InsertConfigKeyValue(_pointer(handle), key.encode(), value.encode(), status)


def get(handle: Any, key: str, *, timeout_ms: int) -> str | None:
    """Reads from the store; None where the key is not there yet, or the store is not."""
    buffer = _library().TF_NewBuffer()
    try:
        with _status() as status:
            _library().TFE_GetConfigKeyValue(
                _pointer(handle), key.encode(), timeout_ms, buffer, status
            )
        content = buffer.contents
        return ctypes.string_at(content.data, content.length).decode()
    except errors.OpError:
        return None
    finally:
        _library().TF_DeleteBuffer(buffer)


def remove(handle: Any, key: str) -> None:
    """Takes a key out of the store; does nothing where the store is not there any more."""
    with contextlib.suppress(errors.OpError), _status() as status:
        _library().TFE_DeleteConfigKeyValue(_pointer(handle), key.encode(), status)


@contextlib.contextmanager
def _status() -> Iterator[Any]:
    """Yields a TF_Status, and raises what it says afterwards."""
    status = _library().TF_NewStatus()
    try:
        yield status
        code = _library().TF_GetCode(status)
        message = _library().TF_Message(status).decode(errors="replace")
    finally:
        _library().TF_DeleteStatus(status)
    if code:
        raise errors.exception_type_from_error_code(code)(None, None, message)


def _pointer(handle: Any) -> int:
    get_pointer: Callable[[Any, None], int] = ctypes.pythonapi.PyCapsule_GetPointer
    return get_pointer(handle, None)


@functools.cache
def _library() -> Any:
    library = ctypes.CDLL(_pywrap_tfe.__file__)  # it is linked to the one that has them
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    of_capsule = ctypes.pythonapi.PyCapsule_GetPointer
    of_capsule.restype, of_capsule.argtypes = _POINTER, [ctypes.py_object, _TEXT]
    return library
