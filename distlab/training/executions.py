"""One execution: as many steps in one `tf.function` as are asked for, and as there are batches for.

execute = make_execution(model, on_batch, steps=lambda: 20)
logs = execute(iterator)               # raises StopIteration where there was no batch
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from distlab.training.fingerprints import mark_of, no_mark
from distlab.training.finite_losses import NotedLoss, is_compiled_by_xla
from distlab.training.gather_shapes import gathers
from distlab.training.keras_private.running_out import end_data
from distlab.training.splitting import as_tensor
from distlab.training.step_errors import explained
from distlab.training.trial.look import Looks, Trial
from distlab.training.workers.consistency import Read
from distlab.training.workers.exchanging import workers_of


def make_execution(
    model: keras.Model,
    on_batch: Callable[[Any], dict[str, tf.Tensor]],
    *,
    steps: Callable[[], int],
    noted: NotedLoss | None = None,
    see: Callable[[Read], None] | None = None,
    logs: Callable[[dict[str, tf.Tensor]], dict[str, Any]] | None = None,
    trial: Trial | None = None,
) -> Callable[[Any], dict[str, tf.Tensor]]:
    """Returns what `fit` or `evaluate` calls with an iterator over batches.

    Args:
        model: A compiled model, built in its strategy's scope.
        on_batch: Runs one step on all replicas, and returns the numbers that `logs` asks for.
        steps: Returns how many steps the next execution is to take.
        noted: Looked at after each step.
        see: Takes what each execution has read.
        logs: Makes the logs of an execution of the numbers that its last step returned; None
            takes the results of the model's metrics.
        trial: Run with the first batch, before a step is traced, and with later ones until all is
            known.
    """
    read_logs = logs or (lambda numbers: model.get_metrics_result())
    looks = Looks(trial)
    strategy = model.distribute_strategy
    several_workers = workers_of(strategy).count > 1

    def one_step(batch: Any, version: int) -> dict[str, tf.Tensor]:
        return on_batch(batch)

    if not model.run_eagerly:  # a step is traced again after a look by which it may change
        jit = True if is_compiled_by_xla(model) else None
        one_step = tf.function(one_step, autograph=False, reduce_retracing=True, jit_compile=jit)

    def results(numbers: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        # A metric may return its variable: a tensor is what all replicas hold together.
        found = dict(read_logs(numbers))
        return {
            name: tf.nest.map_structure(tf.convert_to_tensor, one) for name, one in found.items()
        }

    def nothing_yet(first: Any, version: int) -> dict[str, tf.Tensor]:
        if logs is None or model.run_eagerly:
            return {}
        traced: Any = one_step
        numbers = traced.get_concrete_function(first.element_spec, version).structured_outputs
        return {name: tf.zeros(one.shape, one.dtype) for name, one in numbers.items()}

    def several_steps(
        iterator: Any, most: tf.Tensor, ask: bool, version: int, first: Any = None
    ) -> tuple[Any, ...]:
        # It asks whether there is one more batch, as Keras does not: without, what does not
        # depend on data (counting the step, weight decay) would be done once more at the end. It
        # asks for the loop's own condition: TensorFlow's usual all-reduce cannot be in another.
        def is_there(batch: Any) -> tf.Tensor:
            here = batch.has_value()
            if not ask:
                return here
            missing = strategy.reduce("SUM", tf.cast(~here, tf.int32), axis=None)
            return tf.equal(missing, 0)

        def more(done: tf.Tensor, there: tf.Tensor, *_: Any) -> tf.Tensor:
            return (done < most) & there

        def step(done: tf.Tensor, there: tf.Tensor, batch: Any, _: Any) -> tuple[Any, ...]:
            numbers = one_step(batch.get_value(), version)
            if noted is not None:
                noted.look()
            if model.run_eagerly:  # then the loop is Python's, and its first round knows no names
                eager_numbers.update(numbers)
                numbers = {}
            done += 1
            batch = tf.cond(done < most, iterator.get_next_as_optional, lambda: batch)
            return done, is_there(batch), batch, numbers

        first, mark = iterator.get_next_as_optional() if first is None else first, no_mark()
        if see is not None and _is_whole(iterator):
            mark = tf.cond(first.has_value(), lambda: mark_of(first.get_value()), no_mark)
        eager_numbers: dict[str, tf.Tensor] = {}
        begin = (tf.constant(0), is_there(first), first, nothing_yet(first, version))
        done, there, last, numbers = tf.while_loop(more, step, begin)
        return done, results(numbers | eager_numbers), mark, last.has_value() & ~there

    if not model.run_eagerly:
        several_steps = tf.function(several_steps, autograph=False)

    gathers_rows: dict[int, bool] = {}  # by version

    def most_in_one_call(iterator: Any, most: int) -> int:
        """All rounds of a loop must gather as many rows, and batches have different numbers."""
        if most == 1 or model.run_eagerly:
            return most
        if looks.version not in gathers_rows:
            args = one_step, iterator.element_spec, looks.version
            gathers_rows[looks.version] = gathers(strategy, *args)
        return 1 if gathers_rows[looks.version] else most

    @explained(model)
    def execute(iterator: Any) -> dict[str, tf.Tensor]:
        if not isinstance(iterator, tf.data.Iterator | tf.distribute.DistributedIterator):
            # train_on_batch and test_on_batch give a generator
            return on_one(next(iterator), look=looks.is_due())
        asked, taken, is_over = steps(), 0, False
        first, found = None, {}
        is_due = looks.is_due(iterator)
        if trial is not None and _is_whole(iterator):
            first = iterator.get_next_as_optional()
            if is_due and first.has_value():
                looks.look(first.get_value())
        elif is_due:
            found = on_one(next(iterator), look=True)
            taken = 1
        ask = several_workers and _is_whole(iterator) and _may_end_anywhere(iterator)
        while taken < asked and not is_over:
            most = most_in_one_call(iterator, asked - taken)
            # The number is an argument, so that another one needs no second trace.
            done, logs_of_call, mark, left = several_steps(
                iterator, tf.constant(most), ask, looks.version, first
            )
            if see is not None:
                see(Read(mark=mark.numpy().tobytes().hex(), more=bool(left)))
            looks.passed(int(done))
            if int(done):
                found = logs_of_call
            taken, is_over, first = taken + int(done), int(done) < most, None
        if not taken:
            raise StopIteration
        if taken < asked and model.steps_per_execution == 1:  # Keras knows of one step only
            end_data(model, taken=taken)
        return dict(found)

    def on_one(batch: Any, *, look: bool) -> dict[str, tf.Tensor]:
        if look:
            looks.look(_whole(strategy, batch))
        looks.passed(1)
        numbers = one_step(batch, looks.version)
        if noted is not None:
            noted.look()
        return results(numbers)

    return execute


def _whole(strategy: tf.distribute.Strategy, batch: Any) -> Any:
    """The global batch in one piece; None where it has parts that cannot be put together."""
    batch = tf.nest.map_structure(as_tensor, batch)
    parts = tf.nest.flatten(batch)
    local = [strategy.experimental_local_results(part)[0] for part in parts if part is not None]
    if not all(isinstance(part, tf.Tensor) and part.shape.rank for part in local):
        return None
    if not any(isinstance(part, tf.distribute.DistributedValues) for part in parts):
        return batch
    return tf.nest.map_structure(
        lambda part: None if part is None else strategy.gather(part, axis=0), batch
    )


def _is_whole(iterator: Any) -> bool:
    """Whether it gives whole batches, of which each worker takes its part."""
    return not isinstance(iterator, tf.distribute.DistributedIterator)


def _may_end_anywhere(iterator: Any) -> bool:
    """Whether the data do not know their length, so that one worker's may be another's or not."""
    return bool(iterator._dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY)
