"""What a replica's share of the batch changes in a step: how much its numbers count.

with installed(), using(CountingByShare(batch)):      # the first around `strategy.run`
    model(x)                                             # its layers may keep metrics
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from distlab.training.keras_private import states
from distlab.training.keras_private.batch import Batch, Way
from distlab.training.keras_private.hooks import Hooks


class CountingByShare(Hooks):
    """Losses are not scaled by Keras, and metrics count this replica by its examples.

    Args:
        batch: What this replica has.
        means: How the single numbers that are given to a `keras.metrics.Mean` or `Sum` make that
            of the global batch, in the order of the calls; what is not listed is a mean.
        one_copy: Whether all replicas share one copy of each variable (CentralStorageStrategy).
    """

    keras_scales_losses = False

    def __init__(self, batch: Batch, *, means: Sequence[Way] = (), one_copy: bool = False) -> None:
        self.batch = batch
        self._means = iter(means)
        self._one_copy = one_copy

    def update_mean(
        self, update: Callable[[Any, Any], None], values: Any, sample_weight: Any
    ) -> None:
        """One number stands for all examples of this replica; one device counts it once."""
        values = tf.convert_to_tensor(values)
        if values.shape.rank != 0:
            update(values, sample_weight)
            return
        share = self.batch.share
        if next(self._means, Way.MEAN) is Way.SUM:
            values = tf.math.divide_no_nan(values, tf.cast(share, values.dtype))
        if sample_weight is None or isinstance(sample_weight, int | float):
            sample_weight = share * (1 if sample_weight is None else sample_weight)
        update(self.batch.only_if_there(values), sample_weight)

    def update_sum(
        self, update: Callable[[Any, Any], None], values: Any, sample_weight: Any
    ) -> None:
        """One number is added once for the batch, and not once for every replica."""
        values = tf.convert_to_tensor(values)
        if values.shape.rank == 0:
            if next(self._means, Way.MEAN) is not Way.SUM:
                values *= tf.cast(self.batch.share, values.dtype)
            values = self.batch.only_if_there(values)
        update(values, sample_weight)

    def read(self, read: Callable[[], Any], variable: Any) -> Any:
        """What this replica wrote in the step, also where it is kept for the step's end."""
        written = states.written_here(variable)
        return read() if written is None else written

    def assign(self, assign: Callable[[Any], None], variable: Any, value: Any) -> None:
        """A metric of a replica without an example stays as it is."""
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
