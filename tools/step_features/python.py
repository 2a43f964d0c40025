"""Steps that Python runs: its counters, lists, conditions and random numbers."""

from __future__ import annotations

import collections
import itertools
import random
import types
from typing import Any

import numpy as np
import tensorflow as tf
from keras import layers

from tools.step_features.plan import Moment, Own, Plan, feature, mean_square, number, spread


def run_eagerly(plan: Plan) -> None:
    """Lets Keras run the steps eagerly."""
    plan.compiled["run_eagerly"] = True


@feature("eager")
def an_eager_step(plan: Plan) -> None:
    run_eagerly(plan)
    plan.losses.append(lambda now: 0.1 * spread(now.outputs))


@feature("eager")
def an_eager_step_of_keras(plan: Plan) -> None:
    run_eagerly(plan)


@feature("eager")
def a_counter_of_python(plan: Plan) -> None:
    run_eagerly(plan)
    box, numbers = types.SimpleNamespace(count=0), itertools.count()
    array, queue = np.zeros(1), collections.deque([0])
    count = 0

    def in_an_object() -> int:
        box.count += 1
        return int(box.count)

    def in_an_iterator() -> int:
        return next(numbers)

    def in_an_array() -> int:
        array[0] += 1
        return int(array[0])

    def in_a_queue() -> int:
        queue.append(queue[-1] + 1)
        return queue[-1]

    def in_a_name() -> int:
        nonlocal count
        count += 1
        return count

    counted = plan.choose(in_an_object, in_an_iterator, in_an_array, in_a_queue, in_a_name)
    plan.losses.append(lambda now: mean_square(now.outputs) * (1 + counted() % 2))


@feature("eager")
def a_counter_of_the_model(plan: Plan) -> None:
    run_eagerly(plan)

    def count(now: Moment) -> Any:
        now.model.count = getattr(now.model, "count", 0) + 1
        return mean_square(now.outputs) * (1 + now.model.count % 2)

    plan.losses.append(count)


@feature("eager")
def a_list_of_python(plan: Plan) -> None:
    run_eagerly(plan)
    losses: list[Any] = []
    plan.kept["losses"] = lambda: np.array(losses)

    def keep(now: Moment) -> Any:
        value = mean_square(now.outputs)
        losses.append(float(value))
        return value * (1 if len(losses) < 3 else losses[-2])

    plan.losses.append(keep)


@feature("eager")
def a_list_of_tensors(plan: Plan) -> None:
    run_eagerly(plan)

    def keep(now: Moment) -> Any:
        kept = getattr(now.model, "last_outputs", [])
        now.model.last_outputs = [*kept[-1:], tf.reduce_mean(now.outputs, 0)]
        return tf.reduce_sum(now.outputs * tf.stop_gradient(now.model.last_outputs[0])) / 10

    plan.losses.append(keep)


@feature("eager")
def a_condition_of_python(plan: Plan) -> None:
    run_eagerly(plan)

    def decide(now: Moment) -> Any:
        if float(mean_square(now.outputs)) > 0.3:
            return mean_square(now.outputs)
        return spread(now.outputs)

    plan.losses.append(decide)


@feature("eager")
def a_layer_that_python_runs(plan: Plan) -> None:
    run_eagerly(plan)
    seen: list[int] = []
    plan.kept["seen"] = lambda: np.array(seen)

    def function(x: Any) -> Any:
        seen.append(len(x))
        return x / len(x) if np.mean(x.numpy()) > 0 else x

    plan.layers += [layers.Dense(5), Own(function, keeps_shape=True)]


@feature("eager")
def accumulation_by_python(plan: Plan) -> None:
    run_eagerly(plan)

    def learn(now: Moment, loss: Any) -> None:
        model, weights = now.model, now.model.trainable_variables
        gradients = now.tape.gradient(loss, weights)
        kept = getattr(model, "waiting", None)
        if kept is None:
            model.waiting = gradients
            return
        model.optimizer.apply([a + b for a, b in zip(kept, gradients, strict=True)], weights)
        model.waiting = None

    plan.learn = learn


@feature("eager")
def random_numbers_of_python_in_an_eager_step(plan: Plan) -> None:
    run_eagerly(plan)
    draw = plan.choose(random.random, np.random.rand)
    plan.losses.append(lambda now: mean_square(now.outputs) * draw())


@feature("eager")
def random_numbers_of_numpy_in_an_eager_layer(plan: Plan) -> None:
    run_eagerly(plan)
    layer = Own(lambda x: x + 0.1 * np.random.normal(size=x.shape), keeps_shape=True)
    plan.layers += [layers.Dense(5), layer]


@feature()
def random_numbers_of_python(plan: Plan) -> None:
    """In a step that TensorFlow traces: one number for each trace."""
    draw = plan.choose(random.random, np.random.rand)
    plan.is_symbolic = True
    if plan.choose("in a layer", "in the step") == "in a layer":
        plan.layers.append(Own(lambda x: x * (1 + draw()), keeps_shape=True))
    else:
        plan.losses.append(lambda now: mean_square(now.outputs) * draw())


@feature()
def a_counter_in_a_traced_step(plan: Plan) -> None:
    """It counts traces, so that the first one is seen to be the first."""
    box = types.SimpleNamespace(made=None)

    def once(now: Moment) -> Any:
        if box.made is None:
            with tf.init_scope():
                box.made = tf.Variable(0.5, trainable=False, dtype=tf.float64)
        box.made.assign(0.9 * box.made + 0.1 * mean_square(now.outputs))
        return mean_square(now.outputs) * number(box.made)

    plan.kept["made"] = lambda: box.made
    plan.losses.append(once)
