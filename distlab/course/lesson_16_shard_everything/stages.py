"""The four stages that lesson 16 writes, for its tests and for the command that measures peaks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from distlab.course.lesson_16_shard_everything.sharded_training import Stage


def update_all(context: Any, weight: Any, gradient: Any, state: Sequence[Any], step: Any) -> Any:
    """Sums the gradients of all replicas, and updates everything."""
    return step(weight, context.all_reduce("SUM", gradient), state)


def update_own_rows(
    context: Any, weight: Any, gradient: Any, state: Sequence[Any], step: Any
) -> Any:
    """Sums the own rows of the gradient, updates them, and gathers the new weights."""
    own_gradient = context.reduce_scatter(gradient)
    own_weight, state = step(context.own_rows(weight), own_gradient, state)
    return context.all_gather(own_weight, axis=0), state


def collect_own_rows(context: Any, gradient: Any) -> Any:
    """Sums the own rows of the gradient."""
    return context.reduce_scatter(gradient)


def update_with_own_rows(
    context: Any, weight: Any, own_gradient: Any, state: Sequence[Any], step: Any
) -> Any:
    """Updates the own rows, and gathers the new weights."""
    own_weight, state = step(context.own_rows(weight), own_gradient, state)
    return context.all_gather(own_weight, axis=0), state


def forward_gathered(context: Any, layer: Any, own_rows: Any, x: Any) -> Any:
    """Gathers a layer's weights, runs the layer, and drops them until the backward pass."""
    return tf.recompute_grad(lambda own, x: layer(context.all_gather(own, axis=0), x))(own_rows, x)


def update_alone(
    context: Any, own_weight: Any, own_gradient: Any, state: Sequence[Any], step: Any
) -> Any:
    """Updates the own rows."""
    return step(own_weight, own_gradient, state)


MIRRORED = Stage("mirrored", update=update_all)
ZERO_1 = Stage("ZeRO 1", update=update_own_rows, divides=["state"])
ZERO_2 = Stage(
    "ZeRO 2",
    divides=["state", "gradients"],
    collect=collect_own_rows,
    update=update_with_own_rows,
)
ZERO_3 = Stage(
    "ZeRO 3",
    divides=["state", "gradients", "weights"],
    forward=forward_gathered,
    update=update_alone,
)
STAGES = (MIRRORED, ZERO_1, ZERO_2, ZERO_3)
