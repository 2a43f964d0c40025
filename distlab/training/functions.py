"""The functions that Keras's own `fit` and `evaluate` call, one execution at a time.

A function takes an iterator over a distributed data set, runs `steps_per_execution` steps in
one `tf.function`, and returns the metrics. These are read where their state is summed over all
replicas, so they are exact for unequal shares too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from distlab.strategy.describing import describe
from distlab.training import keras_private, replica_step
from distlab.training.optimizers import check_optimizer


def make_train_function(model: keras.Model) -> Callable[[Any], dict[str, tf.Tensor]]:
    """Returns what `fit` calls to train.

    Args:
        model: A compiled model, built in its strategy's scope.

    Raises:
        ModelError: Its optimizer cannot train under its strategy.
    """
    check_optimizer(model)  # here too: a later compile may have brought another
    step = replica_step.train_step(model)

    def train_on(data: Any) -> None:
        # Around `run` and not inside it: replicas are traced in turns, in threads.
        with keras_private.gradients_already_reduced(model.optimizer):
            _run(model, step, data)

    return _execution(model, train_on)


def make_test_function(model: keras.Model) -> Callable[[Any], dict[str, tf.Tensor]]:
    """Returns what `evaluate`, and validation in `fit`, call.

    Args:
        model: A compiled model, built in its strategy's scope.
    """
    step = replica_step.test_step(model)
    return _execution(model, lambda data: _run(model, step, data))


def _run(model: keras.Model, step: Callable[[Any], replica_step.Seen], data: Any) -> None:
    """Runs a step on every replica, metrics included."""
    strategy = model.distribute_strategy

    def step_with_metrics(data: Any) -> None:
        replica_step.update_metrics(model, step(data))

    if describe(strategy).kind != "central_storage":
        strategy.run(step_with_metrics, args=(data,))
        return
    # There each metric has one variable for all replicas, and Keras's `assign(self + value)`
    # would add the old total once for every replica: update it once, with what all have seen.
    seen = strategy.run(step, args=(data,))
    parts = [strategy.experimental_local_results(part) for part in tf.nest.flatten(seen)]
    replicas = [tf.nest.pack_sequence_as(seen, list(part)) for part in zip(*parts, strict=True)]
    replica_step.update_metrics(model, replica_step.join(replicas))


def _execution(
    model: keras.Model, on_batch: Callable[[Any], None]
) -> Callable[[Any], dict[str, tf.Tensor]]:
    if not model.run_eagerly:
        # XLA cannot place variables of several logical devices; Keras leaves it off there too.
        alone = model.distribute_strategy.num_replicas_in_sync == 1
        jit = True if alone and model.jit_compile else None
        on_batch = tf.function(on_batch, autograph=False, reduce_retracing=True, jit_compile=jit)

    def one_step(iterator: Any) -> dict[str, tf.Tensor]:
        on_batch(iterator.get_next())
        return dict(model.get_metrics_result())

    def several_steps(iterator: Any) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        def train(batch: Any) -> tf.Tensor:
            on_batch(batch.get_value())
            return tf.constant(True)

        def body(done: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            batch = iterator.get_next_as_optional()
            more = tf.cond(batch.has_value(), lambda: train(batch), lambda: tf.constant(False))
            return done + tf.cast(more, tf.int32), more

        done, _ = tf.while_loop(
            lambda done, more: more & (done < model.steps_per_execution),
            body,
            (tf.constant(0), tf.constant(True)),
        )
        return done, dict(model.get_metrics_result())

    if not model.run_eagerly:
        one_step = tf.function(one_step, autograph=False)
        several_steps = tf.function(several_steps, autograph=False)

    def execute(iterator: Any) -> dict[str, tf.Tensor]:
        if not isinstance(iterator, tf.data.Iterator | tf.distribute.DistributedIterator):
            on_batch(next(iterator))  # train_on_batch and test_on_batch give a generator
            return dict(model.get_metrics_result())
        if model.steps_per_execution == 1:
            return dict(one_step(iterator))
        done, logs = several_steps(iterator)
        if not done:
            raise StopIteration
        return dict(logs)

    return execute
