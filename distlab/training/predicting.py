"""`predict` on several workers: each predicts its part of a batch, and all get all, in order.

Keras alone gives every worker its own part of the predictions where data are read from files, and
orders those of several devices by device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from distlab.errors import DatasetError
from distlab.training.keras_private import epochs, models
from distlab.training.sharding import check_order
from distlab.training.splitting import can_be_split, share_of, split
from distlab.training.workers.alike import check_lengths
from distlab.training.workers.exchanging import Workers


def make_predict_function(model: keras.Model) -> Callable[[list[Any]], Any]:
    """Returns what `predict` calls, with the batches of one execution.

    Args:
        model: A compiled model.
    """
    strategy = model.distribute_strategy
    replicas = strategy.num_replicas_in_sync

    def step(data: Any, in_all: tf.Tensor) -> Any:
        index = tf.distribute.get_replica_context().replica_id_in_sync_group
        first, end = share_of(index, replicas, in_all)
        # Without the example that fills the place of one that there is not.
        return keras.tree.map_structure(lambda part: part[: end - first], model.predict_step(data))

    def on_batch(batch: Any) -> Any:
        # Every layer is in its place for inference, so none waits for another replica's.
        data, in_all = split(strategy, batch, pad=True)
        outputs = strategy.run(step, args=(data, in_all))
        return keras.tree.map_structure(lambda part: strategy.gather(part, axis=0), outputs)

    if not model.run_eagerly:
        on_batch = tf.function(on_batch, autograph=False, reduce_retracing=True)

    def predict(batches: list[Any]) -> Any:
        models.build_for(model, batches[0], strategy)
        parts = [on_batch(batch) for batch in batches]
        return keras.tree.map_structure(lambda *each: tf.concat(each, 0), *parts)

    return predict


class WholeBatches(keras.callbacks.Callback):  # type: ignore[misc]
    """Lets `predict` read whole batches on every worker.

    Args:
        workers: Those that predict together.
    """

    def __init__(self, workers: Workers) -> None:
        super().__init__()
        self._workers = workers

    def on_predict_begin(self, logs: Any = None) -> None:
        """Takes the place of TensorFlow's distribution, which gives each worker its part only.

        Raises:
            DatasetError: The data have no one order, not the same length on all workers, or
                batches that cannot be cut.
        """
        iterator = epochs.running_predict(self.model)
        data = models.undistributed(iterator)
        if data is None or not can_be_split(data.element_spec):
            raise DatasetError(
                asked=f"predict on {self._workers.count} workers",
                found="a data set that is distributed already"
                if data is None
                else "batches with sparse tensors or single numbers, which cannot be cut",
                do="give predict arrays, or a tf.data.Dataset of dense batches of the global size",
            )
        check_order(data, self._workers)
        batches = models.batches_in(iterator)
        check_lengths(self._workers, batches, steps=iterator.steps_per_epoch)
        models.iterate(iterator, data)
