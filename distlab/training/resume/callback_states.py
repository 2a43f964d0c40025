"""The states of callbacks, as JSON and NumPy arrays.

before = observe(callbacks)
...                                             # training
states = changes(callbacks, before, values)     # arrays go into `values`
restore(callbacks, states, values)

Only what changed since training began is stored. So a callback's own arguments are never
overwritten by those of an earlier run, and what it opened for itself stays open.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from distlab.training.keras_private import TURN_MIN_DELTA

# Of these callbacks only what is named here, or nothing: the rest is about this process, its
# screen, its speed, its writers and profilers.
_ONLY = {
    "Agreement": (),
    "ProgbarLogger": (),
    "TensorBoard": ("_global_train_batch", "_global_test_batch", "_previous_epoch_iterations"),
}
_EXCEPT = dict.fromkeys(TURN_MIN_DELTA, ("min_delta",))
_OF_EVERY_CALLBACK = {"_model", "_params", "model", "params", "validation_data"}
_TAG = "is"

Arrays = dict[str, np.ndarray]


def observe(callbacks: Iterable[keras.callbacks.Callback]) -> dict[str, dict[str, Any]]:
    """Returns a fingerprint of every attribute."""
    return {
        name: {attribute: _fingerprint(value) for attribute, value in _attributes(callback)}
        for name, callback in _named(callbacks)
    }


def changes(
    callbacks: Iterable[keras.callbacks.Callback],
    before: dict[str, dict[str, Any]],
    values: Arrays,
) -> dict[str, dict[str, Any]]:
    """Returns the attributes that are not what they were, by callback, fit for JSON.

    An attribute of a callback that is not Keras's, and that cannot be stored, is warned of.
    """
    states: dict[str, dict[str, Any]] = {}
    for name, callback in _named(callbacks):
        for attribute, value in _attributes(callback):
            was = before.get(name, {})
            fingerprint = _fingerprint(value)
            if attribute in was and was[attribute] == fingerprint:
                continue
            if fingerprint[0] == "plain":
                arrays: Arrays = {}
                stored = _encode(value, f"callbacks/{name}/{attribute}", arrays)
                states.setdefault(name, {})[attribute] = stored
                values |= arrays
            elif not type(callback).__module__.startswith("keras."):
                was[attribute] = fingerprint  # say it once
                warnings.warn(
                    f"Resume: {name} keeps {attribute}, a {type(value).__name__}, which a "
                    "checkpoint cannot hold: only numbers, texts, NumPy arrays, and lists, "
                    "tuples, sets and dicts of them",
                    UserWarning,
                    stacklevel=2,
                )
    return states


def restore(
    callbacks: Iterable[keras.callbacks.Callback],
    states: dict[str, dict[str, Any]],
    values: Arrays,
    *,
    warn: bool,
) -> None:
    """Gives callbacks their attributes back; may warn of a state whose callback is not there."""
    by_name = dict(_named(callbacks))
    for name, state in states.items():
        if name not in by_name:
            if not warn:
                continue
            warnings.warn(
                f"Resume: the checkpoint holds the state of {name}, and fit was given no such "
                "callback",
                UserWarning,
                stacklevel=2,
            )
            continue
        for attribute, stored in state.items():
            setattr(by_name[name], attribute, _decode(stored, values))


def _named(
    callbacks: Iterable[keras.callbacks.Callback],
) -> Iterable[tuple[str, keras.callbacks.Callback]]:
    """By class, and by number where there are several of it: "EarlyStopping", "EarlyStopping-2"."""
    seen: dict[str, int] = {}
    for callback in callbacks:
        name = type(callback).__name__
        seen[name] = seen.get(name, 0) + 1
        yield name if seen[name] == 1 else f"{name}-{seen[name]}", callback


def _attributes(callback: keras.callbacks.Callback) -> list[tuple[str, Any]]:
    kinds = [kind.__name__ for kind in type(callback).__mro__]
    only = next((_ONLY[kind] for kind in kinds if kind in _ONLY), None)
    never = _OF_EVERY_CALLBACK.union(*(_EXCEPT.get(kind, ()) for kind in kinds))
    return [
        (attribute, value)
        for attribute, value in vars(callback).items()
        if attribute not in never and (only is None or attribute in only)
    ]


def _fingerprint(value: Any) -> tuple[str, Any]:
    """Returns a fingerprint that shows whether a value changed, without a copy of its arrays."""
    arrays: Arrays = {}
    try:
        text = json.dumps(_encode(value, "", arrays))
    except TypeError:
        return "other", id(value)
    digest = hashlib.blake2b(text.encode())
    for array in arrays.values():
        digest.update(f"{array.dtype.name}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return "plain", digest.hexdigest()


def _encode(value: Any, key: str, arrays: Arrays) -> Any:
    kind = type(value)
    if kind is float and not math.isfinite(value):
        return {_TAG: "float", "value": repr(value)}
    if value is None or kind in (bool, int, float, str):
        return value
    if isinstance(value, np.ndarray | np.generic) and _storable(np.asarray(value).dtype):
        arrays[key] = np.asarray(value)
        return {_TAG: "array" if isinstance(value, np.ndarray) else "scalar", "value": key}
    if kind is dict and all(type(name) is str for name in value) and _TAG not in value:
        return {name: _encode(item, f"{key}/{name}", arrays) for name, item in value.items()}
    if kind is dict:
        return {_TAG: "dict", "value": _encode_all(value.items(), key, arrays)}
    if kind is list:
        return _encode_all(value, key, arrays)
    if kind in (tuple, set):
        return {_TAG: kind.__name__, "value": _encode_all(value, key, arrays)}
    raise TypeError(f"{kind.__name__} cannot be stored")


def _storable(dtype: np.dtype[Any]) -> bool:
    return not dtype.hasobject and (dtype.kind != "V" or dtype.isbuiltin == 2)  # 2: bfloat16


def _encode_all(items: Iterable[Any], key: str, arrays: Arrays) -> list[Any]:
    return [_encode(item, f"{key}/{index}", arrays) for index, item in enumerate(items)]


def _decode(stored: Any, values: Arrays) -> Any:
    if isinstance(stored, list):
        return [_decode(item, values) for item in stored]
    if not isinstance(stored, dict):
        return stored
    if _TAG not in stored:
        return {name: _decode(item, values) for name, item in stored.items()}
    kind, value = stored[_TAG], stored["value"]
    if kind == "array":
        return values[value].copy()
    if kind == "scalar":
        return values[value][()]
    if kind == "float":
        return float(value)
    return {"tuple": tuple, "set": set, "dict": dict}[kind](_decode(value, values))
