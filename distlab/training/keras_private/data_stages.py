"""A stage of a tf.data pipeline: what it is given and keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf


def stages_below(stage: Any) -> Iterator[Any]:
    """Yields the data sets that a stage reads."""
    yield from (below for below in stage._inputs() if isinstance(below, tf.data.Dataset))


def seeds_of(stage: Any) -> tuple[Any, Any] | None:
    """The two seeds of a stage; None of one that draws nothing."""
    return (stage._seed, stage._seed2) if hasattr(stage, "_seed2") else None


def draws_each_epoch(stage: Any) -> bool:
    """Whether a stage draws other numbers in each epoch, whatever its seed is."""
    return bool(getattr(stage, "_rerandomize", False))


def reshuffles(stage: Any, otherwise: bool) -> bool:
    """Whether a stage takes another order in each epoch; `otherwise` where it doesn't say."""
    return bool(getattr(stage, "_reshuffle_each_iteration", otherwise))


def is_unordered(stage: Any) -> bool:
    """Whether a stage may give its elements in any order."""
    return getattr(stage, "_deterministic", None) == "false"


def functions_of(stage: Any) -> Iterator[Any]:
    """Yields TensorFlow's functions that a stage calls."""
    yield from (each.function for each in stage._functions())


def graph_of(stage: Any) -> Any:
    """The graph of a stage and of all below it, as a GraphDef."""
    return tf.compat.v1.GraphDef.FromString(stage._as_serialized_graph().numpy())
