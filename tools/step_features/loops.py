"""Loops and conditions, in layers and in the step, and what people put into them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops

import distlab as dl
from tools.step_features.plan import (
    CLASSES,
    Moment,
    Own,
    Plan,
    feature,
    mean_square,
    number,
    own_layer,
    partial,
    spread,
)

Function = Callable[[Any], Any]


# What repeats a function: each takes it and [rows, numbers].


def by_while(function: Function, x: Any) -> Any:
    shape = tf.TensorShape([None, x.shape[1]])
    return tf.while_loop(
        lambda i, x: i < 3,
        lambda i, x: (i + 1, function(x)),
        (0, x),
        shape_invariants=(tf.TensorShape([]), shape),
    )[1]


def while_it_is_large(function: Function, x: Any) -> Any:
    shape = tf.TensorShape([None, x.shape[1]])
    return tf.while_loop(
        lambda x: tf.reduce_max(tf.abs(x)) > 1,
        lambda x: (0.7 * function(x),),
        (x,),
        shape_invariants=(shape,),
        maximum_iterations=4,
    )[0]


def by_fori(function: Function, x: Any) -> Any:
    return ops.fori_loop(0, 3, lambda i, x: function(x), x)


def by_cond(function: Function, x: Any) -> Any:
    return tf.cond(tf.reduce_mean(x) > 0, lambda: function(x), lambda: x)


def by_keras_cond(function: Function, x: Any) -> Any:
    return ops.cond(ops.sum(x) > 0, lambda: function(x), lambda: 0.5 * x)


def by_switch(function: Function, x: Any) -> Any:
    at = tf.shape(x)[0] % 2
    return tf.switch_case(at, [lambda: function(x), lambda: 0.5 * function(x)])


def by_map(function: Function, x: Any) -> Any:
    return tf.map_fn(lambda row: function(row[None])[0], x)


def by_vectorized_map(function: Function, x: Any) -> Any:
    return tf.vectorized_map(lambda row: function(row[None])[0], x)


def by_scan(function: Function, x: Any) -> Any:
    return tf.scan(lambda before, row: 0.5 * before + function(row[None])[0], x)


def by_fold(function: Function, x: Any) -> Any:
    total = tf.foldl(lambda total, row: 0.5 * total + function(row[None])[0], x)
    return x + total


def by_keras_scan(function: Function, x: Any) -> Any:
    def step(before: Any, row: Any) -> Any:
        after = 0.5 * before + function(row[None])[0]
        return after, after

    return ops.scan(step, ops.zeros_like(x[0]), x)[1]


def over_columns(function: Function, x: Any) -> Any:
    """A loop over another axis than rows."""
    return tf.transpose(tf.map_fn(lambda column: function(column[:, None])[:, 0], tf.transpose(x)))


@tf.function  # type: ignore[untyped-decorator]
def _compiled(function: Function, x: Any) -> Any:
    for _ in tf.range(2):
        x = function(x)
    if tf.reduce_sum(x) > 0:
        x = 0.5 * x
    return x


def compiled(function: Function, x: Any) -> Any:
    return _compiled(function, x)


LOOPS = (
    *(by_while, while_it_is_large, by_fori, by_cond, by_keras_cond, by_switch, by_map),
    *(by_vectorized_map, by_scan, by_fold, by_keras_scan, over_columns, compiled),
)


# What is repeated


def tanh(x: Any) -> Any:
    return ops.tanh(x)


def less_the_mean(x: Any) -> Any:
    return x - 0.5 * tf.reduce_mean(x, 0)


def by_all_rows(x: Any) -> Any:
    return x - 0.5 * tf.reduce_mean(dl.all_gather(x), 0)


@feature()
def a_loop_in_a_layer(plan: Plan) -> None:
    loop, function = plan.choose(*LOOPS), plan.choose(tanh, less_the_mean, by_all_rows)
    plan.layers += [layers.Dense(5), Own(lambda x: loop(function, x), keeps_shape=True)]


@feature()
def a_loop_in_the_step(plan: Plan) -> None:
    loop, function = plan.choose(*LOOPS), plan.choose(tanh, less_the_mean)
    plan.losses.append(lambda now: spread(loop(function, now.outputs)))


@feature()
def a_layer_in_a_loop_of_the_step(plan: Plan) -> None:
    loop = plan.choose(*(each for each in LOOPS if each is not over_columns))
    dense = plan.call_beside(layers.Dense(CLASSES, "tanh"))
    plan.losses.append(lambda now: spread(loop(dense, now.outputs)))


@feature()
def a_layer_in_a_loop_of_a_layer(plan: Plan) -> None:
    loop = plan.choose(*(each for each in LOOPS if each is not over_columns))
    kinds = {
        "dense": partial(layers.Dense, 5, "tanh"),
        "normalization": layers.BatchNormalization,
        "dropout": partial(layers.Dropout, 0.3, seed=3),
        "own": partial(Own, less_the_mean),
    }
    inner = kinds[plan.choose(*kinds)]()
    inner.build((None, 5))
    layer = own_layer(lambda self, x: loop(lambda x: self.inner(x), x), inner=inner)
    plan.layers += [layers.Dense(5), layer]


@feature()
def a_draw_in_a_loop(plan: Plan) -> None:
    loop, seeds = plan.choose(*LOOPS), keras.random.SeedGenerator(4)

    def by_keras(x: Any) -> Any:
        return x + 0.1 * keras.random.normal(ops.shape(x), dtype=x.dtype, seed=seeds)

    def by_tensorflow(x: Any) -> Any:
        return x + 0.1 * tf.random.normal(tf.shape(x), dtype=x.dtype)

    def by_a_seed(x: Any) -> Any:
        return x + 0.1 * tf.random.stateless_normal(tf.shape(x), [1, 2], dtype=x.dtype)

    function = plan.choose(by_keras, by_tensorflow, by_a_seed)
    plan.draws = function is by_tensorflow
    if plan.choose("in a layer", "in the step") == "in a layer":
        plan.layers += [layers.Dense(5), Own(lambda x: loop(function, x), keeps_shape=True)]
    else:
        plan.losses.append(lambda now: spread(loop(function, now.outputs)))


@feature()
def a_count_in_a_loop(plan: Plan) -> None:
    loop = plan.choose(by_while, by_cond, by_switch, by_map, compiled)
    variable = tf.Variable(1.0, trainable=False, dtype=tf.float64)
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, 0)

    def in_a_variable(x: Any) -> Any:
        variable.assign_add(0.1 * tf.reduce_mean(x))
        return x * variable

    def in_a_table(x: Any) -> Any:
        table.insert(["n"], table.lookup(["n"]) + 1)
        return x / (1 + tf.reshape(number(table.lookup(["n"])), ()))

    function = plan.choose(in_a_variable, in_a_table)
    plan.kept["counted"] = lambda: (variable.numpy(), table.lookup(["n"]).numpy()[0])
    if plan.choose("in a layer", "in the step") == "in a layer":
        plan.layers += [layers.Dense(5), Own(lambda x: loop(function, x), keeps_shape=True)]
    else:
        plan.losses.append(lambda now: spread(loop(function, now.outputs)))


@feature()
def a_gradient_in_a_loop(plan: Plan) -> None:
    """Steps along the gradient of the model, as of an energy."""

    def loss(now: Moment) -> Any:
        def step(x: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                energy = tf.reduce_sum(tf.tanh(now.model(x)))
            return x - 0.1 * tape.gradient(energy, x)

        moved = now.x
        if repeat == "tf.while_loop":
            moved = tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, step(x)), (0, now.x))[1]
        else:
            for _ in range(2):
                moved = step(moved)
        return 0.1 * mean_square(now.model(tf.stop_gradient(moved), training=True))

    repeat = plan.choose("tf.while_loop", "for")
    plan.losses.append(loss)


@feature()
def an_update_in_a_condition(plan: Plan) -> None:
    def learn(now: Moment, loss: Any) -> None:
        weights = now.model.trainable_variables
        gradients = now.tape.gradient(loss, weights)

        def update() -> Any:
            now.model.optimizer.apply(gradients, weights)
            return tf.constant(True)

        tf.cond(loss > 0.5, update, lambda: tf.constant(False))

    plan.learn = learn


@feature()
def what_is_kept_in_a_loop(plan: Plan) -> None:
    """A list of tensors that are made one after the other, as of steps of a decoder."""
    dense = plan.call_beside(layers.Dense(CLASSES, "tanh"))

    def loss(now: Moment) -> Any:
        states, kept = now.outputs, tf.TensorArray(tf.float64, 3, element_shape=[None, CLASSES])
        for i in range(3):
            states = dense(states)
            kept = kept.write(i, states)
        return 0.1 * spread(tf.transpose(kept.stack(), (1, 0, 2)))

    plan.losses.append(loss)
