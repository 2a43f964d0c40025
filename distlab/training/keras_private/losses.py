"""The losses of a compiled model, as one replica's part of the loss of the global batch.

A replica's part is what the sum over all replicas makes the loss that one device would have:

    prepare(model)                           # once, after Keras has resolved the losses
    with part_of(batch) as outputs:          # in the replica's function
        loss = compiled(model, y, y_pred, sample_weight)
    # loss: this replica's part; outputs: the same for each output that has a logged loss
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from distlab.errors import ModelError
from distlab.training.keras_private.batch import Way, current
from distlab.training.keras_private.loss_parts import PartOfLoss, Recorded, not_one_number

# Losses of Keras that look at the batch as a whole.
_OF_BATCH = (keras.losses.Dice, keras.losses.Tversky, keras.losses.Circle)
_FUNCTIONS_OF_BATCH = (keras.losses.dice, keras.losses.tversky, keras.losses.circle)

_GATHERS = "_distlab_gathers_batch_losses"


def of_own_making(model: keras.Model) -> bool:
    """Whether a compiled loss is not one of Keras's that are a mean over examples.

    Args:
        model: A compiled model.
    """
    return any(not _is_kerass(entry.loss) for entry in _prepared(model))


def goes_over_examples(thing: Any) -> bool:
    """Whether a loss or metric of Keras was given an axis that may be that of the examples.

    Args:
        thing: Such as `keras.losses.CosineSimilarity(axis=0)`.
    """
    axis = getattr(thing, "_fn_kwargs", {}).get("axis", -1)
    return not isinstance(axis, int) or axis == 0 or axis < -1


def take_ways(model: keras.Model, ways: list[Way]) -> None:
    """Sets which compiled losses are sums over examples.

    A later trial finds their parts as this has made them, so it never makes a mean of a sum.

    Args:
        model: A prepared model.
        ways: What a trial has found, one for each compiled loss.
    """
    for entry, way in zip(_prepared(model), ways, strict=False):
        if way is Way.SUM and not _is_kerass(entry.loss):
            entry.loss.way = way


def names_of_own_making(model: keras.Model) -> list[str]:
    """Returns the names of the compiled losses that `of_own_making` means.

    Args:
        model: A prepared model.
    """
    return [entry.loss.name for entry in _prepared(model) if not _is_kerass(entry.loss)]


def gather_batch_losses(model: keras.Model) -> None:
    """Lets every replica compute the losses that `of_own_making` means from the examples of all.

    Args:
        model: A compiled model.
    """
    model.__dict__[_GATHERS] = True


def batch_losses_gathered(model: keras.Model) -> bool:
    """Whether `gather_batch_losses` was called for this model.

    Args:
        model: A model.
    """
    return _GATHERS in vars(model)


def _prepared(model: keras.Model) -> list[Any]:
    compiled_loss = model._compile_loss
    if compiled_loss is None or not compiled_loss.built:
        return []
    return [entry for entry in compiled_loss._flat_losses if isinstance(entry.loss, PartOfLoss)]


def _is_kerass(part: PartOfLoss) -> bool:
    loss = part.loss
    function = getattr(loss, "fn", None)
    where = {type(loss).__module__, getattr(function, "__module__", "keras.")}
    of_keras = all(module.partition(".")[0] == "keras" for module in where)
    of_batch = isinstance(loss, _OF_BATCH) or function in _FUNCTIONS_OF_BATCH
    return of_keras and not of_batch and not goes_over_examples(loss)


def check(model: keras.Model) -> None:
    """Raises where a loss is not one number.

    Args:
        model: A compiled model.

    Raises:
        ModelError: A loss is not reduced.
    """
    for loss in keras.tree.flatten(model.loss):
        of_keras = type(loss).__module__.partition(".")[0] == "keras"
        if isinstance(loss, keras.losses.Loss) and of_keras and loss.reduction in (None, "none"):
            raise not_one_number(loss)


def prepare(model: keras.Model) -> None:
    """Lets the compiled losses know of `part_of`. Outside of it they are as they were.

    Args:
        model: A compiled model whose losses Keras has resolved.
    """
    compiled_loss = model._compile_loss
    if compiled_loss is None or not compiled_loss.built:
        return
    for index, entry in enumerate(compiled_loss._flat_losses):
        if not isinstance(entry.loss, PartOfLoss):
            part = PartOfLoss(entry.loss)
            if batch_losses_gathered(model) and not _is_kerass(part):
                part.way = Way.WHOLE
            compiled_loss._flat_losses[index] = entry._replace(loss=part)
    for metric in compiled_loss.metrics:
        metric.update_state = Recorded(metric.update_state)


def aggregating_by_share(own: Callable[[tf.Tensor], tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Returns an `_aggregate_additional_loss` that counts losses of layers as `compiled` does.

    Args:
        own: Keras's.
    """

    def aggregate(loss: tf.Tensor) -> tf.Tensor:
        batch = current()
        if batch is None:
            return own(loss)
        part = tf.reduce_sum(tf.cast(loss, keras.backend.floatx()))
        if loss.shape.rank != 0:
            part = batch.as_asked(part)
        batch.note_added_loss(part)
        return batch.only_if_there(part)

    return aggregate


def regularising_by_share(own: Callable[[], list[tf.Tensor]]) -> Callable[[], list[tf.Tensor]]:
    """Returns a `_get_regularization_losses` that counts them by share beside a sum over examples.

    Args:
        own: Keras's.
    """

    def regularisers() -> list[tf.Tensor]:
        batch = current()
        if batch is None or not batch.of_sum:
            return own()
        return [one * tf.cast(batch.share, one.dtype) for one in own()]

    return regularisers


def compiled(
    model: keras.Model, y: Any, y_pred: Any, sample_weight: Any, *, added: Sequence[Way] = ()
) -> tf.Tensor:
    """Returns this replica's part of the compiled losses and of the model's own.

    Call it inside `part_of`.

    Args:
        model: A prepared model.
        y: Targets of this replica.
        y_pred: Predictions of this replica.
        sample_weight: Weights of this replica's examples, or None.
        added: How the parts of each of `model.losses` make the global batch's, as far as known.

    Returns:
        A scalar.

    Raises:
        ModelError: The model has nothing to minimise.
    """
    batch = current()
    assert batch is not None
    parts = []
    if model._compile_loss is not None:
        parts.append(model._compile_loss(y, y_pred, sample_weight))
    for index, loss in enumerate(model.losses):
        # Regularisers of weights do not depend on the examples. Of what a layer gives to
        # `add_loss`, Keras adds up all numbers; a single one may be a mean or a sum over examples.
        part = tf.reduce_sum(tf.cast(loss, keras.backend.floatx()))
        if loss.shape.rank == 0 and Way.SUM not in added[index : index + 1]:
            part *= tf.cast(batch.share, part.dtype)
        parts.append(batch.only_if_there(part))
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
