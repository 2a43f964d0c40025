"""Operations with an effect or a hidden state, in a step and in its layers."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from keras import layers, ops

from tools.step_features.plan import (
    CLASSES,
    Moment,
    Own,
    Plan,
    cross_entropy,
    feature,
    mean_square,
    number,
    one_hot,
    spread,
)

ONE = np.array([1])


# Data that are read on


@feature()
def a_second_data_set(plan: Plan) -> None:
    more = iter(tf.data.Dataset.range(1, 100).shuffle(5, seed=3))
    plan.losses.append(lambda now: 0.01 * number(next(more)) * mean_square(now.outputs))


@feature()
def a_second_data_set_with_rows(plan: Plan) -> None:
    rows = tf.data.Dataset.from_tensor_slices(np.random.default_rng(0).normal(size=(24, CLASSES)))
    more, layer = iter(rows.batch(3).repeat()), plan.call_beside(layers.Dense(3))
    plan.losses.append(lambda now: spread(layer(next(more))) + mean_square(layer(now.outputs)))


@feature()
def a_data_set_read_in_a_layer(plan: Plan) -> None:
    more = iter(tf.data.Dataset.range(1, 200))
    plan.add_function(lambda x: x / number(next(more)) + x)


@feature()
def a_data_set_made_in_the_step(plan: Plan) -> None:
    def total(now: Moment) -> Any:
        rows = tf.data.Dataset.from_tensor_slices(tf.stop_gradient(now.outputs))
        return rows.reduce(number(0), lambda total, row: 0.5 * total + tf.reduce_sum(row))

    plan.logs["total"] = total


# Tables and queues


def counting_table() -> Any:
    return tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)


@feature()
def a_table_that_counts(plan: Plan) -> None:
    table = counting_table()
    plan.kept["counts"] = lambda: table.lookup(np.arange(CLASSES)).numpy()

    def loss(now: Moment) -> Any:
        y = tf.cast(tf.reshape(now.y, [-1]), tf.int64)
        table.insert(y[:1], table.lookup(y[:1]) + 1)
        weights = 1 / (1 + number(table.lookup(y)))
        return tf.reduce_mean(weights * cross_entropy(now.y, now.outputs))

    plan.losses.append(loss)


@feature()
def a_table_that_counts_in_a_layer(plan: Plan) -> None:
    table = counting_table()
    plan.kept["rows"] = lambda: table.lookup(ONE).numpy()

    def count(x: Any) -> Any:
        table.insert(ONE, table.lookup(ONE) + tf.shape(x, tf.int64)[:1])
        return x * (1 + 1 / tf.reshape(number(table.lookup(ONE)), ()))

    plan.add_function(count)


@feature()
def a_table_that_a_layer_reads_and_the_step_writes(plan: Plan) -> None:
    table = counting_table()

    def write(now: Moment) -> Any:
        table.insert(ONE, table.lookup(ONE) + 1)
        return mean_square(now.outputs)

    def read(x: Any) -> Any:
        return x + 0.1 * tf.reshape(number(table.lookup(ONE)), ())

    plan.add_function(read)
    plan.after.append(write)


@feature()
def a_table_with_what_is_fixed(plan: Plan) -> None:
    pairs = tf.lookup.KeyValueTensorInitializer(np.arange(CLASSES), np.array([0.5, 1, 2, 0.1]))
    table = tf.lookup.StaticHashTable(pairs, 0.0)

    def scale(x: Any) -> Any:
        return x * table.lookup(tf.cast(x > 0, tf.int64))

    def loss(now: Moment) -> Any:
        weights = table.lookup(tf.cast(now.y, tf.int64))
        return tf.reduce_mean(weights * cross_entropy(now.y, now.outputs))

    if plan.choose("in a layer", "in the step") == "in a layer":
        plan.add_function(scale)
    else:
        plan.losses.append(loss)


@feature()
def a_queue(plan: Plan) -> None:
    queue = tf.queue.FIFOQueue(100, [tf.float64], [()])
    plan.kept["size"] = lambda: queue.size().numpy()

    def log(now: Moment) -> Any:
        queue.enqueue(mean_square(now.outputs))
        return number(queue.size())

    plan.logs["queued"] = log


@feature()
def a_queue_that_gives_back(plan: Plan) -> None:
    queue = tf.queue.FIFOQueue(100, [tf.float64], [(CLASSES,)])
    queue.enqueue_many([np.ones((2, CLASSES))])

    def loss(now: Moment) -> Any:
        queue.enqueue(tf.reduce_mean(now.outputs, 0))
        return tf.reduce_mean(now.outputs * tf.stop_gradient(queue.dequeue()))

    plan.losses.append(loss)


# Python behind an operation


def half(rows: Any) -> Any:
    return 0.5 * rows


@feature()
def python_that_has_no_effect(plan: Plan) -> None:
    call = plan.choose(tf.numpy_function, tf.py_function)
    stateless = plan.choose({}, {"stateful": False}) if call is tf.numpy_function else {}

    def rows(x: Any) -> Any:
        made = call(half, [tf.stop_gradient(x)], tf.float64, **stateless)
        return x + tf.ensure_shape(made, x.shape)

    if plan.choose("in a layer", "in the step") == "in a layer":
        plan.add_function(rows)
    else:
        plan.losses.append(lambda now: spread(rows(now.outputs)))


@feature()
def python_that_collects(plan: Plan) -> None:
    collected: list[Any] = []
    plan.kept["rows"] = lambda: np.array(collected)

    def collect(rows: Any) -> Any:
        collected.extend(rows[:, 0])
        return np.float64(len(collected))

    def in_layer(x: Any) -> Any:
        return x / (1 + tf.reshape(tf.numpy_function(collect, [x], tf.float64), ()))

    if plan.choose("in a layer", "in the step") == "in a layer":
        plan.add_function(in_layer)
    else:
        plan.logs["rows"] = lambda now: tf.numpy_function(collect, [now.outputs], tf.float64)


@feature()
def python_with_a_gradient_of_its_own(plan: Plan) -> None:
    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def tanh(x: Any) -> Any:
        result = tf.ensure_shape(tf.numpy_function(np.tanh, [x], tf.float64), x.shape)
        return result, lambda asked: asked * (1 - result**2)

    if plan.choose("in a layer", "in the step") == "in a layer":
        plan.add_function(tanh)
    else:
        plan.losses.append(lambda now: spread(tanh(now.outputs)))


@feature()
def python_through_which_a_gradient_flows(plan: Plan) -> None:
    def square(x: Any) -> Any:
        return tf.ensure_shape(tf.py_function(lambda x: x * x, [x], tf.float64), x.shape)

    if plan.choose("in a layer", "in the step") == "in a layer":
        plan.add_function(square)
    else:
        plan.losses.append(lambda now: spread(square(now.outputs)))


# Variables


@feature()
def a_variable_that_counts(plan: Plan) -> None:
    count = tf.Variable(1.0, trainable=False, dtype=tf.float64)
    plan.kept["count"] = lambda: count

    def in_layer(x: Any) -> Any:
        count.assign_add(0.1 * number(tf.shape(x)[0]))
        return x / tf.convert_to_tensor(count)

    def in_step(now: Moment) -> Any:
        count.assign_add(0.1 * tf.reduce_mean(now.outputs))
        return mean_square(now.outputs) * count

    if plan.choose("in a layer", "in the step") == "in a layer":
        plan.add_function(in_layer)
    else:
        plan.losses.append(in_step)


@feature()
def a_weight_that_is_a_moving_mean(plan: Plan) -> None:
    class Centred(layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            self.mean = self.add_weight(shape=shape[1:], initializer="zeros", trainable=False)

        def call(self, x: Any, training: bool = False) -> Any:
            if training:
                self.mean.assign(0.9 * self.mean + 0.1 * ops.mean(x, axis=0))
            return x - self.mean

    plan.layers.append(Centred())


@feature()
def a_variable_that_a_module_holds(plan: Plan) -> None:
    class Temperature(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            self.value = tf.Variable(1.0, dtype=tf.float64, trainable=False)

        def __call__(self, x: Any) -> Any:
            self.value.assign(0.9 * self.value + 0.1 * tf.reduce_max(tf.abs(x)))
            return x / tf.convert_to_tensor(self.value)

    module = Temperature()
    plan.kept["temperature"] = lambda: module.value
    if plan.choose("in a layer", "in the step") == "in a layer":
        plan.add_function(module)
    else:
        plan.losses.append(lambda now: spread(module(now.outputs)))


@feature()
def a_variable_that_is_scattered_into(plan: Plan) -> None:
    rows = tf.Variable(tf.zeros((16, CLASSES), tf.float64), trainable=False)

    def by_scatter_nd_update(now: Moment) -> None:
        rows.scatter_nd_update(tf.range(tf.shape(now.y)[0])[:, None], now.outputs)

    def by_slices(now: Moment) -> None:
        places = tf.reshape(tf.cast(now.y, tf.int32), [-1])
        rows.scatter_add(tf.IndexedSlices(now.outputs, places))

    def by_tensor(now: Moment) -> None:
        places = tf.range(tf.shape(now.y)[0])[:, None]
        rows.assign(tf.tensor_scatter_nd_update(rows, places, now.outputs))

    def by_a_slice(now: Moment) -> None:
        rows[1].assign(tf.reduce_mean(now.outputs, 0))

    scatter = plan.choose(by_scatter_nd_update, by_slices, by_tensor, by_a_slice)

    def loss(now: Moment) -> Any:
        scatter(now)
        return tf.reduce_mean(now.outputs * tf.reduce_mean(rows, 0))

    plan.kept["rows"] = lambda: rows
    plan.losses.append(loss)


@feature()
def a_memory_that_is_looked_into(plan: Plan) -> None:
    memory = tf.Variable(np.random.default_rng(1).normal(size=(6, CLASSES)), dtype=tf.float64)
    lookup = plan.choose(tf.gather, tf.nn.embedding_lookup)

    def loss(now: Moment) -> Any:
        codes = tf.convert_to_tensor(memory)
        nearest = tf.argmin(tf.norm(now.outputs[:, None] - codes[None], axis=-1), -1)
        chosen, hot = lookup(memory, nearest), tf.one_hot(nearest, 6, dtype=tf.float64)
        sums = tf.matmul(hot, tf.stop_gradient(now.outputs), transpose_a=True)
        memory.assign(0.9 * codes + 0.1 * sums / (1 + tf.reduce_sum(hot, 0)[:, None]))
        return mean_square(now.outputs - tf.stop_gradient(chosen))

    plan.kept["memory"] = lambda: memory
    plan.losses.append(loss)


# What is said and checked


@feature()
def a_print_and_assertions(plan: Plan) -> None:
    with tempfile.NamedTemporaryFile(suffix=".txt", delete=False) as file:
        said = f"file://{file.name}"

    def checked(x: Any) -> Any:
        tf.print(tf.reduce_sum(x), output_stream=said)
        tf.debugging.assert_less(tf.abs(x), number(1e9))
        tf.debugging.assert_rank_at_least(x, 2)
        tf.debugging.Assert(tf.size(x) > 0, [x])
        return tf.debugging.check_numerics(x, "not finite")

    if plan.choose("in a layer", "in the step") == "in a layer":
        plan.layers.append(Own(checked))
    else:
        plan.losses.append(lambda now: spread(checked(now.outputs)))


@feature()
def an_assertion_about_the_batch(plan: Plan) -> None:
    def checked(x: Any) -> Any:
        rows = tf.shape(x)[0]
        tf.debugging.assert_greater(rows, 0)
        tf.debugging.assert_less(tf.reduce_max(tf.abs(x)), number(1e9))
        return x

    if plan.choose("in a layer", "in the step") == "in a layer":
        plan.layers.append(Own(checked))
    else:
        plan.losses.append(lambda now: mean_square(checked(now.outputs)))


@feature()
def a_summary(plan: Plan) -> None:
    folder = tempfile.mkdtemp()
    writer = tf.summary.create_file_writer(folder)

    def records() -> int:
        writer.flush()
        files = [str(path) for path in Path(folder).iterdir()]
        return sum(1 for _ in tf.data.TFRecordDataset(files))

    def log(now: Moment) -> Any:
        step = tf.cast(now.model.optimizer.iterations, tf.int64)
        with writer.as_default(step=step):
            tf.summary.scalar("outputs", mean_square(now.outputs))
        return mean_square(now.outputs)

    def in_layer(x: Any) -> Any:
        with writer.as_default(step=tf.constant(0, tf.int64)):
            tf.summary.scalar("of a layer", tf.reduce_mean(x))
        return x

    if plan.choose("in a layer", "in the step") == "in a layer":
        plan.add_function(in_layer)
    else:
        plan.logs["written"] = log
    plan.kept["records"] = records


@feature()
def a_file(plan: Plan) -> None:
    file = Path(tempfile.mkdtemp()) / "last.txt"

    def write(now: Moment) -> None:
        text = tf.strings.as_string(tf.reduce_sum(one_hot(now.y), 0))
        tf.io.write_file(str(file), tf.strings.reduce_join(text, separator=" "))

    plan.after.append(write)
    plan.kept["file"] = lambda: file.read_text(encoding="utf-8")
