"""Gradients: of one's own, of inputs, of gradients, and by other ways than a tape's."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from keras import layers, ops

from tools.step_features.plan import (
    CLASSES,
    Moment,
    Own,
    Plan,
    feature,
    mean_square,
    number,
    own_layer,
    spread,
)


def clipped(asked: Any) -> Any:
    return tf.clip_by_value(asked, -0.02, 0.02)


def of_norm_one(asked: Any) -> Any:
    return 0.1 * asked / (1e-3 + tf.norm(asked))


def of_rows_of_norm_one(asked: Any) -> Any:
    return 0.1 * asked / (1e-3 + tf.norm(asked, axis=-1, keepdims=True))


def sign(asked: Any) -> Any:
    return 0.01 * tf.tanh(1e3 * asked)


def reversed_(asked: Any) -> Any:
    return -0.5 * asked


def reversed_with_a_cap(asked: Any) -> Any:
    return -tf.minimum(asked, 0.01)


def less_the_mean(asked: Any) -> Any:
    return asked - tf.reduce_mean(asked, 0)


def by_the_number_of_rows(asked: Any) -> Any:
    return asked * tf.cast(tf.shape(asked)[0], asked.dtype)


BACK = (
    *(clipped, of_norm_one, of_rows_of_norm_one, sign, reversed_, reversed_with_a_cap),
    *(less_the_mean, by_the_number_of_rows),
)


def with_back(back: Any, forward: Any = tf.identity) -> Any:
    """Returns a function of a tensor with this gradient."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def function(x: Any) -> Any:
        return forward(x), back

    return function


@feature()
def a_gradient_of_a_layer(plan: Plan) -> None:
    forward = plan.choose(tf.identity, tf.tanh, less_the_mean)
    plan.layers += [layers.Dense(5), Own(with_back(plan.choose(*BACK), forward))]


@feature()
def a_gradient_of_an_activation(plan: Plan) -> None:
    plan.layers.append(layers.Dense(5, activation=with_back(plan.choose(*BACK), tf.tanh)))


@feature()
def a_gradient_of_an_activation_over_time(plan: Plan) -> None:
    activation = with_back(plan.choose(*BACK), tf.tanh)
    kind = plan.choose(layers.Conv1D, layers.SimpleRNN)
    options = (
        {"kernel_size": 2, "padding": "same"}
        if kind is layers.Conv1D
        else {"return_sequences": True}
    )
    plan.sequence_layers.append(kind(3, activation=activation, **options))


@feature()
def a_gradient_of_the_step(plan: Plan) -> None:
    function = with_back(plan.choose(*BACK))
    plan.losses.append(lambda now: spread(function(now.outputs)))


@feature()
def a_gradient_of_a_weight(plan: Plan) -> None:
    function = with_back(plan.choose(*BACK[:-2]))

    class Binary(layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            self.kernel = self.add_weight(shape=(shape[-1], 5), initializer="glorot_uniform")

        def call(self, x: Any) -> Any:
            return ops.matmul(x, function(tf.convert_to_tensor(self.kernel)))

    plan.layers.append(Binary())


@feature()
def a_gradient_that_passes_straight_through(plan: Plan) -> None:
    def by_stop_gradient(x: Any) -> Any:
        return x + tf.stop_gradient(tf.round(4 * x) / 4 - x)

    def by_pass_through(x: Any) -> Any:
        return tf.grad_pass_through(lambda x: tf.round(4 * x) / 4)(x)

    function = plan.choose(by_stop_gradient, by_pass_through)
    if plan.choose("in a layer", "in the step") == "in a layer":
        plan.layers += [layers.Dense(5), Own(function)]
    else:
        plan.losses.append(lambda now: mean_square(function(now.outputs)))


@feature()
def a_layer_that_is_computed_again_on_the_way_back(plan: Plan) -> None:
    dense = layers.Dense(5, "tanh")

    def call(self: Any, x: Any) -> Any:
        return tf.recompute_grad(lambda x: ops.sin(dense(x)))(x)

    plan.layers += [layers.Dense(5), own_layer(call, inner=dense)]
    dense.build((None, 5))


@feature()
def a_stopped_gradient(plan: Plan) -> None:
    plan.layers += [layers.Dense(5), Own(lambda x: x * ops.stop_gradient(ops.tanh(x)))]
    plan.losses.append(
        lambda now: tf.reduce_mean(now.outputs * tf.stop_gradient(now.outputs[::-1]))
    )


# Gradients of inputs


@feature()
def a_penalty_of_the_gradient(plan: Plan) -> None:
    def loss(now: Moment) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(now.x)
            outputs = now.model(now.x, training=True)
        slopes = tape.gradient(outputs, now.x)
        norms = tf.norm(tf.reshape(slopes, (tf.shape(slopes)[0], -1)) + 1e-3, axis=-1)
        return 0.1 * tf.reduce_mean((norms - 1) ** 2)

    plan.losses.append(loss)


@feature()
def a_penalty_of_the_gradient_in_a_layer(plan: Plan) -> None:
    as_loss = plan.choose(True, False)

    def call(self: Any, x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = self.dense(x)
            total = tf.reduce_sum(tf.tanh(y) ** 2)
        slopes = tape.gradient(total, x)
        if as_loss:
            self.add_loss(0.1 * tf.reduce_mean(slopes**2))
            return y
        return y + slopes

    plan.layers += [layers.Dense(5), own_layer(call, dense=layers.Dense(5, "tanh"))]


@feature()
def inputs_that_are_moved_uphill(plan: Plan) -> None:
    def loss(now: Moment) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(now.x)
            value = now.model.compute_loss(now.x, now.y, now.model(now.x))
        slope = tf.stop_gradient(tape.gradient(value, now.x))
        moved = now.x + 0.1 * tf.tanh(100 * slope)
        return 0.5 * now.model.compute_loss(now.x, now.y, now.model(moved, training=True))

    plan.losses.append(loss)


@feature()
def a_jacobian(plan: Plan) -> None:
    def of_batch(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.tanh(x * tf.reduce_sum(x, -1, keepdims=True))
        return y + tf.linalg.diag_part(tape.batch_jacobian(y, x))

    def of_all(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(tf.tanh(x), 0)
        return x + tf.reduce_sum(tape.jacobian(y, x), 0)

    def forwards(x: Any) -> Any:
        with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as forward:
            y = tf.tanh(x) ** 2
        return x + forward.jvp(y)

    def by_tf_gradients(x: Any) -> Any:
        return x + tf.gradients(tf.tanh(x) ** 3, x)[0]

    function = plan.choose(of_batch, of_all, forwards, by_tf_gradients)
    plan.is_symbolic = True
    if plan.choose("in a layer", "in the step") == "in a layer":
        plan.layers += [layers.Dense(5), Own(function)]
    else:
        plan.losses.append(lambda now: spread(function(now.outputs)))


@feature()
def a_derivative_through_the_model(plan: Plan) -> None:
    def forwards(now: Moment) -> Any:
        with tf.autodiff.ForwardAccumulator(now.x, tf.ones_like(now.x)) as forward:
            outputs = now.model(now.x)
        return mean_square(forward.jvp(outputs))

    def by_jacobian(now: Moment) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(now.x)
            outputs = now.model(now.x)
        return mean_square(tape.batch_jacobian(outputs, now.x))

    def by_hessian(now: Moment) -> Any:
        with tf.GradientTape() as outer:
            outer.watch(now.x)
            with tf.GradientTape() as tape:
                tape.watch(now.x)
                total = tf.reduce_sum(now.model(now.x) ** 2)
            slope = tape.gradient(total, now.x)
        return 0.01 * mean_square(outer.gradient(slope, now.x))

    plan.losses.append(plan.choose(forwards, by_jacobian, by_hessian))


# Complex numbers


@feature()
def complex_numbers(plan: Plan) -> None:
    class Turn(layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            self.real = self.add_weight(shape=(shape[-1],), initializer="ones", name="re")
            self.imaginary = self.add_weight(shape=(shape[-1],), initializer="ones", name="im")

        def call(self, x: Any) -> Any:
            turn = tf.complex(tf.convert_to_tensor(self.real), tf.convert_to_tensor(self.imaginary))
            return tf.signal.fft(tf.cast(x, tf.complex128)) * turn

    turn = plan.call_beside(Turn())
    plan.losses.append(lambda now: 0.01 * tf.reduce_mean(tf.abs(turn(now.outputs)) ** 2))


@feature()
def complex_numbers_within_a_layer(plan: Plan) -> None:
    axis = plan.choose(-1, 0)

    def filtered(x: Any) -> Any:
        z = tf.cast(x, tf.complex128)
        z = tf.signal.fft(z) if axis == -1 else tf.transpose(tf.signal.fft(tf.transpose(z)))
        return tf.math.real(z * tf.complex(number(0.1), number(0.2)))

    plan.layers += [layers.Dense(5), Own(filtered)]


@feature()
def complex_sums_in_the_step(plan: Plan) -> None:
    angle = plan.call_beside(layers.Dense(CLASSES))

    def loss(now: Moment) -> Any:
        waves = tf.exp(tf.complex(tf.zeros_like(now.outputs), angle(now.outputs)))
        return tf.abs(tf.reduce_mean(waves))

    plan.losses.append(loss)
