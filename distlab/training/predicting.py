"""`predict` on several replicas: each predicts its part of a batch, and they come in order.

Of several workers all get all predictions. Keras alone gives every worker its own part of them
where data are read from files, and orders those of several devices by device.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from distlab.errors import DatasetError
from distlab.strategy.describing import describe
from distlab.training.keras_private import epochs, models, states
from distlab.training.keras_private.hooks import installed, using
from distlab.training.keras_private.share_hooks import ReadingWrites
from distlab.training.sharding import check_order, order_seeds
from distlab.training.splitting import (
    at_least_one,
    can_be_split,
    share_of,
    split,
)
from distlab.training.step_errors import explained
from distlab.training.workers.consistency import check_lengths, other_batch
from distlab.training.workers.exchanging import Workers, workers_of
from distlab.training.workers.same_state import check_weights, first_difference


def make_predict_function(
    model: keras.Model, *, see: Callable[[Any], None] | None = None
) -> Callable[[list[Any]], Any]:
    """Returns what `predict` calls, with the batches of one execution.

    A replica without an example works on one that does not count: on CPUs a convolution cannot take
    none. A single number among the outputs counts as a mean over the examples, as in `fit`. Layers
    draw by the number of batches before, and what they write is averaged, as in `evaluate`.

    Args:
        model: A compiled model.
        see: Called with the first batch of each execution.
    """
    strategy = model.distribute_strategy
    if strategy.num_replicas_in_sync == 1:
        return models.make_predict_function(model, lambda batch: batch)
    batches_before, prepared = itertools.count(), False

    def step(data: Any, in_all: tf.Tensor | None, number: tf.Tensor) -> tuple[Any, states.Written]:
        examples = _examples(data, in_all)
        if in_all is None:
            data = at_least_one(data)
        with states.step_of(model, step=number) as written, using(ReadingWrites()):
            outputs = model.predict_step(data)
        outputs = keras.tree.map_structure(lambda part: _that_count(part, examples), outputs)
        if written:  # in inference few layers write, and only then is there anything to sum
            written = states.agree(model, written, _share(examples, in_all))
        return outputs, written

    def on_batch(batch: Any, number: tf.Tensor) -> Any:
        # Every layer is in its place for inference, so none waits for another replica's.
        with installed():
            args = (*split(strategy, batch, pad=True), number)
            outputs, written = strategy.run(step, args=args)
        if describe(strategy).kind == "central_storage":
            states.assign({name: _first(value, strategy) for name, value in written.items()})
        return keras.tree.map_structure(lambda part: _joined(part, strategy), outputs)

    if not model.run_eagerly:
        on_batch = tf.function(on_batch, autograph=False, reduce_retracing=True)

    def predict(batches: list[Any]) -> Any:
        if see is not None:
            see(batches[0])
        models.build_for(model, batches[0], strategy)
        nonlocal prepared
        if not prepared:
            states.prepare(model)
            prepared = True
        with explained(model, doing="predict with"):
            parts = [
                on_batch(batch, tf.constant(next(batches_before), tf.int64)) for batch in batches
            ]
        return keras.tree.map_structure(_concatenated, *parts) if len(parts) > 1 else parts[0]

    return predict


def _examples(data: Any, in_all: tf.Tensor | None) -> tf.Tensor:
    """How many examples this replica has."""
    if in_all is None:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        return tf.shape(next(part for part in tf.nest.flatten(x) if part is not None))[0]
    context = tf.distribute.get_replica_context()
    first, end = share_of(context.replica_id_in_sync_group, context.num_replicas_in_sync, in_all)
    return end - first


def _share(examples: tf.Tensor, in_all: tf.Tensor | None) -> tf.Tensor:
    """Part of the global batch that this replica has, from 0 to 1."""
    here = tf.cast(examples, tf.float32)
    if in_all is None:
        context = tf.distribute.get_replica_context()
        return here / context.all_reduce(tf.distribute.ReduceOp.SUM, here)
    return here / tf.cast(in_all, tf.float32)


def _that_count(part: Any, examples: tf.Tensor) -> Any:
    """An output of a replica, or nothing of it where the example only fills a place."""
    if part.shape.rank == 0:
        return _mean(part, examples)
    rows = tf.where(examples > 0, tf.int32.max, 0)
    if isinstance(part, tf.SparseTensor):
        size = tf.concat([[tf.cast(rows, tf.int64)], part.dense_shape[1:]], 0)
        return tf.sparse.slice(part, tf.zeros_like(size), size)
    return part[:rows]


def _mean(number: tf.Tensor, examples: tf.Tensor) -> tf.Tensor:
    """The mean over the examples of all replicas; of what is no floating number, the first's."""
    context = tf.distribute.get_replica_context()
    is_first = context.replica_id_in_sync_group == 0
    counts = examples if number.dtype.is_floating else tf.where(is_first, 1, 0)
    kind = number.dtype if number.dtype.is_floating else tf.int64
    weights = tf.cast(counts, kind)
    given = tf.where(counts > 0, tf.cast(number, kind) * weights, 0)
    total, weight = context.all_reduce(tf.distribute.ReduceOp.SUM, [given, weights])
    return tf.cast(total / weight, number.dtype)


def _first(part: Any, strategy: tf.distribute.Strategy) -> Any:
    return strategy.experimental_local_results(part)[0]


def _joined(part: Any, strategy: tf.distribute.Strategy) -> Any:
    """What all replicas give, in their order."""
    here = strategy.experimental_local_results(part)
    if here[0].shape.rank == 0:
        return here[0]
    if workers_of(strategy).count > 1:
        return strategy.gather(part, axis=0)
    return _concatenated(*here)


def _concatenated(*parts: Any) -> Any:
    if isinstance(parts[0], tf.SparseTensor):
        return tf.sparse.concat(0, list(parts))
    return tf.stack(parts) if parts[0].shape.rank == 0 else tf.concat(parts, 0)


class WholeBatches(keras.callbacks.Callback):  # type: ignore[misc]
    """Lets `predict` read whole batches on every worker.

    Args:
        workers: Those that predict together.
    """

    def __init__(self, workers: Workers) -> None:
        super().__init__()
        self._workers = workers
        self._seen = 0

    def on_predict_begin(self, logs: Any = None) -> None:
        """Takes the place of TensorFlow's distribution, which gives each worker its part only.

        Raises:
            DatasetError: The data have no one order, not the same length on all workers, or
                batches that cannot be cut.
            ModelError: Workers have different weights.
        """
        iterator = epochs.running_iterator(self.model, "predict")
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
        check_weights(self._workers, self.model, method="predict", optimizers=False)
        batches, seeds = models.batches_in(iterator), order_seeds(data)
        check_lengths(self._workers, batches, steps=iterator.steps_per_epoch, seeds=seeds)
        models.iterate(iterator, data)

    def see(self, batch: Any) -> None:
        """Compares the batches 1, 2, 4, 8 and so on with what the others have read.

        Args:
            batch: A global batch.

        Raises:
            DatasetError: They have read something else.
        """
        self._seen += 1
        if self._seen & (self._seen - 1):
            return
        x, y, _ = keras.utils.unpack_x_y_sample_weight(batch)
        parts = tf.nest.flatten(x if y is None else y, expand_composites=True)
        arrays = [("", tf.convert_to_tensor(part).numpy()) for part in parts if part is not None]
        found = first_difference(self._workers, arrays)
        if found is not None:
            raise other_batch(self._workers, found[1], method="predict", what="rows")
