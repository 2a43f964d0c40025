"""What came by in a trial of a step, and on which examples."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from distlab.training.keras_private import states


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Which examples of a global batch a trial has.

    Attributes:
        first: The first one's number.
        examples: How many.
        in_all: How many the global batch has.
    """

    first: int
    examples: int
    in_all: int

    @property
    def share(self) -> float:
        """Part of the global batch, from 0 to 1."""
        return self.examples / self.in_all


@dataclasses.dataclass
class Seen:
    """What came by in a trial, in the order of the calls.

    Attributes:
        gradients: Those with respect to variables, one list a call of `GradientTape.gradient`.
        means: What was given to a `keras.metrics.Mean` or `Sum`, in each call.
        weights: The weight of each of these calls, if it is a tensor of one number, else None.
        losses: Values of compiled losses.
        added: Values of `model.losses`.
        applied: Optimizers, and the variables that they were to update.
        logs: The numbers that the step returned, but for results of metrics.
        totals: What shares have to know of the whole batch.
        changes: What the step wrote, but for weights and metrics.
        results: Whether the step asked for results of metrics.
        targets: What was differentiated with respect to variables, added up.
        gathered: What the step asked of all replicas, by `distlab.all_gather`.
        of_sum: See `Batch`.
    """

    gradients: list[list[Any]] = dataclasses.field(default_factory=list)
    means: list[tf.Tensor] = dataclasses.field(default_factory=list)
    weights: list[tf.Tensor | None] = dataclasses.field(default_factory=list)
    losses: list[tf.Tensor] = dataclasses.field(default_factory=list)
    added: list[tf.Tensor] = dataclasses.field(default_factory=list)
    applied: list[tuple[Any, list[Any]]] = dataclasses.field(default_factory=list)
    logs: dict[str, tf.Tensor] = dataclasses.field(default_factory=dict)
    totals: list[tf.Tensor] = dataclasses.field(default_factory=list)
    changes: states.Changes = dataclasses.field(default_factory=dict)
    results: bool = False
    targets: list[tf.Tensor] = dataclasses.field(default_factory=list)
    gathered: list[tf.Tensor] = dataclasses.field(default_factory=list)
    of_sum: bool = False
