"""What the checks of lesson 03 share: gradients over four replicas, and what they should be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.batching import split_batch
from distlab.course.runs.replicas import MOST_REPLICAS, mirrored


def summed_gradient(loss_of: Callable[..., Any], weights: Any, arrays: tuple[Any, ...]) -> Any:
    """The sum over replicas of each replica's loss and gradients, as an optimizer sees it."""
    import tensorflow as tf

    strategy = mirrored(MOST_REPLICAS)
    piece = -(-len(arrays[0]) // MOST_REPLICAS)

    def part(array: Any) -> Any:
        def of(context: Any) -> Any:
            index = context.replica_id_in_sync_group
            return tf.constant(array[piece * index : piece * (index + 1)])

        return strategy.experimental_distribute_values_from_function(of)

    def step(*parts: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = _one_number(loss_of(*parts))
        return loss, tape.gradient(loss, weights, unconnected_gradients="zero")

    per_replica = strategy.run(step, args=tuple(part(array) for array in arrays))
    return tf.nest.map_structure(
        lambda value: strategy.reduce("SUM", value, axis=None).numpy(),
        per_replica,
    )


def _one_number(loss: Any) -> Any:
    """The loss of a replica; 0.0 of one without examples may be an ordinary number."""
    import tensorflow as tf

    if loss is None:
        raise TypeError("your function returned None: is there a `return`?")
    if isinstance(loss, (int, float)) and loss != 0:
        raise TypeError("your function returned a plain number, which has no gradient")
    loss = tf.convert_to_tensor(loss)
    if loss.shape.rank:
        shape = loss.shape.as_list()
        raise TypeError(f"a loss is one number, and yours has the shape {shape}: add it up")
    return loss


def one_device(counts: Any) -> Any:
    """The weight of each example on one device; `counts` is 0 where there is nothing to count."""
    return counts / counts.sum()


def own_mean(counts: Any) -> Any:
    """The weight of each example where replicas' means are added."""
    shares = split_batch(len(counts), MOST_REPLICAS)
    ends = np.cumsum(shares)
    sums = [counts[end - share : end].sum() for end, share in zip(ends, shares, strict=True)]
    columns = [1] * (counts.ndim - 1)
    return counts / np.repeat(sums, shares).astype("float64").reshape(-1, *columns)


def mean_of_means(counts: Any) -> Any:
    """The weight of each example where replicas' means are averaged."""
    return own_mean(counts) / MOST_REPLICAS
