"""Steps on all replicas, each of which runs them as they are written for one device.

    step = ReplicaSteps(model, "train_step", check_finite=True)
    logs = step(batch)                     # a global batch, whole or in parts
    step.results(logs)                     # what the step has logged, of the whole batch
    execute = make_execution(model, step, running=session.iterator)
    logs = execute(iterator)               # several of them; raises StopIteration if none is left

TensorFlow traces it, and may have to do so again: what was promised and then looked at is put
together in the next trace, and a layer that turned out to look at other rows gets the whole batch.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from distlab.errors import ModelError
from distlab.strategy.description import describe
from distlab.training.copies import came_apart, check_copies, first_apart
from distlab.training.keras_private import models, strategies
from distlab.training.keras_private.models import Writes, global_seed, metrics_of, use_seed
from distlab.training.keras_private.runs import end_data
from distlab.training.rule import doors, gradients
from distlab.training.rule.current import in_step
from distlab.training.rule.losses import adds_up, set_counting
from distlab.training.rule.operations import Shared
from distlab.training.rule.step import RetraceNeeded, Step
from distlab.training.rule.tensors import made_of
from distlab.training.step_errors import (
    assert_finite,
    check_batch,
    check_logged_loss,
    explained,
    is_compiled_by_xla,
)
from distlab.training.workers.workers import workers_of

# More traces of one step than any model needs.
_MOST_TRACES = 50

# Among a step's logs: which of them differs from replica to replica.
_APART = "_distlab_apart"

_KERAS_STEPS = ("train_step", "test_step", "compute_loss", "compute_metrics")


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
        self._own_losses = not (own or self._one_copy or model.run_eagerly)
        self._logs_metrics = not own
        self._needed: set[int] = set()
        self._looked = False
        self._executions = 0
        self._compared: tuple[str, ...] = ()  # the logs of which replicas compare their values
        self._gathers: bool | None = None  # whether it was seen to gather rows
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
        """Returns the specs of the step's results."""
        self._look_ahead(element_spec)
        return self._function.get_concrete_function(element_spec).structured_outputs

    def gathers_rows(self, element_spec: Any) -> bool:
        """Whether the step gathers rows by a collective: slices of sparse gradients, or outputs.

        A collective has a number, which it gets when a `tf.function` is called, and TensorFlow
        wants one shape for each number. In a loop of several steps a smaller last batch is then an
        error.
        """
        if self._gathers is None and strategies.reduces_by_collectives(self.strategy):
            graph = self._function.get_concrete_function(element_spec).graph.as_graph_def()
            bodies = [graph.node, *(function.node_def for function in graph.library.function)]
            ops = {node.op for nodes in bodies for node in nodes}
            self._gathers = "CollectiveGatherV2" in ops
        return bool(self._gathers)

    def results(self, logs: Any) -> dict[str, Any]:
        """Returns the logs of a step as Keras gives them outside of the replicas."""
        result = self._model.get_metrics_result() if self._logs_metrics else logs
        return dict(tf.nest.map_structure(tf.convert_to_tensor, dict(result or {})))

    def _one_step(self, batch: Any) -> Any:
        batch = tf.nest.map_structure(as_tensor, batch)
        if self._several and self._model.run_eagerly:
            return self._eagerly(batch)
        result = self._on_replicas(batch) if self._several else self._on_one(batch)
        if self._method == "predict_step" and self._several:
            return self._put_together(result)
        local = self.strategy.experimental_local_results
        first = tf.nest.map_structure(lambda value: local(value)[0], result)
        if not self._several or self._logs_metrics:
            return first
        copies = {name: local(value) for name, value in result.items()}
        numbers = {name: values for name, values in copies.items() if _are_numbers(values)}
        if numbers:
            self._compared = tuple(numbers)
            first[_APART] = first_apart(list(numbers.values()))
        return first

    def check_apart(self, logs: dict[str, Any]) -> None:
        """Raises where replicas came apart: after executions 1, 2, 4, 8 ..."""
        number = logs.pop(_APART, None)
        self._executions += 1
        if self._method != "train_step" or self._executions.bit_count() != 1:
            return
        if number is not None and int(number) >= 0:
            what = f"{self._compared[int(number)]!r} of the step's logs"
            raise came_apart(self._model, "train", what)
        if self._several and not self._one_copy:
            check_copies(self._model, "train")

    def _look_ahead(self, element_spec: Any) -> None:
        """Traces the step on one replica, without gradients, to know what all must put together."""
        model, specs = self._model, tf.nest.flatten(element_spec)
        known = models.compiled_losses(model) + list(metrics_of(model))
        plain = self._own_losses and all(map(adds_up, known))
        in_parts = any(map(strategies.is_spread, specs))
        if self._looked or plain or in_parts or not self._several:
            return
        self._looked = True

        def look(batch: Any) -> None:
            batch, own = tf.nest.map_structure(as_tensor, batch), self._own_losses
            for _ in range(_MOST_TRACES):
                step = Step(model, batch, own_losses=own, needed=self._needed)
                with in_step(step), gradients.leaving_out():
                    step.look_at(getattr(model, self._method)(step.data))
                self._needed.update(step.looked_at())
                if not step.again:
                    return
                self._needed.clear()  # outputs are numbered otherwise now

        with contextlib.suppress(Exception):  # it comes again where all replicas trace the step
            tf.function(look, autograph=False).get_concrete_function(element_spec)

    def _on_one(self, batch: Any) -> Any:
        def step(batch: Any) -> Any:
            check = self._finite if self._checks else None
            with gradients.watched(check, alone=tf.distribute.has_strategy()):
                result = getattr(self._model, self._method)(batch)
                return result if self._method == "predict_step" else self._logs(result)

        return self.strategy.run(step, (batch,))

    def _eagerly(self, batch: Any) -> Any:
        """Takes an eager step once, on the first replica, and gives the others what it has written.

        Replicas would share the step's Python objects: its counters, its lists, its generators.
        """
        results: list[Any] = []
        written: dict[int, Any] = {}
        given = next(part for part in tf.nest.flatten(batch) if part is not None)
        in_parts = isinstance(given, tf.distribute.DistributedValues)
        check_batch(batch, self.strategy.num_replicas_in_sync)

        def on_replica(batch: Any) -> None:
            use_seed(self._seed)
            check = self._finite if self._checks else None
            step = Step(self._model, batch, in_parts=in_parts, finite=check)
            if results:  # the first one has taken the step
                return
            results.append(None)
            with in_step(step), gradients.writes() as own:
                result = getattr(self._model, self._method)(step.data)
                results[0] = result if self._method == "predict_step" else self._logs(result)
            written.update(own)

        if self._method != "predict_step":
            count_once(self._model, own_losses=False)
        self.strategy.run(on_replica, (batch,))
        for variable in written.values():
            if variable.synchronization != tf.VariableSynchronization.ON_READ:
                first, *others = self.strategy.experimental_local_results(variable)
                for other in others:
                    other.assign(first)
        return results[0]

    def _on_replicas(self, batch: Any) -> Any:
        steps: list[Step] = []
        several = workers_of(self.strategy).count > 1
        shared = Shared(one_copy=self._one_copy, several_processes=several)
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
                shared=shared,
            )
            steps.append(step)
            with in_step(step), self._written_once() as written:
                result = getattr(self._model, self._method)(step.data)
                result = tf.nest.map_structure(functools.partial(doors.with_all_rows, step), result)
                if self._method == "predict_step":
                    with step.on(step.batch):
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
        if shared.apart is not None:
            raise shared.apart
        for name, variable in self._variables().items():
            if name in written:
                variable.assign(self.strategy.experimental_local_results(written[name])[0])
        return result

    def _keep_promises(self, steps: list[Step]) -> None:
        """Raises `RetraceNeeded` if replicas have looked at promises, or layers at other rows."""
        used = {number for step in steps for number in step.looked_at()}
        if any(step.again for step in steps):  # outputs are numbered otherwise now
            self._needed.clear()
            raise RetraceNeeded
        if used:
            self._needed.update(used)
            raise RetraceNeeded

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
        return [
            each if rows is None else rows.without_padding_row(own) for each, (rows, own) in pairs
        ]

    def _logs(self, result: Any) -> Any:
        if self._logs_metrics:
            return {}
        return tf.nest.map_structure(tf.convert_to_tensor, dict(result or {}))

    def _finite(self, losses: tf.Tensor) -> list[Any]:
        """Fails where one of all replicas' losses, or that of the whole batch, is not finite."""
        worst = tf.argmin(tf.cast(tf.math.is_finite(losses), tf.int32))
        of_replicas = self._own_losses or not self._several
        replica = worst if of_replicas else tf.constant(-1, tf.int64)
        return [assert_finite(losses[worst], step=self._number(), replica=replica)]

    def _number(self) -> tf.Tensor:
        counts = [
            tf.convert_to_tensor(each.iterations) for each in models.optimizers_of(self._model)
        ]
        return tf.add_n(counts)

    def _put_together(self, outputs: list[Any]) -> Any:
        """Returns the outputs of all replicas: rows in their order, or what is alike on all."""
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
        except RetraceNeeded:
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
    summed = models.loss_trackers(model) if own_losses else []
    for metric in metrics_of(model):
        set_counting(metric, of_own_rows=any(metric is each for each in summed))


def _are_numbers(values: Any) -> bool:
    """Whether a log, as each of several replicas here has it, is one number, or may be."""
    return len(values) > 1 and all(
        tf.is_tensor(value)
        and not value.shape.rank
        and (value.dtype.is_floating or value.dtype.is_integer)
        for value in values
    )


def as_tensor(part: Any) -> Any:
    """A part of a batch as a tensor; what stands for no part is None."""
    if isinstance(part, tf.experimental.Optional | tf.OptionalSpec):
        return None
    ready = part is None or tf.is_tensor(part)
    ready = ready or isinstance(part, tf.distribute.DistributedValues)
    return part if ready else tf.convert_to_tensor(part)


def make_execution(
    model: keras.Model,
    step: ReplicaSteps,
    *,
    running: Callable[[], Any],
    see: Callable[..., None] | None = None,
) -> Callable[[Any], dict[str, tf.Tensor]]:
    """Returns what `fit` or `evaluate` calls with an iterator over batches.

    `running` gives Keras's iterator over epochs, which says how many batches an execution takes.
    """
    strategy = model.distribute_strategy
    several_workers = workers_of(strategy).count > 1

    def several_steps(iterator: Any, most: tf.Tensor, ask: bool) -> tuple[Any, ...]:
        # It asks whether there is one more batch, as Keras does not: without, what does not
        # depend on data (counting the step, weight decay) would be done again at the end. It
        # asks for the loop's own condition: TensorFlow's usual all-reduce cannot be in another.
        def is_there(batch: Any) -> tf.Tensor:
            is_there = batch.has_value()
            if not ask:
                return is_there
            missing = strategy.reduce("SUM", tf.cast(~is_there, tf.int32), axis=None)
            return tf.equal(missing, 0)

        def more(done: tf.Tensor, existing: tf.Tensor, *_: Any) -> tf.Tensor:
            return (done < most) & existing

        def take(done: tf.Tensor, existing: tf.Tensor, batch: Any, _: Any) -> tuple[Any, ...]:
            logs = step(batch.get_value())
            if model.run_eagerly:  # then the loop is Python's, and its first round knows no names
                eager_logs.update(logs)
                logs = {}
            done += 1
            batch = tf.cond(done < most, iterator.get_next_as_optional, lambda: batch)
            return done, is_there(batch), batch, logs

        first, checksum = iterator.get_next_as_optional(), _no_checksum()
        specs = {} if model.run_eagerly else step.shapes(first.element_spec)
        if see is not None and _is_whole(iterator):
            checksum = tf.cond(
                first.has_value(), lambda: _checksum(first.get_value()), _no_checksum
            )
        eager_logs: dict[str, tf.Tensor] = {}
        begin = (tf.constant(0), is_there(first), first, tf.nest.map_structure(_zeros, specs))
        shapes = tf.nest.map_structure(lambda spec: spec.shape, specs)
        number, kind = tf.TensorShape([]), tf.type_spec_from_value(first)
        done, existing, last, logs = tf.while_loop(
            more, take, begin, shape_invariants=(number, number, kind, shapes)
        )
        logs = logs | eager_logs
        apart = {name: logs.pop(name) for name in (_APART,) if name in logs}
        return done, step.results(logs) | apart, checksum, last.has_value() & ~existing

    if not model.run_eagerly:
        several_steps = tf.function(several_steps, autograph=False)

    @explained(model)
    def execute(iterator: Any) -> dict[str, tf.Tensor]:
        if not isinstance(iterator, tf.data.Iterator | tf.distribute.DistributedIterator):
            # train_on_batch and test_on_batch give a generator
            batch = tf.nest.map_structure(as_tensor, next(iterator))
            result = traced(lambda: step(batch))
            step.check_apart(result)
            result = step.results(result)
            if step.checks_logs:
                check_logged_loss(model, result)
            return result
        epochs = running()
        asked = int((model if epochs is None else epochs).steps_per_execution)
        taken, is_over, result = 0, False, {}
        ask = several_workers and _is_whole(iterator) and _may_end_anywhere(iterator)
        at_once = asked
        if asked > 1 and not model.run_eagerly:
            gathers = traced(lambda: step.gathers_rows(iterator.element_spec))
            # All rounds of a loop must gather as many rows, and batches have different numbers.
            at_once = 1 if gathers else asked
        while taken < asked and not is_over:
            most = min(at_once, asked - taken)
            # The number is an argument, so that another one needs no second trace.
            call = functools.partial(several_steps, iterator, tf.constant(most), ask)
            done, logs, checksum, left = traced(call)
            if int(done):
                result = logs
            taken, is_over = taken + int(done), int(done) < most
            if see is not None and _is_whole(iterator):
                see(checksum.numpy().tobytes(), more=bool(left), is_over=is_over)
        if not taken:
            raise StopIteration
        step.check_apart(result)
        if step.checks_logs:
            check_logged_loss(model, result)
        # Keras knows of one step only.
        if taken < asked and model.steps_per_execution == 1 and epochs is not None:
            end_data(epochs, taken=taken)
        return dict(result)

    return execute


def _zeros(spec: tf.TensorSpec) -> tf.Tensor:
    """The value of a log before the first round of the loop; sizes may not be known."""
    sizes = [] if spec.shape.rank is None else [size or 0 for size in spec.shape]
    return tf.zeros(sizes, spec.dtype)


def _is_whole(iterator: Any) -> bool:
    """Whether it gives whole batches, of which each worker takes its part."""
    return not isinstance(iterator, tf.distribute.DistributedIterator)


def _may_end_anywhere(iterator: Any) -> bool:
    """Whether the data do not know their length, so that one worker's may be another's or not."""
    return strategies.has_unknown_length(iterator)


def parts_to_compare(batch: Any) -> list[Any]:
    """A batch's targets; where there are none, its inputs."""
    x, y, _ = keras.utils.unpack_x_y_sample_weight(batch)
    parts = tf.nest.flatten(x if y is None else y, expand_composites=True)
    return [part for part in parts if part is not None]


def _checksum(batch: Any) -> tf.Tensor:
    """A batch's checksum: 8 bytes that follow from its targets, or its inputs if it has none.

    Inputs may differ in a harmless way: augmentation that each worker draws for itself.
    """
    parts = [_fingerprint(part) for part in parts_to_compare(batch)]
    return tf.reshape(_fingerprint(tf.concat(parts, 0)), [8])


def _no_checksum() -> tf.Tensor:
    """The checksum of no batch."""
    return tf.zeros([8], tf.uint8)


def _fingerprint(part: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.Fingerprint(data=tf.reshape(part, [1, -1]), method=tf.constant("farmhash64"))


def make_predict_function(
    model: keras.Model,
    *,
    see: Callable[[Any], None] | None = None,
    scope: tf.distribute.Strategy | None = None,
) -> Callable[[list[Any]], Any]:
    """Returns what `predict` calls, with the batches of one execution; builds in the scope."""
    strategy = scope or model.distribute_strategy
    steps: list[ReplicaSteps] = []

    def predict(batches: list[Any]) -> Any:
        if see is not None:
            see(batches[0])
        with gradients.leaving_out():
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
