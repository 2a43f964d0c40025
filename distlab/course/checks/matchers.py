"""Matchers of criteria: each compares a value with the expected one and returns a `Criterion`.

    expect_close("the mean", yours=outputs["mean"], expected=mean, atol=1e-6, weight=2)

`yours` may be anything plain: of the wrong kind or shape, None, NaN; a matcher never raises.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from distlab.course.checks.verdict import Criterion, Plain

_WIDEST = 88  # characters of a shown value: with its label, a line of a notebook


def expect_close(
    label: str, *, yours: Plain, expected: Plain, atol: float, weight: float = 1.0
) -> Criterion:
    """Numbers, arrays or nested lists of them, within `atol` at every place."""
    wanted, actual = _numbers(expected), _numbers(yours)
    if wanted is None:
        raise TypeError(f"expect_close({label!r}) needs numbers as expected, not {expected!r}")
    if yours is None:
        message = "your function returned None here: is there a `return`?"
    elif actual is None:
        message = f"numbers were expected here, yours is {_kind(yours)}"
    elif actual.shape != wanted.shape:
        message = f"the shape is {_shape(actual)}, expected {_shape(wanted)}"
        if actual.ndim == wanted.ndim == 1:
            message = f"the length is {len(actual)}, expected {len(wanted)}"
    else:
        message = _difference(actual, wanted, atol)
    return _criterion(label, message, yours, expected, weight)


def expect_equal(label: str, *, yours: Plain, expected: Plain, weight: float = 1.0) -> Criterion:
    """The same value: strings, booleans, integers, lists, dicts; an array equals its list."""
    if yours is None and expected is not None:
        message = "your function returned None here: is there a `return`?"
    else:
        message = "" if same_plain(yours, expected) else "the values differ"
    return _criterion(label, message, yours, expected, weight)


def expect_true(label: str, holds: object, *, message: str, weight: float = 1.0) -> Criterion:
    """A condition of your own; `message` says what is wrong when it does not hold."""
    return Criterion(label, bool(holds), "" if holds else message, weight=weight)


def same_plain(a: Plain, b: Plain, *, atol: float = 0.0) -> bool:
    """Whether two plain values agree, numbers within `atol` (absolute and relative)."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same_plain(a[k], b[k], atol=atol) for k in a)
    x, y = _numbers(a), _numbers(b)
    if x is not None and y is not None:
        with np.errstate(all="ignore"):
            return x.shape == y.shape and bool(
                np.allclose(x, y, rtol=atol, atol=atol, equal_nan=True)
            )
    if isinstance(a, np.ndarray):
        a = a.tolist()
    if isinstance(b, np.ndarray):
        b = b.tolist()
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(
            same_plain(i, j, atol=atol) for i, j in zip(a, b, strict=True)
        )
    return type(a) is type(b) and bool(a == b)


def shown(value: Plain) -> str:
    """A plain value as one short line, rounded."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        text = "{" + ", ".join(f"{key!r}: {shown(item)}" for key, item in value.items()) + "}"
    elif isinstance(value, (list, np.ndarray)) and _numbers(value) is not None:
        text = np.array2string(
            np.asarray(value), precision=5, threshold=12, edgeitems=3, separator=", "
        )
        text = re.sub(r"(?<=\[)\s+|\s+(?=[],])", "", " ".join(text.split()))  # NumPy's columns
    elif isinstance(value, list):
        text = "[" + ", ".join(map(shown, value)) + "]"
    else:
        text = repr(value)
    if len(text) <= _WIDEST:
        return text
    prefix = text[: _WIDEST - 4]
    whole = prefix.rpartition(",")[0]
    return (f"{whole}," if len(whole) > _WIDEST // 2 else prefix) + " ..."


def _criterion(label: str, message: str, yours: Plain, expected: Plain, weight: float) -> Criterion:
    return Criterion(label, not message, message, shown(yours), shown(expected), weight)


def _difference(actual: Any, wanted: Any, atol: float) -> str:
    turned_nan = np.isnan(actual) & ~np.isnan(wanted)
    if turned_nan.any():
        return f"NaN at {turned_nan.sum()} of {turned_nan.size} places"
    with np.errstate(all="ignore"):
        gap = np.abs(actual - wanted)
        differs = ~((gap <= atol) | (actual == wanted) | (np.isnan(actual) & np.isnan(wanted)))
    if not differs.any():
        return ""
    if gap.ndim == 0:
        return f"off by {float(gap):.3g}"
    place = np.unravel_index(int(np.argmax(np.where(differs, gap, -1))), gap.shape)
    where = ", ".join(str(int(i)) for i in place)
    return (
        f"{differs.sum()} of {differs.size} places differ, by up to {gap[place]:.3g} (at [{where}])"
    )


def _numbers(value: Plain) -> Any:
    """The value as a float64 or complex array, integers too; None when it is no number."""
    if isinstance(value, (bool, str, dict)) or value is None:
        return None
    try:
        array = np.asarray(value)
    except ValueError:  # rows of unequal length
        return None
    if array.dtype.kind in "iuf":
        return array.astype(np.float64)
    # An empty list is an array of no numbers.
    return array if array.dtype.kind == "c" or array.size == 0 else None


def _shape(array: Any) -> str:
    return str(list(array.shape)) if array.ndim else "[] (one number)"


def _kind(value: Plain) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    return "None" if value is None else f"a {type(value).__name__}: {shown(value)}"
