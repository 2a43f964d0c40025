"""What a replica's share of the batch changes in a step: how much its numbers count.

with installed(), using(CountingByShare(batch)):      # the first around `strategy.run`
    model(x)                                             # its layers may keep metrics
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from distlab.training.keras_private import results, states
from distlab.training.keras_private.batch import Batch, Way
from distlab.training.keras_private.hooks import Hooks


class ReadingWrites(Hooks):
    """A replica reads what it wrote in the step, also where that is kept for the step's end."""

    def read(self, read: Callable[[], Any], variable: Any) -> Any:
        """What this replica wrote, or the variable's value."""
        written = states.written_here(variable)
        return read() if written is None else written


class CountingByShare(ReadingWrites):
    """Losses are not scaled by Keras, and metrics count this replica by its examples.

    Args:
        batch: What this replica has.
        means: How what each call gives to a `keras.metrics.Mean` or `Sum` makes that of the global
            batch; None for a value for each example. A number in a later call is a mean.
        same_weights: Whether the weight of each call is one number for any examples.
        one_copy: Whether all replicas share one copy of each variable (CentralStorageStrategy).
    """

    keras_scales_losses = False

    def __init__(
        self,
        batch: Batch,
        *,
        means: Sequence[Way | None] = (),
        same_weights: Sequence[bool] = (),
        one_copy: bool = False,
    ) -> None:
        self.batch = batch
        self._means = iter(means)
        self._same_weights = iter(same_weights)
        self._one_copy = one_copy

    def update_mean(
        self, update: Callable[[Any, Any], None], values: Any, sample_weight: Any
    ) -> None:
        """A number of all examples of this replica; one device counts it once."""
        values = tf.convert_to_tensor(values)
        way, same_weight = self._way_of(values)
        if way is None:
            update(values, sample_weight)
            return
        share = self.batch.share
        if way is Way.SUM:
            values = tf.math.divide_no_nan(values, tf.cast(share, values.dtype))
        if sample_weight is None or isinstance(sample_weight, int | float):
            sample_weight = share * (1 if sample_weight is None else sample_weight)
        elif same_weight:
            sample_weight = tf.cast(sample_weight, share.dtype) * share
        update(self.batch.only_if_there(values), sample_weight)

    def update_sum(
        self, update: Callable[[Any, Any], None], values: Any, sample_weight: Any
    ) -> None:
        """A number is added once for the batch, and not once for every replica."""
        values = tf.convert_to_tensor(values)
        way, _ = self._way_of(values)
        if way is not None:
            if way is not Way.SUM:
                values *= tf.cast(self.batch.share, values.dtype)
            values = self.batch.only_if_there(values)
        update(values, sample_weight)

    def _way_of(self, values: tf.Tensor) -> tuple[Way | None, bool]:
        unknown = Way.MEAN if values.shape.rank == 0 else None
        return next(self._means, unknown), next(self._same_weights, False)

    def assign(self, assign: Callable[[Any], None], variable: Any, value: Any) -> None:
        """A metric of a replica without an example stays as it is."""
        results.note_change(variable)
        if not _is_of_metric(variable):
            assign(value)
            return
        value = tf.cast(value, variable.dtype)
        context = tf.distribute.get_replica_context()
        if context is None or context.num_replicas_in_sync == 1:
            assign(value)
            return
        before = tf.convert_to_tensor(variable.value)
        after = tf.where(self.batch.examples > 0, value, before)
        if self._one_copy:
            # TensorFlow adds up what the replicas assign: the first has the old value in it,
            # the others what they add.
            first = tf.equal(context.replica_id_in_sync_group, 0)
            after = tf.where(first, after, after - before)
        assign(after)


class AddingUp(CountingByShare):
    """For a metric whose updates add up over examples, whatever it gives to other metrics."""

    update_mean = Hooks.update_mean
    update_sum = Hooks.update_sum


def _is_of_metric(variable: Any) -> bool:
    return bool(variable.synchronization == "on_read" and variable.aggregation == "sum")
