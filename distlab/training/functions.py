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
from distlab.training import replica_step
from distlab.training.executions import make_execution
from distlab.training.finite_losses import NotedLoss, is_compiled_by_xla
from distlab.training.keras_private import (
    chosen_metrics,
    held,
    losses,
    moments,
    optimizers,
    own_metrics,
    results,
    states,
    step_methods,
    tf_variables,
)
from distlab.training.keras_private.hooks import installed
from distlab.training.model_requirements import check_optimizer, check_scope
from distlab.training.own_step import OwnStep
from distlab.training.splitting import split
from distlab.training.trial.look import Trial
from distlab.training.workers.consistency import Read

# A replica's step: takes its part of a batch, and how many examples all parts have (or None).
Step = Callable[[Any, tf.Tensor | None], replica_step.Seen]


def make_train_function(
    model: keras.Model,
    *,
    steps: Callable[[], int],
    check_finite: bool = True,
    see: Callable[[Read], None] | None = None,
) -> Callable[[Any], dict[str, tf.Tensor]]:
    """Returns what `fit` calls to train.

    Args:
        model: A compiled model, built in its strategy's scope.
        steps: Returns how many steps the next execution is to take.
        check_finite: Whether to stop where the loss is not a number. Under a
            `LossScaleOptimizer`, which skips such steps, it never does.
        see: Takes what each execution has read.

    Raises:
        ModelError: Its optimizer cannot train under its strategy.
    """
    check_optimizer(model)  # here too: a later compile may have brought another
    check_scope(model, model.distribute_strategy)
    prepare(model)
    strategy, optimizer = model.distribute_strategy, model.optimizer
    every = held.optimizers_of(model)
    scales = any(isinstance(one, keras.optimizers.LossScaleOptimizer) for one in every)
    check_finite = check_finite and not scales
    noted = NotedLoss(strategy) if check_finite and is_compiled_by_xla(model) else None
    trial = Trial(model, "train_step")
    if step_methods.is_own(model, "train_step"):
        own = OwnStep(
            model,
            "train_step",
            found=trial.found,
            check_finite=check_finite,
            noted=noted,
            number=lambda: tf.add_n([optimizers.batches_seen(one) for one in every]),
        )
        return make_execution(
            model, own, steps=steps, noted=noted, see=see, logs=own.logs, trial=trial
        )
    step = replica_step.train_step(model, check_finite=check_finite, noted=noted, found=trial.found)

    def learn(data: Any, in_all: Any) -> replica_step.Seen:
        seen, gradients = step(data, in_all)
        replica_step.apply(model, gradients)
        return seen

    def accumulate(data: Any, in_all: Any, is_update: tf.Tensor) -> None:
        """As `learn`, in two halves: between them is a condition, which no replica may hold."""

        def gradients_of(data: Any, in_all: Any) -> replica_step.Gradients:
            seen, gradients = step(data, in_all)
            replica_step.update_metrics(model, seen, replicas=strategy.num_replicas_in_sync)
            return gradients

        gradients = strategy.run(gradients_of, args=(data, in_all))

        def apply(*, update: bool) -> None:
            with optimizers.accumulating(optimizer, update=update):
                strategy.run(lambda part: replica_step.apply(model, part), args=(gradients,))

        tf.cond(is_update, lambda: apply(update=True), lambda: apply(update=False))

    def train_on(batch: Any) -> dict[str, tf.Tensor]:
        data, in_all = split(strategy, batch, pad=replica_step.pads(model))
        is_update = optimizers.is_update_step(optimizer)
        # Around `run` and not inside it: replicas are traced in turns, in threads.
        with (
            installed(),
            optimizers.overwriting_after(optimizer),
        ):
            if is_update is None:
                _run(model, learn, data, in_all)
            else:
                accumulate(data, in_all, is_update)
        return {}

    needed = trial if trial.is_needed() else None
    return make_execution(model, train_on, steps=steps, noted=noted, see=see, trial=needed)


def make_test_function(
    model: keras.Model,
    *,
    steps: Callable[[], int],
    see: Callable[[Read], None] | None = None,
) -> Callable[[Any], dict[str, tf.Tensor]]:
    """Returns what `evaluate`, and validation in `fit`, call.

    Args:
        model: A compiled model, built in its strategy's scope.
        steps: Returns how many steps the next execution is to take.
        see: Takes what each execution has read.
    """
    prepare(model)
    trial = Trial(model, "test_step")
    step = replica_step.test_step(model, found=trial.found)
    strategy = model.distribute_strategy
    if step_methods.is_own(model, "test_step"):
        with strategy.scope():
            steps_taken = tf.Variable(0, dtype=tf.int64, trainable=False)

        def number() -> tf.Tensor:
            steps_taken.assign_add(1)
            return tf.convert_to_tensor(steps_taken)

        own = OwnStep(model, "test_step", found=trial.found, check_finite=False, number=number)
        return make_execution(model, own, steps=steps, see=see, logs=own.logs, trial=trial)

    def evaluate_on(batch: Any) -> dict[str, tf.Tensor]:
        with installed():
            _run(model, step, *split(strategy, batch, pad=replica_step.pads(model)))
        return {}

    needed = trial if trial.is_needed() else None
    return make_execution(model, evaluate_on, steps=steps, see=see, trial=needed)


def prepare(model: keras.Model) -> None:
    """Lets the model's losses and layers know of replicas; any number of times.

    Args:
        model: A built model.
    """
    losses.prepare(model)
    states.prepare(model)
    results.wrap(model)
    tf_variables.check(model)
    own_metrics.wrap(model)
    chosen_metrics.check(model)
    moments.prepare(model)


def _run(model: keras.Model, step: Step, data: Any, in_all: tf.Tensor | None) -> None:
    """Runs a step on every replica, metrics included."""
    strategy = model.distribute_strategy
    replicas = strategy.num_replicas_in_sync

    def step_with_metrics(data: Any, in_all: Any) -> None:
        replica_step.update_metrics(model, step(data, in_all), replicas=replicas)

    if describe(strategy).kind != "central_storage":
        strategy.run(step_with_metrics, args=(data, in_all))
        return
    # There each variable has one copy for all replicas: Keras's `assign(self + value)` in a
    # metric would add the old total once for every replica. Write once, with what all have seen.
    seen = strategy.run(step, args=(data, in_all))
    parts = [
        (None,) * replicas if part is None else strategy.experimental_local_results(part)
        for part in tf.nest.flatten(seen)
    ]
    each = [tf.nest.pack_sequence_as(seen, list(part)) for part in zip(*parts, strict=True)]
    joined = replica_step.join(each)
    states.assign(joined["written"])
    replica_step.update_metrics(model, joined, replicas=1)
