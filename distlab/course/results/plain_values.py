"""Turns results into plain values and bytes, and back.

    payload = encode(to_plain(outputs))      # where the learner's code runs
    outputs = decode(payload)                # where judging happens

Nothing but JSON values and numpy arrays crosses, and no pickle: an object with a funny
`__eq__`, or a numpy array of a patched class, never reaches a judge.
"""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np

from distlab.errors import InvalidArgument

Plain = Any  # None, bool, int, float, str, numpy array, or lists and dicts of these

_MAGIC = b"distlab1"
_MOST_NESTED = 32
_LARGEST_INT = 2**63
_ARRAY_KINDS = "biufcU"


def to_plain(value: Any, *, at: str = "the answer") -> Plain:
    """Copies a value into None, bool, int, float, str, numpy arrays, lists and dicts.

    Tensors and variables become arrays; numpy scalars become numbers; tuples become lists.
    """
    return _plain(value, at, 0)


def _plain(value: Any, at: str, depth: int) -> Plain:
    if depth > _MOST_NESTED:
        raise _refusal(at, f"more than {_MOST_NESTED} levels of lists or dicts", "return less")
    if value is None or isinstance(value, bool):
        return value
    # The base class's own method gives an exact copy, whatever a subclass overrides.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (np.ndarray, np.generic)):  # before float: np.float64 is one
        return _plain_array(value, at)
    if isinstance(value, int):
        number = int.__int__(value)
        if abs(number) >= _LARGEST_INT:
            raise _refusal(at, "an integer of more than 64 bits", "return a number in range")
        return number
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{at}[{i}]", depth + 1) for i, item in enumerate(value)]
    if isinstance(value, dict):
        odd = [key for key in value if not isinstance(key, str)]
        if odd:
            raise _refusal(at, f"a dict with the key {odd[0]!r}", "use strings as keys")
        return {
            str.__str__(key): _plain(item, f"{at}[{str.__str__(key)!r}]", depth + 1)
            for key, item in value.items()
        }
    return _plain_tensor(value, at)


def _plain_array(value: Any, at: str) -> Plain:
    array = np.array(value, subok=False)
    if array.dtype.type.__module__ == "ml_dtypes":  # bfloat16 and float8 have no npy form
        array = array.astype(np.float32)
    if array.dtype.kind not in _ARRAY_KINDS:
        raise _refusal(at, f"an array of {array.dtype}", "return numbers, booleans or strings")
    if isinstance(value, np.generic) and array.dtype.kind != "c":
        return array.item()
    return array


def _plain_tensor(value: Any, at: str) -> Plain:
    kind = type(value)
    if kind.__name__ in {"PerReplica", "DistributedValues"}:
        raise _refusal(
            at,
            "one value per replica (PerReplica)",
            "combine them with strategy.reduce, or list them with "
            "strategy.experimental_local_results",
        )
    # Asked by name, because judging and its tests must not need TensorFlow.
    if kind.__module__.split(".")[0] not in {"tensorflow", "keras", "tf_keras"}:
        raise _refusal(at, f"a {kind.__name__}", _WANTED)
    if not hasattr(value, "numpy"):
        found = f"a {kind.__name__}, which has no value"
        if "Symbolic" in kind.__name__ or kind.__name__ == "KerasTensor":
            found = "a symbolic tensor, which has no value"
        raise _refusal(at, found, "return a value: leave the tf.function or the model first")
    try:
        return _plain_array(np.asarray(value.numpy()), at)
    except (NotImplementedError, AttributeError, ValueError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise _refusal(at, f"a {kind.__name__} that has no single value", _WANTED) from error


_WANTED = "return tensors, arrays, numbers, strings, or lists and dicts of these"


def _refusal(at: str, found: str, do: str) -> InvalidArgument:
    return InvalidArgument(asked=f"a plain value for {at}", found=found, do=do)


def encode(value: Plain) -> bytes:
    """Packs a plain value: JSON for the structure, one npy for each array."""
    arrays: list[bytes] = []

    # Containers are tagged, so that no dict of a learner's can pose as an array.
    def pack(item: Plain) -> Any:
        if item is None or type(item) in (bool, int, float, str):
            return item
        if type(item) is np.ndarray and item.dtype.kind in _ARRAY_KINDS:
            buffer = io.BytesIO()
            np.save(buffer, item, allow_pickle=False)
            arrays.append(buffer.getvalue())
            return ["array", len(arrays) - 1]
        if type(item) is list:
            return ["list", [pack(each) for each in item]]
        if type(item) is dict:
            return ["dict", [[key, pack(each)] for key, each in item.items()]]
        raise _refusal("encode", f"a {type(item).__name__}", "pass it through to_plain first")

    parts = [json.dumps(pack(value)).encode(), *arrays]
    return _MAGIC + b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def decode(payload: bytes) -> Plain:
    """Unpacks what `encode` packed; what it did not pack is refused, never run."""
    try:
        if not payload.startswith(_MAGIC):
            raise ValueError("another beginning")
        parts, position = [], len(_MAGIC)
        while position < len(payload):
            length = int.from_bytes(payload[position : position + 8], "big")
            parts.append(payload[position + 8 : position + 8 + length])
            position += 8 + length
        if position != len(payload):
            raise ValueError("cut short")
        return _unpack(json.loads(parts[0]), parts[1:])
    except (ValueError, TypeError, IndexError, KeyError, EOFError, RecursionError) as error:
        raise InvalidArgument(
            asked="decode(payload)",
            found=f"bytes that encode did not make ({error})",
            do="pass on exactly what encode returned",
        ) from error


def _unpack(item: Any, arrays: list[bytes]) -> Plain:
    if item is None or isinstance(item, (bool, int, float, str)):
        return item
    kind, held = item
    if kind == "array":
        return np.load(io.BytesIO(arrays[held]), allow_pickle=False)
    if kind == "list":
        return [_unpack(each, arrays) for each in held]
    if kind == "dict":
        return {key: _unpack(each, arrays) for key, each in held}
    raise ValueError(f"unknown kind {kind!r}")
