"""What a step that was written for replicas asks of TensorFlow: in a step there is one device.

Every replica sees the whole batch and has its gradients, so a sum over replicas is the value
itself, and the replica that asks is the first of one. Only in a layer with own rows is there more
than one. What has no such answer is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import tensorflow as tf

from distlab.errors import is_installed
from distlab.training.rule.refusal import refusal
from distlab.training.rule.rows import current


def _asks() -> bool:
    """Whether it is a step that asks, and not distlab's own collective or a layer of own rows."""
    step = current()
    return step is not None and step.rows is None and not step.is_meeting


def _is_users(caller: FrameType) -> bool:
    """Whether a caller is the user's own code."""
    return not is_installed(caller.f_code.co_filename)


def num_replicas(strategy: Any) -> int:
    """Replaces `num_replicas_in_sync` of strategies."""
    return 1 if current() is not None else int(strategy.extended._num_replicas_in_sync)


def replica_id(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Replaces `replica_id_in_sync_group` of replica contexts."""

    def replica_id(self: Any) -> Any:
        is_asked = _asks() and _is_users(sys._getframe(1))
        return tf.constant(0) if is_asked else original(self)

    return replica_id


def all_reduce(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces `all_reduce` of replica contexts."""

    def all_reduce(self: Any, reduce_op: Any, value: Any, options: Any = None) -> Any:
        return value if _asks() else original(self, reduce_op, value, options)

    return all_reduce


def all_gather(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces `all_gather` of replica contexts."""

    def all_gather(self: Any, value: Any, axis: int, options: Any = None) -> Any:
        return value if _asks() else original(self, value, axis, options)

    return all_gather


def merge_call(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces `merge_call` of replica contexts."""

    def merge_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        _check(sys._getframe(1), "merge_call")
        return original(self, *args, **kwargs)

    return merge_call


def reduce(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces `reduce` of strategies."""

    def reduce(self: Any, *args: Any, **kwargs: Any) -> Any:
        _check(sys._getframe(1), "strategy.reduce")
        return original(self, *args, **kwargs)

    return reduce


def _check(caller: FrameType, name: str) -> None:
    """Raises where a step asks for what replicas do together, which has no answer there."""
    step = current()
    if step is not None and _asks() and _is_users(caller):
        raise refusal(
            step,
            f"{name}, which brings replicas together",
            "leave it out: the step already has the whole batch, and its gradients",
        )
