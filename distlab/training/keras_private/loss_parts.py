"""One compiled loss of a model, as a replica's part of the loss of the global batch."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.losses.loss import apply_mask

from distlab.errors import ModelError
from distlab.training.gathering import gathered
from distlab.training.keras_private import models
from distlab.training.keras_private.batch import Batch, Way, current, working_on

# What a thread is at: replicas are traced in turns, each in a thread of its own.
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
    _NOW.outputs = outputs
    try:
        with working_on(batch):
            yield outputs
    finally:
        del _NOW.outputs


class PartOfLoss:
    """A Keras loss that gives a replica's part of the global batch's inside `part_of`."""

    def __init__(self, loss: keras.losses.Loss) -> None:
        self.loss = loss
        self.name = loss.name
        self.way = Way.MEAN
        loss.call = _Noted(loss.call)

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
        """Returns the loss as Keras does; inside a step, this replica's part."""
        batch = current()
        if batch is None:
            return self.loss(y_true, y_pred, sample_weight)
        part = self._part(batch, y_true, y_pred, sample_weight)
        batch.note_loss(part)
        return part

    def _part(self, batch: Batch, y_true: Any, y_pred: Any, sample_weight: Any) -> tf.Tensor:
        has_rows = all(one.shape.rank != 0 for one in tf.nest.flatten(y_pred))
        if self.way is Way.WHOLE and has_rows:  # a model may output its loss
            value = self._of_all_replicas(y_true, y_pred, sample_weight)
            return batch.as_asked(value * tf.cast(batch.share, value.dtype))
        _NOW.values = None
        value = self.loss(y_true, y_pred, sample_weight)
        values, _NOW.values = _NOW.values, None
        if value.shape.rank:
            raise not_one_number(self.loss)
        if self.loss.reduction == "sum" or self.way is Way.SUM:
            return batch.as_asked(batch.only_if_there(value))
        masks = [models.mask_of(y_pred), models.mask_of(values)]
        masks = [tf.cast(mask, tf.bool) for mask in masks if mask is not None]
        mask = functools.reduce(tf.logical_and, masks) if masks else None
        is_number = values is not None and values.shape.rank == 0
        if is_number and (mask is None or sample_weight is None):
            part = self._of_number(batch, tf.cast(values, value.dtype), sample_weight)
        else:
            part = value * tf.cast(self._share(batch, mask, sample_weight), value.dtype)
        return batch.as_asked(batch.only_if_there(part))

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
        return tf.math.divide_no_nan(here, batch.over_all(here))

    def _of_number(self, batch: Batch, value: tf.Tensor, sample_weight: Any) -> tf.Tensor:
        """The part of a function that returns one number for all examples.

        Keras multiplies that number by the mean of the weights; a mask changes nothing.
        """
        value *= tf.cast(batch.share, value.dtype)
        if sample_weight is None or self.loss.reduction == "mean_with_sample_weight":
            return value
        here = batch.share * tf.reduce_mean(tf.cast(sample_weight, tf.float32))
        return value * tf.cast(batch.over_all(batch.only_if_there(here)), value.dtype)

    def _of_all_replicas(self, y_true: Any, y_pred: Any, sample_weight: Any) -> tf.Tensor:
        """The loss of the global batch, on each replica."""
        y_true, of_all, sample_weight = tf.nest.map_structure(
            gathered, (y_true, y_pred, sample_weight)
        )
        mask = models.mask_of(y_pred)
        if mask is not None:
            models.with_mask(of_all, gathered(mask))
        return self.loss(y_true, of_all, sample_weight)


class _Noted:
    """A loss's `call`, which keeps in mind what it returned: the losses before they are reduced."""

    def __init__(self, call: Any) -> None:
        self.call = getattr(call, "call", call)  # a loss may be in several models

    def __call__(self, y_true: Any, y_pred: Any) -> tf.Tensor:
        _NOW.values = values = self.call(y_true, y_pred)
        return values


class Recorded:
    """A metric's `update_state` that inside `part_of` keeps the value, and updates nothing."""

    def __init__(self, update_state: Any) -> None:
        # `prepare` may come to a metric again, after another `fit`.
        self.update_state = getattr(update_state, "update_state", update_state)

    def __call__(self, values: tf.Tensor, sample_weight: Any = None) -> None:
        """Updates the metric, or keeps the value."""
        outputs = getattr(_NOW, "outputs", None)
        if outputs is None:
            self.update_state(values, sample_weight=sample_weight)
            return
        outputs.append(values)


def not_one_number(loss: keras.losses.Loss) -> ModelError:
    """Returns the error of a loss that is not reduced.

    Args:
        loss: It.
    """
    return ModelError(
        asked="train a distributed model",
        found=f"a loss {loss.name!r} with reduction={loss.reduction!r}, which leaves no single "
        "number to train on",
        do="give it reduction='sum_over_batch_size' (Keras's default) or 'sum'",
    )
