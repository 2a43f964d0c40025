"""The replica context that TensorFlow shows a step written for replicas: there is one device.

Every replica sees the whole batch and has its gradients, so a sum over replicas is the value
itself, and the replica that asks is the first of one. A layer with own rows that asks for a sum
looks at other rows, so it gets the whole batch. What has no such answer is refused.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import tensorflow as tf

from distlab.training.rule.current import current, replaces
from distlab.training.rule.gradients import Built, left_out
from distlab.training.rule.refusal import is_of_user, refusal
from distlab.training.rule.step import Step

_CONTEXT = "tensorflow.python.distribute.distribute_lib"

# From a replacement, the frame of its caller: the registry's own is between.
_CALLER = 2


def _asking() -> Step | None:
    """The step that asks; None if a collective of distlab's or a layer of own rows does."""
    step = current()
    return step if step is not None and step.rows is None and not step.is_meeting else None


def _is_users(caller: FrameType) -> bool:
    """Whether a caller is the user's own code, or that of a package which the user brings."""
    return is_of_user(caller.f_globals.get("__name__"))


@dataclasses.dataclass(frozen=True)
class OneReplica:
    """The context of a step that is tried outside of replicas, to make its variables."""

    strategy: tf.distribute.Strategy
    num_replicas_in_sync: int = 1
    replica_id_in_sync_group: int = 0

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """Returns the value."""
        return value

    def all_gather(self, value: Any, axis: int, options: Any = None) -> Any:
        """Returns the value."""
        return value


@replaces("tensorflow.distribute.get_replica_context", when=left_out)
def replica_context(applied: list[Built], original: Callable[[], Any]) -> Any:
    """Gives a step that only makes variables a context, where TensorFlow has none."""
    return original() or OneReplica(tf.distribute.get_strategy())


@replaces("tensorflow.distribute.Strategy.num_replicas_in_sync")
def num_replicas_in_sync(step: Step, original: Callable[..., Any], self: Any) -> int:
    """Answers that there is one replica."""
    return 1


@replaces(f"{_CONTEXT}.ReplicaContextBase.replica_id_in_sync_group")
def replica_id(step: Step, original: Callable[..., Any], self: Any) -> Any:
    """Answers the user's code that it is the first replica."""
    return tf.constant(0) if _is_users(sys._getframe(_CALLER)) else original(self)


@replaces(f"{_CONTEXT}.ReplicaContextBase.all_reduce", when=_asking)
def all_reduce(
    step: Step, original: Any, self: Any, reduce_op: Any, value: Any, options: Any = None
) -> Any:
    """Returns the value, which is the sum and the mean over the one replica."""
    return value


@replaces(f"{_CONTEXT}.ReplicaContext.all_gather", when=_asking)
def all_gather(
    step: Step, original: Any, self: Any, value: Any, axis: int, options: Any = None
) -> Any:
    """Returns the value, which has the rows of the one replica."""
    return value


@replaces(f"{_CONTEXT}.ReplicaContextBase.merge_call")
def merge_call(step: Step, original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Refuses the user's code what replicas do together."""
    _check(step, sys._getframe(_CALLER), "merge_call")
    return original(self, *args, **kwargs)


@replaces("tensorflow.distribute.Strategy.reduce")
def reduce(step: Step, original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Refuses the user's code what is done of all replicas' values."""
    _check(step, sys._getframe(_CALLER), "strategy.reduce")
    return original(self, *args, **kwargs)


def _check(step: Step, caller: FrameType, name: str) -> None:
    if _is_users(caller):
        raise refusal(
            step,
            f"{name}, which brings replicas together",
            "leave it out: the step already has the whole batch, and its gradients",
        )
