"""Where batches come from: workers read them, or the coordinator reads and sends them.

    feed = feed_of(dataset, coordinator, batches=100)
    reading = iter(feed)                             # one for each iterator that Keras opens
    works = reading.take(8, at_once=1)

Each batch has a number, and a step takes the batch of the number that it is sent. So an epoch
trains on each once, however many workers there are and however fast each is.
"""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf

from distlab.training import pipelines
from distlab.training.parameter_server.remote_batches import HandedOut, Reading
from distlab.training.parameter_server.worker_feeding import WorkerFeed


class ChiefFeed:
    """A data set that the coordinator reads."""

    def __init__(self, dataset: tf.data.Dataset, *, reasons: tuple[str, ...]) -> None:
        self.reasons = reasons
        self._original_dataset = dataset  # the name is that of TensorFlow's distributed data sets
        ready = pipelines.name_of(dataset) == "Prefetch"
        self._dataset = dataset if ready else dataset.prefetch(2)
        self.element_spec = dataset.element_spec

    def __iter__(self) -> Reading:
        """Opens another iterator."""
        return HandedOut(iter(self._dataset))


def feed_of(
    dataset: tf.data.Dataset, coordinator: tf.distribute.coordinator.ClusterCoordinator
) -> ChiefFeed | WorkerFeed:
    """Returns what feeds a data set to the workers.

    They read it themselves where each of them reads the same batches in the same order. Else the
    coordinator reads, and says why.
    """
    reasons = list(_reasons_to_hand_out(dataset))
    if not reasons:
        batches = int(dataset.cardinality())
        endless = batches == tf.data.INFINITE_CARDINALITY
        try:
            return WorkerFeed(dataset, coordinator, batches=None if endless else batches)
        except tf.errors.OpError as error:
            reasons = [f"it cannot be sent to another process ({error.message})"]
    return ChiefFeed(dataset, reasons=tuple(reasons))


def _reasons_to_hand_out(dataset: tf.data.Dataset) -> Iterator[str]:
    pipeline = pipelines.inspect(dataset)
    yield from pipeline.complaints
    batches = int(dataset.cardinality())
    if batches == tf.data.UNKNOWN_CARDINALITY:
        yield "it does not know its length (say it: tf.data.experimental.assert_cardinality)"
    elif batches != tf.data.INFINITE_CARDINALITY and pipeline.must_be_read:
        yield (
            "a shuffle below cache or repeat, whose order depends on how far each worker has read "
            "(shuffle after it, or with reshuffle_each_iteration=False)"
        )
