"""The functions that are scheduled: steps on a worker.

    steps = Steps(model, train_on)
    remote = steps.schedule(coordinator, work, number=240)
    done, part = ended(remote.get())      # batches taken, and what they add to the metrics

Where workers read the data, a step looks for the batch of its number. A worker that has passed it
already (the batch was another's, who was lost) takes none, and says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from distlab.training.finite_losses import assert_finite
from distlab.training.parameter_server.remote import Work
from distlab.training.parameter_server.tallying import noted_doubts, size_of_part
from distlab.training.rule import gradients
from distlab.training.rule.keras_private import Writes

# Takes a batch and the number of the step; returns what it adds to the metrics.
OnBatch = Callable[[Any, tf.Tensor], tf.Tensor]


def training(model: keras.Model, *, check_finite: bool) -> OnBatch:
    """Returns the step that learns."""
    scales = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    check = None
    if check_finite and not scales:

        def check(loss: tf.Tensor) -> list[Any]:
            number = tf.convert_to_tensor(model.optimizer.iterations)
            return [assert_finite(loss, step=number, replica=tf.constant(0))]

    def learn(batch: Any) -> None:
        with gradients.watched(check):
            model.train_step(batch)

    return _on_worker(model, learn)


def evaluating(model: keras.Model) -> OnBatch:
    """Returns the step that evaluates."""
    return _on_worker(model, lambda batch: model.test_step(batch))


def _on_worker(model: keras.Model, step: Callable[[Any], Any]) -> OnBatch:
    """The model's own step, as for one device.

    What it counts is returned or added, never read and written: two workers that do so at once
    would lose what one of them has counted.
    """
    strategy = model.distribute_strategy

    def on_worker(batch: Any) -> tf.Tensor:
        counted = {id(one) for one in model.metrics_variables}
        others = [*model.variables, *model.optimizer.variables]
        others = list({id(one): one for one in others if id(one) not in counted}.values())
        whole = [one for one in others if "int" in one.dtype]
        before = {id(one): tf.identity(one.value) for one in whole}
        start = [(one, tf.zeros(one.shape, one.dtype)) for one in model.metrics_variables]
        start += [(one, before[id(one)]) for one in whole]
        with Writes(state_mapping=start) as scope, noted_doubts(model) as doubts:
            step(batch)
        for variable in others:
            new = scope.written(variable)
            if id(variable) in before:
                added = tf.cast(new, variable.dtype) - before[id(variable)]
                variable.value.assign_add(added)
            elif new is not None:  # a moving average: who comes last
                variable.value.assign(tf.cast(new, variable.dtype))
        found = [scope.written(one) for one in model.metrics_variables]
        # One tensor, because each costs a message; float64 holds every float32 and every count.
        parts = [tf.cast(one, tf.float64) for one in [*found, *doubts]]
        return tf.concat([tf.reshape(part, [-1]) for part in parts], 0)

    return lambda batch, number: strategy.run(on_worker, args=(batch,))


class Steps:
    """A step as functions that can be scheduled."""

    def __init__(self, model: keras.Model, on_batch: OnBatch) -> None:
        nothing, none = tf.zeros([size_of_part(model)], tf.float64), tf.constant(0, tf.int64)

        def handed_out(batch: Any, number: tf.Tensor) -> tf.Tensor:
            return _result(none + 1, on_batch(batch, number))

        def read_one(iterator: Any, told: tf.Tensor) -> tf.Tensor:
            first, _, number = tf.unstack(told)
            found = _find(iterator, first)
            is_it = _there(found, lambda index: tf.equal(index, first))
            part = tf.cond(is_it, lambda: on_batch(_batch(found), number), lambda: nothing)
            return _result(tf.cast(is_it, tf.int64), part)

        def read_several(iterator: Any, told: tf.Tensor) -> tf.Tensor:
            first, count, number = tf.unstack(told)

            def more(done: tf.Tensor, found: Any, part: tf.Tensor) -> tf.Tensor:
                is_it = _there(found, lambda index: tf.equal(index, first + done))
                return (done < count) & is_it

            def step(done: tf.Tensor, found: Any, part: tf.Tensor) -> tuple[Any, ...]:
                part += on_batch(_batch(found), number + done)
                done += 1
                found = tf.cond(done < count, iterator.get_next_as_optional, lambda: found)
                return done, found, part

            start = (none, _find(iterator, first), nothing)
            done, _, part = tf.while_loop(more, step, start)
            return _result(done, part)

        # A loop over steps is one over several machines, and costs more than one step needs.
        read = read_one if model.steps_per_execution == 1 else read_several
        self._handed_out = tf.function(handed_out, autograph=False, reduce_retracing=True)
        self._read = tf.function(read, autograph=False)

    def schedule(
        self, coordinator: tf.distribute.coordinator.ClusterCoordinator, work: Work, *, number: int
    ) -> Any:
        """Sends work to whichever worker is free first, and returns what is to come back."""
        if work.batch is not None:
            step = tf.constant(number, tf.int64)
            return coordinator.schedule(self._handed_out, args=(work.batch, step))
        told = tf.constant([work.first, work.count, number], tf.int64)  # one message, not three
        return coordinator.schedule(self._read, args=(work.reading.iterators, told))


def ended(values: tf.Tensor) -> tuple[int, np.ndarray]:
    """Returns how many batches scheduled work took, and what they add to the metrics."""
    array = values.numpy()
    return int(array[0]), array[1:]


def _find(iterator: Any, number: tf.Tensor) -> Any:
    """Returns the batch of that number, or the next one where it was passed already."""
    (found,) = tf.while_loop(
        lambda found: _there(found, lambda index: index < number),
        lambda found: iterator.get_next_as_optional(),
        [iterator.get_next_as_optional()],
    )
    return found


def _there(found: Any, holds: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """Whether there is a batch, and something holds of its number."""
    return tf.cond(
        found.has_value(), lambda: holds(found.get_value()[0]), lambda: tf.constant(False)
    )


def _batch(found: Any) -> Any:
    return found.get_value()[1]


def _result(done: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
    return tf.concat([[tf.cast(done, tf.float64)], part], axis=0)
