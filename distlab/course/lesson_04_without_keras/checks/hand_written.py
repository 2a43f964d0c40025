"""Runs a learner's step on four replicas, and reads every copy of its variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from distlab.course.runs.replicas import MOST_REPLICAS, give_each, mirrored


def made(*values: Any) -> list[Any]:
    """Returns a mirrored variable for each value, without an aggregation."""
    import tensorflow as tf

    with mirrored(MOST_REPLICAS).scope():
        return [tf.Variable(tf.constant(value, tf.float32)) for value in values]


def on_replicas(step: Callable[..., Any], variables: Sequence[Any], *shares: Any) -> None:
    """Runs `step(*variables, *one share of each)` once, on four replicas."""
    import tensorflow as tf

    strategy = mirrored(MOST_REPLICAS)
    given = [
        give_each(strategy, [tf.constant(own, tf.float32) for own in share]) for share in shares
    ]
    strategy.run(lambda *own: step(*variables, *own), args=tuple(given))


def copies_of(variable: Any) -> Any:
    """Returns the copies of a variable: an array [replicas, ...]."""
    local = mirrored(MOST_REPLICAS).experimental_local_results(variable)
    return np.stack([copy.numpy() for copy in local])


def to_all(value: Any) -> Any:
    """Returns the same value for each replica: an array [replicas, ...]."""
    return np.broadcast_to(value, (MOST_REPLICAS, *np.shape(value)))
