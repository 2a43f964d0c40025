"""`predict` on several replicas: each predicts its part of a batch, and they come in order.

Of several workers all get all predictions. Keras alone gives every worker its own part of them
where data are read from files, and orders those of several devices by device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from distlab.errors import DatasetError
from distlab.training.keras_private import models, runs
from distlab.training.sharding import check_order, order_seeds
from distlab.training.splitting import can_be_split
from distlab.training.step_errors import explained
from distlab.training.stepping import ReplicaSteps, traced
from distlab.training.workers.agreement import (
    check_lengths,
    check_weights,
    first_difference,
    other_batch,
)
from distlab.training.workers.workers import Workers


def make_predict_function(
    model: keras.Model, *, see: Callable[[Any], None] | None = None
) -> Callable[[list[Any]], Any]:
    """Returns what `predict` calls, with the batches of one execution."""
    strategy = model.distribute_strategy
    steps: list[ReplicaSteps] = []

    def predict(batches: list[Any]) -> Any:
        if see is not None:
            see(batches[0])
        models.build_for(model, batches[0], strategy)
        if not steps:
            steps.append(ReplicaSteps(model, "predict_step"))
        with explained(model, doing="predict with"):
            parts = [traced(functools.partial(steps[0], batch)) for batch in batches]
        return keras.tree.map_structure(_concatenated, *parts) if len(parts) > 1 else parts[0]

    return predict


def _concatenated(*parts: Any) -> Any:
    if isinstance(parts[0], tf.SparseTensor):
        return tf.sparse.concat(0, list(parts))
    return tf.stack(parts) if parts[0].shape.rank == 0 else tf.concat(parts, 0)


class WholeBatches(keras.callbacks.Callback):  # type: ignore[misc]
    """Lets `predict` read whole batches on every worker."""

    def __init__(self, workers: Workers) -> None:
        super().__init__()
        self._workers = workers
        self._seen = 0

    def on_predict_begin(self, logs: Any = None) -> None:
        """Takes the place of TensorFlow's distribution, which gives each worker its part only."""
        run = runs.current_run(self.model, "predict")
        assert run is not None
        iterator = run.iterator
        data = runs.undistributed(iterator)
        if data is None or not can_be_split(data.element_spec):
            raise DatasetError(
                asked=f"predict on {self._workers.count} workers",
                found="a data set that is distributed already"
                if data is None
                else "batches with sparse tensors or single numbers, which cannot be cut",
                do="give predict arrays, or a tf.data.Dataset of dense batches of the global size",
            )
        check_order(data, self._workers)
        check_weights(self._workers, self.model, method="predict", optimizers=False)
        batches, seeds = runs.batches_in(iterator), order_seeds(data)
        check_lengths(self._workers, batches, steps=iterator.steps_per_epoch, seeds=seeds)
        runs.iterate(iterator, data)

    def see(self, batch: Any) -> None:
        """Compares the batches 1, 2, 4, 8 and so on with what the others have read."""
        self._seen += 1
        if self._seen & (self._seen - 1):
            return
        x, y, _ = keras.utils.unpack_x_y_sample_weight(batch)
        parts = tf.nest.flatten(x if y is None else y, expand_composites=True)
        arrays = [("", tf.convert_to_tensor(part).numpy()) for part in parts if part is not None]
        found = first_difference(self._workers, arrays)
        if found is not None:
            raise other_batch(self._workers, found[1], method="predict", what="rows")
