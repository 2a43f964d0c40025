"""Metrics that Keras does not bring, counted as on one device.

A replica counts its own examples, and the replicas' counts are added up. That suits a metric which
adds up over examples. The mean of a batch, its Dice coefficient or its largest error does not:
such a metric gets the examples of all replicas.

    wrap(model)                                # once
    metric.update_state(y, y_pred)             # in a replica's function
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from distlab.strategy.describing import describe
from distlab.training.gathering import gathered
from distlab.training.keras_private import hooks, losses, models, results, tf_variables
from distlab.training.keras_private.batch import current
from distlab.training.keras_private.share_hooks import AddingUp
from distlab.training.reducing import sum_over_replicas

# What counts as the same state: rounding in float32 leaves less than a thousandth of it.
RELATIVE_TOLERANCE = 1e-3

# From this far below zero a largest value shows that stays at zero, even if it is negative.
_FAR = 10**6

_NOW = threading.local()  # a replica is traced in a thread of its own


def wrap(model: keras.Model) -> None:
    """Lets the model's own metrics look at the whole batch where they must; any number of times.

    Args:
        model: A compiled model.
    """
    for metric in of_own_making(model):
        if not isinstance(vars(metric).get("update_state"), Update):
            metric.__dict__["update_state"] = Update(metric, model.distribute_strategy)


def has_any(model: keras.Model) -> bool:
    """Whether the model has a metric that Keras does not bring.

    Args:
        model: A compiled model.
    """
    return bool(of_own_making(model))


def of_own_making(model: keras.Model) -> list[keras.metrics.Metric]:
    """Returns the model's metrics that Keras does not bring.

    Args:
        model: A compiled model.
    """

    def is_kerass(thing: Any) -> bool:
        return (getattr(thing, "__module__", None) or "").partition(".")[0] == "keras"

    return [
        metric
        for metric in results.metrics_of(model)
        if not tf_variables.are_combined(metric)
        if not is_kerass(type(metric))
        or not is_kerass(getattr(metric, "_fn", type(metric)))
        or losses.goes_over_examples(metric)
    ]


class Update:
    """A metric's `update_state`.

    Args:
        metric: The metric.
        strategy: Its model's.

    Attributes:
        of_batch: Whether the metric gets the examples of all replicas. It does until a trial has
            shown that it adds up over examples.
        of_numbers: Whether it was given nothing with a row for each example, so that what it gives
            to Keras's metrics counts as what a step gives to them.
    """

    def __init__(self, metric: keras.metrics.Metric, strategy: tf.distribute.Strategy) -> None:
        self.metric = metric
        self.of_batch = True
        self.of_numbers = False
        self._one_copy = describe(strategy).kind == "central_storage"

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Counts what this replica has, or what all have.

        Args:
            *args: What the metric is given.
            **kwargs: The same, by name.
        """
        batch, context = current(), tf.distribute.get_replica_context()
        alone = getattr(_NOW, "alone", False)
        if not alone and batch is not None and batch.tries_update(self, args, kwargs):
            return
        alone = alone or context is None or context.num_replicas_in_sync == 1
        if alone or not self.of_batch:
            with contextlib.ExitStack() as counting:
                if batch is not None and not alone and not self.of_numbers:
                    adding = AddingUp(batch, one_copy=self._one_copy)
                    counting.enter_context(hooks.using(adding))
                type(self.metric).update_state(self.metric, *args, **kwargs)
            return
        variables = self.metric.variables
        # And only then do replicas meet. An argument of a function has no device; workers need one.
        before = [tf.identity(tf.convert_to_tensor(one)) for one in variables]
        args, kwargs = _map(gathered, (args, kwargs))
        # Each replica has a copy of its own, unless the metric was made outside of the scope.
        copied = any(isinstance(one.value, tf.distribute.DistributedValues) for one in variables)
        after = self._updated(sum_over_replicas(before) if copied else before, args, kwargs)
        # Every replica has computed the same. Where copies are added up, the first has it all.
        is_first = tf.equal(context.replica_id_in_sync_group, 0)
        with hooks.using(_Unscaled()):
            for variable, value in zip(variables, after, strict=True):
                results.note_change(variable)
                added = tf.where(is_first, value, tf.zeros_like(value))
                variable.assign(added if copied or self._one_copy else value)

    def try_out(self, args: Any, kwargs: Any, *, examples: int) -> None:
        """Finds out, without effect, whether the metric adds up over examples.

        Args:
            args: What it is given for a whole batch.
            kwargs: The same, by name.
            examples: How many examples the batch has.
        """
        counted = [_rows(part) == examples for part in tf.nest.flatten((args, kwargs))]
        self.of_numbers = not any(counted)
        if examples < 2 or self.of_numbers:
            self.of_batch = not self.of_numbers
            return
        if tf_variables.of(self.metric):  # no update of these is without effect
            return

        start = [np.asarray(one) for one in self.metric.stateless_reset_state()]

        def after(before: list[Any], rows: slice = slice(None)) -> list[Any]:
            part = _map(lambda one: one[rows] if _rows(one) == examples else one, (args, kwargs))
            return [np.asarray(one) for one in self._updated(before, *part)]

        third = -(-examples // 3)  # parts of two sizes, so that a mean of means shows
        try:
            with np.errstate(all="ignore"):  # a state may be infinite
                parts = after(start, slice(third)), after(start, slice(third, None))
                self.of_batch = not _adds_up(after, start, parts)
        except Exception:  # the user's code may take whole batches only, or states may not add up
            return

    def _updated(self, before: list[Any], args: Any, kwargs: Any) -> list[Any]:
        """The metric's state after an update of another; its own stays."""
        mapping = list(zip(self.metric.variables, before, strict=True))
        _NOW.alone = True  # a metric may be made of others
        try:
            with hooks.using(_Unscaled()), keras.StatelessScope(mapping) as scope:
                type(self.metric).update_state(self.metric, *args, **kwargs)
        finally:
            _NOW.alone = False
        return [scope.get_current_value(one) for one in self.metric.variables]


class _Unscaled(hooks.Hooks):
    """Each number counts as it is given, and so does a loss that a metric computes."""

    keras_scales_losses = False


def _adds_up(after: Callable[[list[Any]], list[Any]], start: list[Any], parts: Any) -> bool:
    """Whether a batch adds to a metric's state what its parts add, whatever the state is.

    Args:
        after: Returns the state after an update of another with the whole batch.
        start: The state of a metric that has seen nothing.
        parts: The state after each of two parts of the batch.
    """
    whole = after(start)
    twice = after(whole)  # a largest value stays, even if one of the parts has nothing of it
    # Not the results: the mean of batches is 0 for the whole and for the parts where a batch
    # has nothing to count, and only the number of batches tells.
    return any((one != s).any() for one, s in zip(whole, start, strict=True)) and all(
        _close(a + b - s, one)
        and _close(2 * one - s, two)
        and ((one != s).all() or _adds_to_any(after, start, index, one - s))
        for index, (a, b, s, one, two) in enumerate(zip(*parts, start, whole, twice, strict=True))
    )


def _adds_to_any(after: Any, start: list[Any], index: int, added: np.ndarray) -> bool:
    """Whether a batch adds the same to one variable if it is far smaller or larger at the start.

    A largest value of 0 shows from below 0 only, and the last value from anywhere else.
    """
    far = _FAR * (1 + np.abs(start[index]))
    for moved in (start[index] - far, start[index] + far):
        found = after([*start[:index], moved, *start[index + 1 :]])[index]
        if not _close(moved + added, found):
            return False
    return True


def _close(one: np.ndarray, other: np.ndarray) -> bool:
    return bool(np.allclose(one, other, rtol=RELATIVE_TOLERANCE, equal_nan=True))


def _rows(part: Any) -> int | None:
    return part.shape[0] if _has_rows(part) else None


def _has_rows(part: Any) -> bool:
    shape = tf.TensorShape(getattr(part, "shape", ()))
    return bool(shape.rank)  # the shape itself is true for a number, too


def _map(change: Callable[[tf.Tensor], tf.Tensor], parts: Any) -> Any:
    """Changes all that has rows, with its mask."""

    def changed(part: Any) -> Any:
        if not _has_rows(part):
            return part
        mask = models.mask_of(part)
        new = change(tf.convert_to_tensor(part))
        return new if mask is None else models.with_mask(new, change(mask))

    return tf.nest.map_structure(changed, parts)
