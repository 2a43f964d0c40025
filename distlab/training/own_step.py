"""A model's own `train_step` or `test_step`, run on every replica as if it were one device's.

The method runs unchanged, on the replica's share of the batch. What it takes for the numbers of
the batch is made so: a gradient with respect to variables is that of the global batch, added up
over the replicas where the method asks the tape for it. Whatever it does with a gradient then
(clipping, norms, adding up by hand) it does as on one device. Gradients with respect to inputs
stay the replica's own.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from distlab.strategy.describing import describe
from distlab.training import replica_step
from distlab.training.finite_losses import NotedLoss
from distlab.training.keras_private import held, optimizers, results, states
from distlab.training.keras_private.batch import Batch, Way, working_on
from distlab.training.keras_private.hooks import installed, using
from distlab.training.keras_private.share_hooks import CountingByShare
from distlab.training.splitting import at_least_one, split
from distlab.training.trial.draws import same_draws_on
from distlab.training.trial.findings import Findings

# The numbers that a step returned, of the whole batch.
Numbers = dict[str, tf.Tensor]


class OwnStep:
    """One of a model's own steps, on all replicas.

    Args:
        model: A prepared model.
        method: "train_step" or "test_step".
        found: What a trial of the step has found; filled before the first call.
        check_finite: Whether to stop before an update where a loss is not a number.
        noted: See `replica_step.train_step`.
        number: Returns the number of the step, for random layers.
    """

    def __init__(
        self,
        model: keras.Model,
        method: str,
        *,
        found: Findings,
        check_finite: bool,
        number: Callable[[], tf.Tensor],
        noted: NotedLoss | None = None,
    ) -> None:
        self.model = model
        self.method = method
        self.found = found
        self.number = number
        self.metrics: dict[str, Callable[[], Any]] = {}
        self.optimizers = held.optimizers_of(model) if method == "train_step" else []
        self._reduce = replica_step.reducer(model, check_finite=check_finite, noted=noted)

    def __call__(self, batch: Any) -> Numbers:
        """Takes the step, and returns the numbers that it returned for the whole batch.

        Args:
            batch: A global batch, whole or distributed.
        """
        model, strategy = self.model, self.model.distribute_strategy
        pads = replica_step.pads(model)
        data, in_all = split(strategy, batch, pad=pads)
        number = self.number()
        with contextlib.ExitStack() as around:
            around.enter_context(installed())
            for optimizer in self.optimizers:
                around.enter_context(optimizers.overwriting_after(optimizer))
            numbers, written = strategy.run(self._on_replica, args=(data, in_all, number))
        if describe(strategy).kind == "central_storage" and written:
            local = strategy.experimental_local_results
            states.assign({name: local(value)[0] for name, value in written.items()})
        return {name: strategy.reduce("SUM", value, axis=None) for name, value in numbers.items()}

    def logs(self, numbers: Numbers) -> dict[str, Any]:
        """Returns what the step returned, for all replicas: call it outside of a replica.

        Args:
            numbers: Of the last step.
        """
        found = {name: result() for name, result in self.metrics.items()} | numbers
        return {name: found[name] for name in self._order if name in found}

    def _on_replica(
        self, data: Any, in_all: tf.Tensor | None, number: tf.Tensor
    ) -> tuple[Numbers, states.Written]:
        model = self.model
        x = keras.utils.unpack_x_y_sample_weight(data)[0]
        batch = replica_step.count(x, in_all, as_mean=True)
        batch = dataclasses.replace(batch, of_sum=self.found.of_sum)
        if in_all is None and replica_step.pads(model):
            data = at_least_one(data)
        one_copy = describe(model.distribute_strategy).kind == "central_storage"
        change = results.of_all_replicas if self.found.reads_results else None
        hooks = _InStep(self, batch, number, one_copy=one_copy)
        with (
            states.step_of(model, step=number) as written,
            working_on(batch),
            using(hooks),
            results.noted_results(change) as noted,
            same_draws_on(batch),
        ):
            logs = getattr(model, self.method)(data)
        self._order = list(results.flat(logs))
        self.metrics, numbers = results.split_logs(logs, noted)
        parts = {}
        for name, value in numbers.items():
            counts = batch.share if self.found.logs.get(name) is not Way.SUM else 1.0
            parts[name] = batch.only_if_there(value * counts)
        return parts, states.agree(model, written, batch.share)

    def reduce(self, call: int, target: tf.Tensor, there: Any, batch: Batch, number: Any) -> Any:
        """Returns the gradients of the global batch.

        Args:
            call: Which call of `GradientTape.gradient` this is in the step.
            target: This replica's part of the loss.
            there: Its gradients, by position.
            batch: What it has.
            number: Of the step.
        """
        alike = self.found.alike[call] if call < len(self.found.alike) else ()
        there = replica_step.without_examples_none(there, batch)
        return self._reduce(target, there, step=number, alike=alike)

    def way(self, call: int, target: Any) -> Way:
        """Returns how the gradients of replicas make that of the batch.

        Args:
            call: Which call of `GradientTape.gradient` this is in the step.
            target: What is differentiated. A vector is added up by the tape.
        """
        if call < len(self.found.gradients):
            return self.found.gradients[call]
        parts = [part for part in tf.nest.flatten(target) if part is not None]
        return Way.MEAN if all(part.shape.rank == 0 for part in parts) else Way.SUM


class _InStep(CountingByShare):
    """In one replica's call of the step."""

    def __init__(self, step: OwnStep, batch: Batch, number: tf.Tensor, *, one_copy: bool) -> None:
        super().__init__(
            batch,
            means=step.found.means,
            same_weights=step.found.same_weights,
            one_copy=one_copy,
        )
        self.step = step
        self.number = number
        self.calls = 0

    def gradient(
        self, compute: Callable[..., Any], target: Any, sources: Any, output_gradients: Any
    ) -> Any:
        flat = tf.nest.flatten(sources)
        if not any(held.is_variable(source) for source in flat):
            return compute(target, sources, output_gradients)
        call, self.calls = self.calls, self.calls + 1
        counts = 1.0 if self.step.way(call, target) is Way.SUM else self.batch.share
        # The loss is weighed before it is differentiated: layers that look at all replicas
        # (synchronised statistics, gathered rows) then add up gradients that count alike.
        weights = tf.nest.map_structure(
            lambda part, given=None: None if part is None else _weight(part, given, counts),
            *([target] if output_gradients is None else [target, output_gradients]),
        )
        found = tf.nest.flatten(compute(target, sources, weights))
        there = {
            str(index): one
            for index, (one, source) in enumerate(zip(found, flat, strict=True))
            if one is not None and held.is_variable(source)
        }
        loss = tf.add_n(
            [
                tf.cast(tf.reduce_sum(part * tf.cast(weight, part.dtype)), tf.float32)
                for part, weight in zip(
                    tf.nest.flatten(target), tf.nest.flatten(weights), strict=True
                )
                if part is not None
            ]
        )
        there = self.step.reduce(
            call, self.batch.only_if_there(loss), there, self.batch, self.number
        )
        found = [there.get(str(index), one) for index, one in enumerate(found)]
        return tf.nest.pack_sequence_as(sources, found)


def _weight(part: tf.Tensor, given: Any, counts: Any) -> tf.Tensor:
    given = tf.ones_like(part) if given is None else tf.convert_to_tensor(given)
    return given * tf.cast(counts, given.dtype)
