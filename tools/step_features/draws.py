"""Random numbers: of TensorFlow with and without a state, of Keras, and of a generator."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops

from tools.step_features.plan import Moment, Own, Plan, feature, number, spread


@feature()
def sampled_classes(plan: Plan) -> None:
    """As `tf.nn.sampled_softmax_loss` does it, which takes no float64."""
    kernel = plan.call_beside(layers.Dense(9, use_bias=False))
    sample = plan.choose(
        tf.random.log_uniform_candidate_sampler, tf.random.uniform_candidate_sampler
    )
    plan.draws = True

    def loss(now: Moment) -> Any:
        y = tf.reshape(tf.cast(now.y, tf.int64), (-1, 1))
        classes, _, expected = sample(y, 1, 3, True, 9)
        weights = tf.transpose(tf.convert_to_tensor(kernel.kernel))
        scores = tf.matmul(now.outputs, tf.gather(weights, classes), transpose_b=True)
        true = tf.reduce_sum(now.outputs * tf.gather(weights, y[:, 0]), -1, keepdims=True)
        scores = tf.concat([true, scores - tf.math.log(number(expected))], -1)
        return tf.reduce_mean(tf.reduce_logsumexp(scores, -1) - true[:, 0])

    plan.losses.append(loss)


@feature()
def a_draw_of_tensorflow(plan: Plan) -> None:
    plan.draws = True

    def normal(x: Any) -> Any:
        return x + 0.1 * tf.random.normal(tf.shape(x), dtype=x.dtype)

    def uniform(x: Any) -> Any:
        return x * tf.random.uniform((tf.shape(x)[0], 1), dtype=x.dtype)

    def shuffled(x: Any) -> Any:
        return x + 0.5 * tf.random.shuffle(tf.stop_gradient(x))

    def dropped(x: Any) -> Any:
        return tf.nn.dropout(x, 0.3)

    def of_one_number(x: Any) -> Any:
        return x * tf.random.uniform((), dtype=x.dtype)

    def classes(x: Any) -> Any:
        return x * tf.reshape(number(tf.random.categorical(x, 1)), (-1, 1))

    def gamma(x: Any) -> Any:
        return x + tf.random.gamma(tf.shape(x), 2.0, dtype=x.dtype)

    def gamma_of_rows(x: Any) -> Any:
        return tf.random.gamma((), tf.exp(x), dtype=x.dtype)  # which has a gradient

    function = plan.choose(
        *(normal, uniform, shuffled, dropped, of_one_number, classes, gamma, gamma_of_rows)
    )
    if plan.choose("in a layer", "in the step") == "in a layer":
        plan.layers.append(Own(function))
    else:
        plan.losses.append(lambda now: spread(function(now.outputs)))


@feature()
def a_draw_without_a_state(plan: Plan) -> None:
    def normal(x: Any) -> Any:
        return x + 0.1 * tf.random.stateless_normal(tf.shape(x), [1, 2], dtype=x.dtype)

    def uniform(x: Any) -> Any:
        return x * tf.random.stateless_uniform((tf.shape(x)[0], 3), [1, 2], dtype=x.dtype)[:, :1]

    def shuffled(x: Any) -> Any:
        return x + tf.random.experimental.stateless_shuffle(tf.stop_gradient(x), [1, 2])

    def dropped(x: Any) -> Any:
        return tf.nn.experimental.stateless_dropout(x, 0.3, [1, 2])

    def classes(x: Any) -> Any:
        return x * tf.reshape(number(tf.random.stateless_categorical(x, 1, [1, 2])), (-1, 1))

    def gamma(x: Any) -> Any:
        return x + tf.random.stateless_gamma(tf.shape(x), [1, 2], 2.0, dtype=x.dtype)

    def truncated(x: Any) -> Any:
        return x + tf.random.stateless_truncated_normal(tf.shape(x), [1, 2], dtype=x.dtype)

    function = plan.choose(normal, uniform, shuffled, dropped, classes, gamma, truncated)
    if plan.choose("in a layer", "in the step") == "in a layer":
        plan.layers.append(Own(function))
    else:
        plan.losses.append(lambda now: spread(function(now.outputs)))


@feature()
def a_draw_of_keras(plan: Plan) -> None:
    is_seeded = plan.choose("with a seed generator", "without one") == "with a seed generator"
    seeds, draw = keras.random.SeedGenerator(4) if is_seeded else None, keras.random

    def normal(x: Any) -> Any:
        return x + draw.normal(ops.shape(x), dtype=x.dtype, seed=seeds)

    def uniform(x: Any) -> Any:
        return x * draw.uniform((ops.shape(x)[0], 1), dtype=x.dtype, seed=seeds)

    def shuffled(x: Any) -> Any:
        return x + 0.5 * draw.shuffle(x, seed=seeds)

    def whole_numbers(x: Any) -> Any:
        return x * number(draw.randint(ops.shape(x), 0, 3, seed=seeds))

    def classes(x: Any) -> Any:
        return x * number(draw.categorical(x, 1, seed=seeds))

    def gamma(x: Any) -> Any:
        return x + draw.gamma(ops.shape(x), 2.0, dtype=x.dtype, seed=seeds)

    def of_one_number(x: Any) -> Any:
        return x * draw.uniform((), dtype=x.dtype, seed=seeds)

    def dropped(x: Any) -> Any:
        return draw.dropout(x, 0.3, seed=seeds)

    function = plan.choose(
        normal, uniform, shuffled, whole_numbers, classes, gamma, of_one_number, dropped
    )
    if plan.choose("in a layer", "in the step") == "in a layer":
        plan.layers.append(Own(function))
    else:
        plan.losses.append(lambda now: spread(function(now.outputs)))


@feature()
def a_draw_by_a_generator(plan: Plan) -> None:
    generator = tf.random.Generator.from_seed(3)

    def noisy(x: Any) -> Any:
        return x + generator.normal(tf.shape(x), dtype=x.dtype)

    if plan.choose("in a layer", "in the step") == "in a layer":
        plan.add_function(noisy)
    else:
        plan.losses.append(lambda now: spread(noisy(now.outputs)))
