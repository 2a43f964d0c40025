"""The losses of a compiled model, as one replica's part of the loss of the global batch.

A replica's part is what the sum over all replicas makes the loss that one device would have:

    prepare(model)                           # once, after Keras has resolved the losses
    with part_of(batch) as outputs:          # in the replica's function
        loss = compiled(model, y, y_pred, sample_weight)
    # loss: this replica's part; outputs: the same for each output that has a logged loss
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.losses.loss import apply_mask

from distlab.errors import ModelError
from distlab.training.keras_private import models


@dataclasses.dataclass(frozen=True)
class Batch:
    """One replica's share of a global batch.

    Attributes:
        examples: Number of examples of this replica, a float32 scalar; may be 0.
        in_all: Number of examples of the global batch, a float32 scalar.
    """

    examples: tf.Tensor
    in_all: tf.Tensor

    @property
    def share(self) -> tf.Tensor:
        """Part of the global batch that this replica has, from 0 to 1."""
        return self.examples / self.in_all

    def only_if_there(self, value: tf.Tensor) -> tf.Tensor:
        """Returns the value, or 0 if this replica has no example: then it counts for nothing.

        It may even be no number (a mean over none), or that of an example in a place to fill.

        Args:
            value: What this replica computed.
        """
        return tf.where(self.examples > 0, value, 0)


# Replicas are traced in turns, each in a thread of its own: what one replica is at is kept
# apart from what another is at.
_NOW = threading.local()


@contextlib.contextmanager
def part_of(batch: Batch) -> Iterator[list[tf.Tensor]]:
    """Inside the block, prepared losses give this replica's part of the global batch's loss.

    Args:
        batch: What this replica has of the batch.

    Yields:
        The parts of those losses that Keras also logs one by one (of several outputs), without
        their weights in the total. It is filled as the loss is computed.
    """
    outputs: list[tf.Tensor] = []
    _NOW.batch, _NOW.outputs = batch, outputs
    try:
        yield outputs
    finally:
        del _NOW.batch, _NOW.outputs


def check(model: keras.Model) -> None:
    """Raises where a loss is not one number.

    Args:
        model: A compiled model.

    Raises:
        ModelError: A loss is not reduced.
    """
    for loss in keras.tree.flatten(model.loss):
        if isinstance(loss, keras.losses.Loss) and loss.reduction in (None, "none"):
            raise ModelError(
                asked=f"train the distributed model {model.name!r}",
                found=f"a loss {loss.name!r} with reduction={loss.reduction!r}, which leaves no "
                "single number to train on",
                do="give it reduction='sum_over_batch_size' (Keras's default) or 'sum'",
            )


def prepare(model: keras.Model) -> None:
    """Lets the compiled losses know of `part_of`. Outside of it they are as they were.

    Args:
        model: A compiled model whose losses Keras has resolved.
    """
    compiled_loss = model._compile_loss
    if compiled_loss is None or not compiled_loss.built:
        return
    for index, entry in enumerate(compiled_loss._flat_losses):
        if not isinstance(entry.loss, _PartOfLoss):
            compiled_loss._flat_losses[index] = entry._replace(loss=_PartOfLoss(entry.loss))
    for metric in compiled_loss.metrics:
        metric.update_state = _Recorded(metric.update_state)


def compiled(model: keras.Model, y: Any, y_pred: Any, sample_weight: Any) -> tf.Tensor:
    """Returns this replica's part of the compiled losses and of the model's own.

    Call it inside `part_of`.

    Args:
        model: A prepared model.
        y: Targets of this replica.
        y_pred: Predictions of this replica.
        sample_weight: Weights of this replica's examples, or None.

    Returns:
        A scalar.

    Raises:
        ModelError: The model has nothing to minimise.
    """
    parts = []
    if model._compile_loss is not None:
        parts.append(model._compile_loss(y, y_pred, sample_weight))
    for loss in model.losses:
        # Regularisers of weights do not depend on the examples. Of what a layer gives to
        # `add_loss`, Keras adds up all numbers; a single one is taken for a mean over examples.
        part = tf.reduce_sum(tf.cast(loss, keras.backend.floatx()))
        if loss.shape.rank == 0:
            part *= tf.cast(_NOW.batch.share, part.dtype)
        parts.append(_NOW.batch.only_if_there(part))
    if not parts:
        raise ModelError(
            asked="train a distributed model",
            found="no loss: neither compile() nor a layer brings one",
            do="give compile() a loss, or let a layer call add_loss()",
        )
    return tf.add_n([tf.cast(part, parts[0].dtype) for part in parts])


def log_outputs(model: keras.Model, values: list[tf.Tensor], weight: tf.Tensor) -> None:
    """Adds to the losses that Keras logs for each of several outputs.

    Args:
        model: A prepared model.
        values: One scalar an output.
        weight: How much they count.
    """
    metrics = model._compile_loss.metrics if model._compile_loss is not None else []
    for metric, value in zip(metrics, values, strict=bool(values)):
        metric.update_state(value, sample_weight=weight)


class _PartOfLoss:
    """A Keras loss that gives a replica's part of the global batch's inside `part_of`."""

    def __init__(self, loss: keras.losses.Loss) -> None:
        self.loss = loss
        self.name = loss.name
        loss.call = _Noted(loss.call)

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
        batch = getattr(_NOW, "batch", None)
        _NOW.values = None
        value = self.loss(y_true, y_pred, sample_weight)
        values, _NOW.values = _NOW.values, None
        if batch is None:
            return value
        if self.loss.reduction == "sum":
            return batch.only_if_there(value)
        masks = [models.mask_of(y_pred), models.mask_of(values)]
        masks = [tf.cast(mask, tf.bool) for mask in masks if mask is not None]
        mask = functools.reduce(tf.logical_and, masks) if masks else None
        # No values: a class with a `__call__` of its own, which Keras does not scale either.
        one_number = values is None or values.shape.rank == 0
        if not one_number or sample_weight is not None or mask is not None:
            # Keras divides what it averages by the number of replicas, wherever a scope is
            # entered. One number, from a function that averages by itself, it leaves alone.
            value *= tf.cast(tf.distribute.get_strategy().num_replicas_in_sync, value.dtype)
        share = self._share(batch, mask, sample_weight)
        return batch.only_if_there(value * tf.cast(share, value.dtype))

    def _share(self, batch: Batch, mask: tf.Tensor | None, sample_weight: Any) -> tf.Tensor:
        """Part of what the mean is taken over that is on this replica."""
        by_weight = self.loss.reduction == "mean_with_sample_weight"
        if mask is None and not (by_weight and sample_weight is not None):
            return batch.share
        if by_weight:
            weights = apply_mask(sample_weight, mask, "float32", self.loss.reduction)
            here = tf.reduce_sum(tf.cast(weights, tf.float32))
        else:
            here = tf.reduce_sum(tf.cast(mask, tf.float32))
        here = batch.only_if_there(here)
        context = tf.distribute.get_replica_context()
        return tf.math.divide_no_nan(here, context.all_reduce(tf.distribute.ReduceOp.SUM, here))


class _Noted:
    """A loss's `call`, which keeps in mind what it returned: the losses before they are reduced."""

    def __init__(self, call: Any) -> None:
        self.call = getattr(call, "call", call)  # a loss may be in several models

    def __call__(self, y_true: Any, y_pred: Any) -> tf.Tensor:
        _NOW.values = values = self.call(y_true, y_pred)
        return values


class _Recorded:
    """A metric's `update_state` that inside `part_of` keeps the value, and updates nothing."""

    def __init__(self, update_state: Any) -> None:
        # `prepare` may come to a metric again, after another `fit`.
        self.update_state = getattr(update_state, "update_state", update_state)

    def __call__(self, values: tf.Tensor, sample_weight: Any = None) -> None:
        outputs = getattr(_NOW, "outputs", None)
        if outputs is None:
            self.update_state(values, sample_weight=sample_weight)
            return
        # Keras multiplies by the number of replicas what it takes for a scaled loss.
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        outputs.append(values / tf.cast(replicas, values.dtype))
