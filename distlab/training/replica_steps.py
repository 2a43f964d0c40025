"""One step on all replicas, each of which runs it as it is written for one device.

    step = ReplicaSteps(model, "train_step", check_finite=True)
    logs = step(batch)                     # a global batch, whole or in parts
    step.results(logs)                     # what the step has logged, of the whole batch

TensorFlow traces it, and may have to once more: what was promised and then looked at is put
together in the next trace, and a layer that turned out to look at other rows gets the whole batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from distlab.errors import ModelError
from distlab.strategy.description import describe
from distlab.training.keras_private import models
from distlab.training.keras_private.models import Writes, global_seed, metrics_of, use_seed
from distlab.training.rule import gradients
from distlab.training.rule.losses import adds_up, set_counting
from distlab.training.rule.rows import SUM, Step, in_step, made_of, replicas_of
from distlab.training.step_errors import assert_finite, check_batch, is_compiled_by_xla
from distlab.training.workers.workers import workers_of

# More traces of one step than any model needs.
_MOST_TRACES = 50

_KERAS_STEPS = ("train_step", "test_step", "compute_loss", "compute_metrics")


class _Again(Exception):
    """What was promised was looked at, or a layer looked at other rows."""


class ReplicaSteps:
    """A model's `train_step`, `test_step` or `predict_step` on all replicas."""

    def __init__(self, model: keras.Model, method: str, *, check_finite: bool = False) -> None:
        self.strategy = model.distribute_strategy
        self._model, self._method = model, method
        # XLA drops assertions: what it compiles is checked by its logs, after the step.
        self.checks_logs = check_finite and is_compiled_by_xla(model)
        self._checks = check_finite and not self.checks_logs
        # Keras's own step only adds and scales losses, so each replica may have its part.
        self._one_copy = describe(self.strategy).kind == "central_storage"
        own = models.has_own(model, *_KERAS_STEPS)
        self._own_losses = not own and not self._one_copy
        self._logs_metrics = not own
        self._needed: set[int] = set()
        self._looked = False
        self._several = self.strategy.num_replicas_in_sync > 1
        if self._several:
            self._seed = global_seed(self.strategy)
        self._function: Any = self._one_step
        if not model.run_eagerly:
            jit = True if is_compiled_by_xla(model) else None
            self._function = tf.function(
                self._one_step, autograph=False, reduce_retracing=True, jit_compile=jit
            )

    def __call__(self, batch: Any) -> Any:
        """Takes the step; inside of `traced`."""
        return self._function(batch)

    def shapes(self, element_spec: Any) -> Any:
        """What the step returns, as specs."""
        self._look_ahead(element_spec)
        return self._function.get_concrete_function(element_spec).structured_outputs

    @property
    def function(self) -> Any:
        """What is traced."""
        return self._function

    def results(self, logs: Any) -> dict[str, Any]:
        """What Keras logs of a step, outside of the replicas."""
        result = self._model.get_metrics_result() if self._logs_metrics else logs
        return dict(tf.nest.map_structure(tf.convert_to_tensor, dict(result or {})))

    def _one_step(self, batch: Any) -> Any:
        batch = tf.nest.map_structure(as_tensor, batch)
        result = self._on_replicas(batch) if self._several else self._on_one(batch)
        if self._method == "predict_step" and self._several:
            return self._put_together(result)
        local = self.strategy.experimental_local_results
        return tf.nest.map_structure(lambda value: local(value)[0], result)

    def _look_ahead(self, element_spec: Any) -> None:
        """Traces the step on one replica, without gradients, to know what all must put together."""
        model, specs = self._model, tf.nest.flatten(element_spec)
        losses = [] if model._compile_loss is None else model._compile_loss._flat_losses or []
        known = [each.loss for each in losses] + list(metrics_of(model))
        plain = self._own_losses and all(map(adds_up, known))
        in_parts = any(hasattr(spec, "_value_specs") for spec in specs)
        if self._looked or plain or in_parts or not self._several:
            return
        self._looked = True

        def look(batch: Any) -> None:
            batch, own = tf.nest.map_structure(as_tensor, batch), self._own_losses
            for _ in range(_MOST_TRACES):
                step = Step(model, batch, own_losses=own, needed=self._needed)
                with in_step(step), gradients.left_out():
                    step.look_at(getattr(model, self._method)(step.data))
                self._needed.update(step.looked_at())
                if not step.again:
                    return
                self._needed.clear()  # outputs are numbered otherwise now

        with contextlib.suppress(Exception):  # it comes again where all replicas trace the step
            tf.function(look, autograph=False).get_concrete_function(element_spec)

    def _on_one(self, batch: Any) -> Any:
        def step(batch: Any) -> Any:
            check = self._finite_alone if self._checks else None
            with gradients.watched(check, alone=tf.distribute.has_strategy()):
                result = getattr(self._model, self._method)(batch)
                return result if self._method == "predict_step" else self._logs(result)

        return self.strategy.run(step, (batch,))

    def _on_replicas(self, batch: Any) -> Any:
        steps: list[Step] = []
        given = [part for part in tf.nest.flatten(batch) if part is not None]
        in_parts = isinstance(given[0], tf.distribute.DistributedValues)
        check_batch(batch, self.strategy.num_replicas_in_sync)

        def on_replica(batch: Any) -> Any:
            use_seed(self._seed)
            step = Step(
                self._model,
                batch,
                in_parts=in_parts,
                own_losses=self._own_losses,
                needed=self._needed,
                finite=self._finite if self._checks else None,
            )
            steps.append(step)
            with in_step(step), self._written_once() as written:
                result = getattr(self._model, self._method)(step.data)
                if self._method == "predict_step":
                    return self._own_outputs(result), written
                step.look_at(result)
                return self._logs(result), written

        if self._method != "predict_step":
            count_once(self._model, self._own_losses)
        try:
            result, written = self.strategy.run(on_replica, (batch,))
        except Exception:  # perhaps of a promise, which no operation is fed by; not an interrupt
            self._keep_promises(steps)
            raise
        self._keep_promises(steps)
        for name, variable in self._variables().items():
            if name in written:
                variable.assign(self.strategy.experimental_local_results(written[name])[0])
        return result

    def _keep_promises(self, steps: list[Step]) -> None:
        """Raises `_Again` where replicas have looked at promises, or layers at other rows."""
        used = {number for step in steps for number in step.looked_at()}
        if any(step.again for step in steps):  # outputs are numbered otherwise now
            self._needed.clear()
            raise _Again
        if used:
            self._needed.update(used)
            raise _Again

    @contextlib.contextmanager
    def _written_once(self) -> Iterator[dict[str, tf.Tensor]]:
        """Inside the block, what replicas write to the copy that they share is kept for later."""
        written: dict[str, tf.Tensor] = {}
        if not self._one_copy:
            yield written
            return
        with Writes() as scope:
            yield written
        for name, variable in self._variables().items():
            value = scope.written(variable)
            if value is not None:
                written[name] = tf.cast(value, variable.dtype)

    def _variables(self) -> dict[str, Any]:
        if not self._one_copy:
            return {}
        model = self._model
        every = [*model.variables, self._seed.state]
        every += [v for each in models.optimizers_of(model) for v in each.variables]
        every += [v for metric in metrics_of(model) for v in metric.variables]
        return {str(i): v for i, v in enumerate({id(v): v for v in every}.values())}

    def _own_outputs(self, result: Any) -> list[Any]:
        outputs, self._structure = tf.nest.flatten(result), result
        made = [made_of(output) for output in outputs]
        self._of_own_rows = [rows is not None for rows, _ in made]
        pairs = zip(outputs, made, strict=True)
        return [each if rows is None else rows.real(own) for each, (rows, own) in pairs]

    def _logs(self, result: Any) -> Any:
        if self._logs_metrics:
            return {}
        return tf.nest.map_structure(tf.convert_to_tensor, dict(result or {}))

    def _finite(self, loss: tf.Tensor) -> list[Any]:
        """Fails on all replicas where one has a loss that is not finite."""
        context = tf.distribute.get_replica_context()
        places = tf.range(replicas_of(context))
        is_own = places == context.replica_id_in_sync_group
        sent = tf.where(is_own, tf.cast(loss, tf.float32), tf.zeros([]))  # 0 times NaN would be NaN
        each = context.all_reduce(SUM, sent)
        worst = tf.argmin(tf.cast(tf.math.is_finite(each), tf.int32))
        # In a step of the model's own, losses are those of the whole batch.
        replica = worst if self._own_losses else tf.constant(-1, tf.int64)
        return [assert_finite(each[worst], step=self._number(), replica=replica)]

    def _finite_alone(self, loss: tf.Tensor) -> list[Any]:
        return [assert_finite(loss, step=self._number(), replica=tf.constant(0))]

    def _number(self) -> tf.Tensor:
        counts = [
            tf.convert_to_tensor(each.iterations) for each in models.optimizers_of(self._model)
        ]
        return tf.add_n(counts)

    def _put_together(self, outputs: list[Any]) -> Any:
        """What `predict` gets of all replicas: rows in their order, or what is alike on all."""
        local = self.strategy.experimental_local_results
        several_workers = workers_of(self.strategy).count > 1
        result = []
        for output, of_own_rows in zip(outputs, self._of_own_rows, strict=True):
            if not of_own_rows:
                result.append(local(output)[0])
            elif several_workers:
                result.append(self.strategy.gather(output, axis=0))
            else:
                result.append(tf.concat(local(output), 0))
        return tf.nest.pack_sequence_as(self._structure, result)


def traced(call: Callable[[], Any]) -> Any:
    """Calls a function that takes steps, until all promises are kept that need to be."""
    for _ in range(_MOST_TRACES):
        try:
            return call()
        except _Again:
            pass
    raise ModelError(
        asked=f"trace a step {_MOST_TRACES} times",
        found="one that asks for other tensors each time it is traced",
        do="let the step do the same whenever TensorFlow traces it",
    )


def count_once(model: keras.Model, own_losses: bool) -> None:
    """Lets metrics that see the whole batch, alike on all replicas, count on the first alone.

    What a metric counts of own rows is added up over replicas.
    """
    summed = [model._loss_tracker] if own_losses else []
    if own_losses and model._compile_loss is not None:
        summed += model._compile_loss.metrics
    for metric in metrics_of(model):
        set_counting(metric, of_own_rows=any(metric is each for each in summed))


def as_tensor(part: Any) -> Any:
    """A part of a batch as a tensor; what stands for no part is None."""
    if isinstance(part, tf.experimental.Optional | tf.OptionalSpec):
        return None
    ready = part is None or tf.is_tensor(part)
    ready = ready or isinstance(part, tf.distribute.DistributedValues)
    return part if ready else tf.convert_to_tensor(part)
