"""What Keras's `fit`, `evaluate` and `predict` call for an execution: a number of batches.

execute = make_execution(model, step, steps=lambda: 20)
logs = execute(iterator)               # raises StopIteration where there was no batch
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.distribute.cross_device_ops import CollectiveAllReduce

from distlab.training.keras_private import models
from distlab.training.keras_private.runs import end_data
from distlab.training.replica_steps import ReplicaSteps, as_tensor, traced
from distlab.training.step_errors import check_logged_loss, explained
from distlab.training.workers.workers import workers_of


def make_execution(
    model: keras.Model,
    step: ReplicaSteps,
    *,
    steps: Callable[[], int],
    see: Callable[..., None] | None = None,
) -> Callable[[Any], dict[str, tf.Tensor]]:
    """Returns what `fit` or `evaluate` calls with an iterator over batches."""
    strategy = model.distribute_strategy
    several_workers = workers_of(strategy).count > 1

    def several_steps(iterator: Any, most: tf.Tensor, ask: bool) -> tuple[Any, ...]:
        # It asks whether there is one more batch, as Keras does not: without, what does not
        # depend on data (counting the step, weight decay) would be done once more at the end. It
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

        first, mark = iterator.get_next_as_optional(), _no_mark()
        nothing = {}
        if not model.run_eagerly:
            nothing = tf.nest.map_structure(
                lambda spec: tf.zeros(spec.shape, spec.dtype), step.shapes(first.element_spec)
            )
        if see is not None and _is_whole(iterator):
            mark = tf.cond(first.has_value(), lambda: _mark_of(first.get_value()), _no_mark)
        eager_logs: dict[str, tf.Tensor] = {}
        begin = (tf.constant(0), is_there(first), first, nothing)
        done, existing, last, logs = tf.while_loop(more, take, begin)
        return done, step.results(logs | eager_logs), mark, last.has_value() & ~existing

    if not model.run_eagerly:
        several_steps = tf.function(several_steps, autograph=False)

    @explained(model)
    def execute(iterator: Any) -> dict[str, tf.Tensor]:
        if not isinstance(iterator, tf.data.Iterator | tf.distribute.DistributedIterator):
            # train_on_batch and test_on_batch give a generator
            batch = tf.nest.map_structure(as_tensor, next(iterator))
            result = step.results(traced(lambda: step(batch)))
            if step.checks_logs:
                check_logged_loss(model, result)
            return result
        asked, taken, is_over, result = steps(), 0, False, {}
        ask = several_workers and _is_whole(iterator) and _may_end_anywhere(iterator)
        if asked > 1 and not model.run_eagerly and gathers_rows(iterator.element_spec):
            # All rounds of a loop must gather as many rows, and batches have different numbers.
            at_once = 1
        else:
            at_once = asked
        while taken < asked and not is_over:
            most = min(at_once, asked - taken)
            # The number is an argument, so that another one needs no second trace.
            call = functools.partial(several_steps, iterator, tf.constant(most), ask)
            done, logs, mark, left = traced(call)
            if int(done):
                result = logs
            taken, is_over = taken + int(done), int(done) < most
            if see is not None and _is_whole(iterator):
                see(mark.numpy().tobytes(), more=bool(left), is_over=is_over)
        if not taken:
            raise StopIteration
        if step.checks_logs:
            check_logged_loss(model, result)
        if taken < asked and model.steps_per_execution == 1:  # Keras knows of one step only
            end_data(model, taken=taken)
        return dict(result)

    known: list[bool] = []

    def gathers_rows(element_spec: Any) -> bool:
        if not known:
            known.append(traced(lambda: _gathers(strategy, step.function, element_spec)))
        return known[0]

    return execute


def _is_whole(iterator: Any) -> bool:
    """Whether it gives whole batches, of which each worker takes its part."""
    return not isinstance(iterator, tf.distribute.DistributedIterator)


def _may_end_anywhere(iterator: Any) -> bool:
    """Whether the data do not know their length, so that one worker's may be another's or not."""
    return bool(iterator._dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY)


def _gathers(strategy: tf.distribute.Strategy, step: Any, *args: Any) -> bool:
    """Whether a step gathers rows by a collective: slices of sparse gradients, or outputs.

    A collective has a number, which it gets when a `tf.function` is called, and TensorFlow wants
    one shape for each number. In a loop of several steps a smaller last batch is then an error.
    """
    if not isinstance(getattr(strategy.extended, "_cross_device_ops", None), CollectiveAllReduce):
        return False
    graph = step.get_concrete_function(*args).graph.as_graph_def()
    bodies = [graph.node, *(function.node_def for function in graph.library.function)]
    return any(node.op == "CollectiveGatherV2" for nodes in bodies for node in nodes)


def parts_to_compare(batch: Any) -> list[Any]:
    """A batch's targets; where there are none, its inputs."""
    x, y, _ = keras.utils.unpack_x_y_sample_weight(batch)
    parts = tf.nest.flatten(x if y is None else y, expand_composites=True)
    return [part for part in parts if part is not None]


def _mark_of(batch: Any) -> tf.Tensor:
    """Returns 8 bytes that follow from a batch's targets; where there are none, from its inputs.

    Inputs may differ in a harmless way: augmentation that each worker draws for itself.
    """
    marks = [_fingerprint(part) for part in parts_to_compare(batch)]
    return tf.reshape(_fingerprint(tf.concat(marks, 0)), [8])


def _no_mark() -> tf.Tensor:
    """Returns the mark of no batch."""
    return tf.zeros([8], tf.uint8)


def _fingerprint(part: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.Fingerprint(data=tf.reshape(part, [1, -1]), method=tf.constant("farmhash64"))


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
