"""One execution: as many steps in one `tf.function` as are asked for, and as there are batches for.

execute = make_execution(model, on_batch, steps=lambda: 20)
logs = execute(iterator)               # raises StopIteration where there was no batch
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from distlab.training.explaining import explained
from distlab.training.fingerprints import mark_of, no_mark
from distlab.training.workers.alike import Read
from distlab.training.workers.exchanging import workers_of


def make_execution(
    model: keras.Model,
    on_batch: Callable[[Any], None],
    *,
    steps: Callable[[], int],
    see: Callable[[Read], None] | None = None,
) -> Callable[[Any], dict[str, tf.Tensor]]:
    """Returns what `fit` or `evaluate` calls with an iterator over batches.

    Args:
        model: A compiled model, built in its strategy's scope.
        on_batch: Runs one step on all replicas.
        steps: Returns how many steps the next execution is to take.
        see: Takes what each execution has read.
    """
    strategy = model.distribute_strategy
    several_workers = workers_of(strategy).count > 1
    if not model.run_eagerly:
        # XLA cannot place variables of several logical devices; Keras leaves it off there too.
        jit = True if strategy.num_replicas_in_sync == 1 and model.jit_compile else None
        on_batch = tf.function(on_batch, autograph=False, reduce_retracing=True, jit_compile=jit)

    def several_steps(iterator: Any, most: tf.Tensor, ask: bool) -> tuple[Any, ...]:
        # It asks whether there is one more batch, as Keras does not: without, what does not
        # depend on data (counting the step, weight decay) would be done once more at the end. It
        # asks for the loop's own condition: TensorFlow's usual all-reduce cannot be in another.
        def is_there(batch: Any) -> tf.Tensor:
            here = batch.has_value()
            if not ask:
                return here
            missing = strategy.reduce("SUM", tf.cast(~here, tf.int32), axis=None)
            return tf.equal(missing, 0)

        def more(done: tf.Tensor, there: tf.Tensor, batch: Any) -> tf.Tensor:
            return (done < most) & there

        def step(done: tf.Tensor, there: tf.Tensor, batch: Any) -> tuple[Any, ...]:
            on_batch(batch.get_value())
            done += 1
            batch = tf.cond(done < most, iterator.get_next_as_optional, lambda: batch)
            return done, is_there(batch), batch

        first, mark = iterator.get_next_as_optional(), no_mark()
        if see is not None and _is_whole(iterator):
            mark = tf.cond(first.has_value(), lambda: mark_of(first.get_value()), no_mark)
        begin = (tf.constant(0), is_there(first), first)
        done, there, last = tf.while_loop(more, step, begin)
        return done, dict(model.get_metrics_result()), mark, last.has_value() & ~there

    if not model.run_eagerly:
        several_steps = tf.function(several_steps, autograph=False)

    @explained(model)
    def execute(iterator: Any) -> dict[str, tf.Tensor]:
        if not isinstance(iterator, tf.data.Iterator | tf.distribute.DistributedIterator):
            on_batch(next(iterator))  # train_on_batch and test_on_batch give a generator
            return dict(model.get_metrics_result())
        # The number is an argument, so that another one needs no second trace.
        ask = several_workers and _is_whole(iterator) and _may_end_anywhere(iterator)
        done, logs, mark, left = several_steps(iterator, tf.constant(steps()), ask)
        if see is not None:
            see(Read(mark=mark.numpy().tobytes().hex(), more=bool(left)))
        if not done:
            raise StopIteration
        return dict(logs)

    return execute


def _is_whole(iterator: Any) -> bool:
    """Whether it gives whole batches, of which each worker takes its part."""
    return not isinstance(iterator, tf.distribute.DistributedIterator)


def _may_end_anywhere(iterator: Any) -> bool:
    """Whether the data do not know their length, so that one worker's may be another's or not."""
    return bool(iterator._dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY)
