"""Batches that end in None, such as (x, None): data without targets, or without weights.

data = without_none(data)        # (x, None) becomes (x,), which Keras reads alike

Without a strategy Keras leaves None out of the step. TensorFlow cannot distribute it.
"""

from __future__ import annotations

from types import GeneratorType
from typing import Any

import tensorflow as tf

from distlab.errors import DatasetError


def without_none(data: Any) -> Any:
    """Returns data whose batches do not end in None."""
    if isinstance(data, GeneratorType):
        return (batch[: _kept(batch)] if isinstance(batch, tuple) else batch for batch in data)
    if not isinstance(data, tf.data.Dataset) or not isinstance(data.element_spec, tuple):
        return data
    kept = _kept(data.element_spec)
    if kept == len(data.element_spec):
        return data
    return data.map(lambda *batch: batch[:kept])


def _kept(batch: tuple[Any, ...]) -> int:
    """The length of a batch without the parts at its end that are None."""
    # The class of None's spec has no public name.
    missing = [type(part).__name__ in ("NoneType", "NoneTensorSpec") for part in batch]
    kept = max((place for place, one in enumerate(missing, start=1) if not one), default=1)
    if any(missing[:kept]):
        parts = ", ".join("None" if one else "a tensor" for one in missing)
        raise DatasetError(
            asked="distribute the batches of a data set",
            found=f"batches ({parts}): TensorFlow cannot distribute None before another part",
            do="give an array of zeros in its place",
        )
    return kept
