"""Tensors that leave a layer by another door than its outputs: an attribute, a list, an object.

A layer computes with own rows, and the step outside of it with those of all replicas. So each
tensor that a layer makes is marked with its rows, until it leaves as an output does (`let_out`). If
the step meets one that is still marked, it is given all rows in its place.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from distlab.training.rule.refusal import refusal
from distlab.training.rule.step import Step
from distlab.training.rule.tensors import counts_rows


def mark(step: Step, tensors: Iterable[Any]) -> None:
    """Marks tensors that a layer has computed with own rows."""
    step.has_doors = True
    for tensor in tensors:
        if tensor.dtype not in (tf.resource, tf.variant):
            tensor._distlab_own = step.rows


def with_all_rows(step: Step, tensor: Any) -> Any:
    """Returns a tensor, or all rows of one that a layer has computed and did not return."""
    rows = getattr(tensor, "_distlab_own", None)
    if rows is None:
        return tensor
    if not hasattr(tensor, "_distlab_whole"):
        with step.on(rows):
            tensor._distlab_whole = _all_rows(step, rows, tensor)
    return tensor._distlab_whole


def check_sources(step: Step, sources: Any) -> None:
    """Raises where a gradient is asked for that has own rows."""
    if any(getattr(part, "_distlab_own", None) is not None for part in tf.nest.flatten(sources)):
        raise refusal(
            step,
            "the gradient of a tensor that a layer has kept",
            "return the tensor from the layer's call()",
        )


def _all_rows(step: Step, rows: Any, tensor: Any) -> Any:
    if rows.context is not step.batch.context:
        found = "a tensor that a layer has kept on another replica"
    elif not step.can_meet():
        found = "a tensor that a layer has kept, in a loop or a condition"
    elif counts_rows(tensor):
        found = "a number of rows that a layer has kept, which are a replica's own there"
    else:
        return rows.whole(tensor)
    raise refusal(step, found, "return it from the layer's call()")
