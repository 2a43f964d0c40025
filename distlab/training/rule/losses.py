"""Losses and metrics in a step: of own rows where they add up over examples, else of all.

What does not add up gets the whole batch, as on one device. What does add up takes own rows, so
that nothing as large as the outputs is put together; of a user's, it is seen in what TensorFlow
traces whether it gives a value for each row, or a mean over them. In Keras's own step
(`step.own_losses`) a replica's loss may be its part of the mean over replicas; elsewhere the step
is given the number that one device has.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from distlab.training.keras_private.losses import (
    apply_mask,
    arguments_of,
    function_of,
    values_of,
)
from distlab.training.keras_private.strategies import set_aggregation
from distlab.training.keras_private.tensors import mask_of
from distlab.training.rule.current import replaces
from distlab.training.rule.mixing import CallSite
from distlab.training.rule.rows import Rows
from distlab.training.rule.step import Step
from distlab.training.rule.tensors import let_out

# Of Keras's losses, those of the batch as a whole.
_OF_BATCH = [
    getattr(keras.losses, name)
    for name in ("Dice", "Tversky", "Circle", "dice", "tversky", "circle")
    if hasattr(keras.losses, name)
]


# The attribute of a loss or a metric that was seen to look at the batch as a whole.
_SEES_WHOLE = "_distlab_sees_whole"


def is_keras(thing: Any) -> bool:
    """Whether a class, an object of one or a function comes with Keras."""
    kind = thing if isinstance(thing, type | types.FunctionType) else type(thing)
    return (kind.__module__ or "").partition(".")[0] == "keras"


def adds_up(thing: Any) -> bool:
    """Whether a loss or a metric is one of Keras's that adds up over examples."""
    function, axis = function_of(thing), arguments_of(thing).get("axis", -1)
    of_batch = type(thing) in _OF_BATCH or function in _OF_BATCH or vars(thing).get(_SEES_WHOLE)
    is_builtin = is_keras(thing) and (function is None or is_keras(function))
    return is_builtin and not of_batch and axis == -1


def _may_add_up(thing: Any) -> bool:
    """Whether it may be seen in a graph that a loss or a metric adds up over examples."""
    if vars(thing).get(_SEES_WHOLE) or type(thing) in _OF_BATCH:
        return False
    kind = type(thing)
    is_mean = isinstance(thing, keras.metrics.MeanMetricWrapper) and is_keras(kind.update_state)
    return is_mean or isinstance(thing, keras.losses.Loss)


@contextlib.contextmanager
def _watched(step: Step, thing: Any, method: str, *, may_be_mean: bool = False) -> Iterator[None]:
    """Inside the block, what computes a loss's or a metric's values is watched: do they add up?"""
    if adds_up(thing):
        yield
        return
    own, compute = vars(thing).get(method), getattr(thing, method)

    def restore() -> None:
        vars(thing).pop(method, None)
        if own is not None:
            vars(thing)[method] = own

    def watched(*given: Any, **kwargs: Any) -> Any:
        restore()  # before any all-reduce, at which another replica goes on
        before, step.site = step.site, CallSite.now()
        site, adds = step.site, False
        try:
            values = tf.convert_to_tensor(compute(*given, **kwargs))
            dense = all(isinstance(part, tf.Tensor) for part in tf.nest.flatten(given))
            fits = bool(values.shape.rank) or may_be_mean
            adds = dense and fits and site.adds_up(given, values)
            if step.shared is not None:
                step.shared.compare_constants(step, site.constants)
            return values
        except KeyboardInterrupt:
            adds = True  # nothing is known of it
            raise
        finally:  # it may also have failed for want of a number of rows that is known
            step.site = before
            if not adds:
                vars(thing)[_SEES_WHOLE] = step.again = True

    vars(thing)[method] = watched
    try:
        yield
    finally:
        restore()


def set_counting(metric: keras.metrics.Metric, *, of_own_rows: bool) -> None:
    """Lets what replicas count be added up, or the first one's count, where all count the same."""
    aggregation = tf.VariableAggregation
    for variable in metric.variables:
        set_aggregation(
            variable.value, aggregation.SUM if of_own_rows else aggregation.ONLY_FIRST_REPLICA
        )


@replaces("keras.losses.Loss.__call__")
def sharded_loss(
    step: Step,
    original: Callable[..., Any],
    self: Any,
    y_true: Any,
    y_pred: Any,
    sample_weight: Any = None,
) -> Any:
    """Computes a loss of own rows where it adds up over examples, else of the whole batch."""
    rows = _rows_for(step, self, y_pred)
    if rows is None:
        with step.in_loss():
            return original(self, y_true, y_pred, sample_weight)
    y_true, sample_weight = rows.labels((y_true, sample_weight))
    y_pred, own_losses = rows.own(y_pred), step.own_losses
    is_plain = sample_weight is None and mask_of(y_pred) is None
    with step.on(rows, self), _watched(step, self, "call", may_be_mean=is_plain):
        result = original(self, y_true, y_pred, sample_weight)
        if result.shape.rank:
            return rows.whole(result)
        return let_out(result if own_losses else rows.mean(result))


@replaces("keras.src.losses.loss.reduce_weighted_values")
def reduce_own_rows(
    step: Step,
    original: Callable[..., tf.Tensor],
    values: Any,
    sample_weight: Any = None,
    mask: Any = None,
    reduction: str | None = "sum_over_batch_size",
    dtype: Any = None,
) -> tf.Tensor:
    """Reduces a loss of own rows to their part of the mean over replicas."""
    if step.rows is None or reduction in (None, "none"):
        return original(values, sample_weight, mask, reduction, dtype)
    dtype = dtype or values.dtype
    if values.shape.rank == 0:
        return step.rows.scaled_share(tf.cast(values, dtype))
    rows, size = step.rows, tf.cast(tf.size(values), dtype)
    total = original(values, sample_weight, mask, "sum", dtype)
    weighs = reduction == "mean_with_sample_weight" and (sample_weight, mask) != (None, None)
    if weighs:
        weights = apply_mask(sample_weight, mask, dtype, reduction)
        count = rows.total(tf.reduce_sum(tf.cast(weights, dtype)))
    elif reduction == "sum":
        count = tf.ones((), dtype)
    elif mask is not None:
        each = size / tf.cast(tf.size(mask), dtype)
        count = rows.total(tf.reduce_sum(tf.cast(mask, dtype))) * each
    else:
        count = size / tf.cast(rows.length, dtype) * tf.cast(rows.size, dtype)
    return rows.if_any(tf.math.divide_no_nan(total, count) * rows.replicas)


@replaces("keras.src.trainers.compile_utils.MetricsList.update_state")
def update_compiled_metrics(
    step: Step,
    original: Callable[..., None],
    self: Any,
    y_true: Any,
    y_pred: Any,
    sample_weight: Any = None,
) -> None:
    """Updates the compiled metrics; in Keras's own step each counts own rows, if it may."""
    for metric in self.metrics:
        rows = _rows_for(step, metric, y_pred)
        if rows is None or not step.own_losses:
            with step.in_loss():
                metric.update_state(y_true, y_pred, sample_weight=sample_weight)
            continue
        set_counting(metric, of_own_rows=True)
        own = *rows.labels((y_true, sample_weight)), rows.own(y_pred)
        with step.on(rows, metric):
            labels, weights, outputs = rows.without_padding_row(own)
            with _watched(step, metric, "_fn"):
                metric.update_state(labels, outputs, sample_weight=weights)


@replaces("keras.metrics.Mean.update_state")
def weigh_part_of_loss(
    step: Step, original: Callable[..., Any], self: Any, values: Any, sample_weight: Any = None
) -> Any:
    """Weighs a replica's part of the loss by 1 / replicas, so that all count as one batch."""
    if step.rows is None and any(self is each for each in step.of_parts):
        weight = 1.0 if sample_weight is None else tf.cast(sample_weight, self.dtype)
        sample_weight = weight / step.batch.replicas
    return original(self, values, sample_weight)


@replaces("keras.metrics.MeanMetricWrapper.update_state")
def gather_mean_metric(
    step: Step,
    original: Callable[..., Any],
    self: Any,
    y_true: Any,
    y_pred: Any,
    sample_weight: Any = None,
) -> Any:
    """Updates a metric that is a mean, in a step of one's own, by values gathered of own rows."""
    rows = _rows_for(step, self, y_pred)
    if rows is None:
        return original(self, y_true, y_pred, sample_weight)
    mask = mask_of(y_pred)
    y_true, y_pred = rows.labels(y_true), rows.own(y_pred)
    with step.on(rows, self):
        with _watched(step, self, "_fn"):
            values = values_of(self, y_true, y_pred)
        values = rows.whole(values)
    weights = apply_mask(sample_weight, mask, dtype=self.dtype, reduction="sum")
    return keras.metrics.Mean.update_state(self, values, sample_weight=weights)


@replaces(
    "tensorflow.nn.sparse_softmax_cross_entropy_with_logits",
    "tensorflow.nn.softmax_cross_entropy_with_logits",
)
def gather_cross_entropy(
    step: Step,
    original: Callable[..., tf.Tensor],
    labels: Any,
    logits: Any,
    *args: Any,
    **kwargs: Any,
) -> tf.Tensor:
    """Computes the cross-entropy of own rows, and gathers its values in place of the logits."""
    rows = step.made_of(logits) if step.rows is None else None
    if rows is None or args or kwargs.get("axis", -1) != -1:
        return original(labels, logits, *args, **kwargs)
    labels, logits = rows.labels(tf.convert_to_tensor(labels)), rows.own(logits)
    with step.on(rows):
        return rows.whole(original(labels, logits, *args, **kwargs))


@replaces(
    "keras.src.losses.loss.scale_loss_for_distribution",
    "keras.src.losses.loss.unscale_loss_for_distribution",
    "tensorflow.nn.scale_regularization_loss",
)
def unscaled(step: Step, original: Callable[..., Any], value: Any) -> Any:
    """Returns a loss as it is: it is the whole batch's, so no number of replicas divides it."""
    return value


@replaces("tensorflow.nn.compute_average_loss")
def average_loss(
    step: Step,
    original: Callable[..., Any],
    per_example_loss: Any,
    sample_weight: Any = None,
    global_batch_size: Any = None,
) -> Any:
    """Divides losses by their own number, which is the global batch size, if none is given."""
    if global_batch_size is None:
        global_batch_size = tf.size(per_example_loss, tf.int32)
    return original(per_example_loss, sample_weight, global_batch_size)


def _rows_for(step: Step, thing: Any, y_pred: Any) -> Rows | None:
    """The rows of which a loss or a metric takes own ones; None where it takes all."""
    if step.rows is not None or not (adds_up(thing) or _may_add_up(thing)):
        return None
    # The mean over the last axis of a vector is over the examples: it doesn't add up.
    vectors = any(part.shape.rank == 1 for part in tf.nest.flatten(y_pred) if tf.is_tensor(part))
    return None if vectors else step.made_of(y_pred)
