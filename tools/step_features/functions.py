"""Functions of the user's, wherever Keras takes one: by rows, or looking at the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tools.step_features.plan import (
    Own,
    Plan,
    cross_entropy,
    feature,
    number,
    one_hot,
    own_layer,
    spread,
)


def squashed(x: Any) -> Any:
    return x * ops.sigmoid(x)


def by_its_own_size(x: Any) -> Any:
    return x / (1 + ops.norm(x, axis=-1, keepdims=True))


def beside_its_neighbour(x: Any) -> Any:
    return x + 0.5 * tf.roll(x, 1, -1)


def less_the_mean(x: Any) -> Any:
    return x - ops.mean(x, axis=0, keepdims=True)


def by_the_largest(x: Any) -> Any:
    return x / (1 + tf.reduce_max(tf.abs(x)))


def with_the_rows_before(x: Any) -> Any:
    return x + 0.1 * tf.cumsum(x, 0)


def by_the_number_of_rows(x: Any) -> Any:
    return 3 * x / ops.cast(ops.shape(x)[0], x.dtype)


def by_a_number_that_may_be_known(x: Any) -> Any:
    rows = x.shape[0] or tf.shape(x)[0]
    return 3 * x / tf.cast(rows, x.dtype)


def sorted_over_rows(x: Any) -> Any:
    return tf.sort(x, axis=0)


def upside_down(x: Any) -> Any:
    return x + 0.5 * x[::-1]


def less_the_first(x: Any) -> Any:
    return x - 0.5 * x[:1]


def beside_the_row_before(x: Any) -> Any:
    return x + 0.5 * tf.roll(x, 1, 0)


def by_likeness(x: Any) -> Any:
    flat = tf.reshape(x, (tf.shape(x)[0], -1))
    likeness = tf.nn.softmax(tf.matmul(flat, flat, transpose_b=True))
    return x + tf.tensordot(likeness, x, 1)


def by_rank(x: Any) -> Any:
    rank = tf.argsort(tf.argsort(x, axis=0), axis=0)
    return x * (1 + 0.1 * tf.cast(rank, x.dtype))


def by_how_many_are_positive(x: Any) -> Any:
    return x * tf.reduce_mean(tf.cast(x > 0, x.dtype))


def less_the_mean_of_its_group(x: Any) -> Any:
    flat = tf.reshape(x, (tf.shape(x)[0], -1))
    group = tf.cast(flat[:, 0] > 0, tf.int32)
    return x - tf.gather(tf.math.unsorted_segment_mean(x, group, 2), group)


BY_ROWS = (squashed, by_its_own_size, beside_its_neighbour)
OF_THE_BATCH = (
    *(less_the_mean, by_the_largest, with_the_rows_before, by_the_number_of_rows, upside_down),
    *(by_a_number_that_may_be_known, sorted_over_rows, less_the_first, beside_the_row_before),
    *(by_likeness, by_rank, by_how_many_are_positive, less_the_mean_of_its_group),
)

for each in BY_ROWS + OF_THE_BATCH:  # Bidirectional copies a layer by what it says of itself
    keras.saving.register_keras_serializable("step_features")(each)


def choose(plan: Plan) -> Callable[[Any], Any]:
    """Returns a function of rows, more often one that looks at the batch."""
    kinds = plan.draw.choices([BY_ROWS, OF_THE_BATCH], [1, 3])[0]
    return plan.choose(*kinds)  # type: ignore[no-any-return]


# Functions that layers of Keras are given


@feature()
def an_activation_of_a_dense_layer(plan: Plan) -> None:
    plan.layers.append(layers.Dense(5, activation=choose(plan)))


@feature()
def a_layer_of_an_activation(plan: Plan) -> None:
    plan.layers.append(layers.Activation(choose(plan)))


@feature()
def an_activation_of_a_dense_layer_in_a_wrapper(plan: Plan) -> None:
    plan.layers.append(layers.SpectralNormalization(layers.Dense(5, activation=choose(plan))))


@feature()
def an_activation_of_an_einsum(plan: Plan) -> None:
    plan.layers.append(layers.EinsumDense("ab,bc->ac", 5, activation=choose(plan)))


@feature()
def an_activation_of_a_convolution(plan: Plan) -> None:
    kind = plan.choose(layers.Conv1D, layers.SeparableConv1D)
    plan.sequence_layers.append(kind(3, 2, padding="same", activation=choose(plan)))


@feature()
def an_activation_of_a_recurrent_layer(plan: Plan) -> None:
    kind = plan.choose(layers.SimpleRNN, layers.LSTM, layers.GRU)
    slot = "recurrent_activation" if kind is layers.LSTM else "activation"
    plan.sequence_layers.append(kind(3, return_sequences=True, **{slot: choose(plan)}))


@feature()
def an_activation_in_both_directions(plan: Plan) -> None:
    inner = layers.SimpleRNN(3, activation=choose(plan), return_sequences=True)
    plan.sequence_layers.append(layers.Bidirectional(inner))


@feature()
def an_activation_for_each_time(plan: Plan) -> None:
    each = plan.choose(layers.Lambda, layers.Activation)(choose(plan))
    plan.sequence_layers.append(layers.TimeDistributed(each))


class Cell(layers.SimpleRNNCell):  # type: ignore[misc]
    """A cell whose new state a function makes."""

    def __init__(self, units: int, function: Callable[[Any], Any]) -> None:
        super().__init__(units)
        self.function = function

    def call(self, x: Any, states: Any, training: bool = False) -> Any:
        _, states = super().call(x, states, training=training)
        state = self.function(states[0] if isinstance(states, list | tuple) else states)
        return state, [state]


@feature()
def a_cell_with_a_function(plan: Plan) -> None:
    cells = [Cell(3, choose(plan)) for _ in range(plan.draw.choice([1, 2]))]
    plan.sequence_layers.append(layers.RNN(cells[0] if len(cells) == 1 else cells))
    plan.sequence_layers.append(layers.Reshape((3, 1)))


@feature()
def a_lambda(plan: Plan) -> None:
    plan.layers.append(layers.Lambda(choose(plan)))


@feature()
def a_layer_of_the_users(plan: Plan) -> None:
    plan.layers.append(Own(choose(plan)))


@feature()
def a_pipeline(plan: Plan) -> None:
    plan.layers.append(layers.Pipeline([layers.Lambda(choose(plan)), layers.Dense(5)]))


@feature()
def a_function_on_words(plan: Plan) -> None:
    def first_letter_of_all(words: Any) -> Any:
        return tf.strings.join([words, tf.strings.substr(tf.reshape(words, [-1])[0], 0, 1)])

    standardize = plan.choose(tf.strings.lower, first_letter_of_all)
    words = layers.TextVectorization(
        vocabulary=[f"{a}{b}" for a in "nz" for b in ("n", "z", "")],
        standardize=standardize,
        output_mode="multi_hot",
    )
    weights = layers.Dense(5)

    def call(self: Any, x: Any) -> Any:
        letters = tf.gather(tf.constant(["n", "z"]), tf.cast(x[:, 0] > 0, tf.int32))
        return x * self.weights_of(tf.cast(self.words(letters), x.dtype))

    plan.layers += [layers.Dense(5), own_layer(call, words=words, weights_of=weights)]


@feature()
def a_constraint(plan: Plan) -> None:
    def of_length_one(weight: Any) -> Any:
        return weight / (1e-3 + tf.norm(weight, axis=0, keepdims=True))

    slot = plan.choose("kernel_constraint", "bias_constraint")
    plan.layers.append(layers.Dense(5, bias_initializer="ones", **{slot: of_length_one}))


@feature()
def an_initializer(plan: Plan) -> None:
    def by_keras(shape: Any, dtype: Any = None) -> Any:
        return keras.random.normal(shape, stddev=0.5, dtype=dtype)

    def by_numpy(shape: Any, dtype: Any = None) -> Any:
        return tf.constant(np.random.normal(size=shape), dtype)

    def by_tensorflow(shape: Any, dtype: Any = None) -> Any:
        return tf.random.normal(shape, dtype=dtype)

    plan.layers.append(
        layers.Dense(5, kernel_initializer=plan.choose(by_keras, by_numpy, by_tensorflow))
    )


@feature()
def a_regularizer(plan: Plan) -> None:
    def of_squares(weight: Any) -> Any:
        return 1e-2 * ops.sum(ops.square(weight))

    slot = plan.choose("kernel_regularizer", "bias_regularizer")
    plan.layers.append(layers.Dense(5, **{slot: of_squares}))


@feature()
def a_regularizer_of_outputs(plan: Plan) -> None:
    def by_sum(x: Any) -> Any:
        return 1e-2 * ops.sum(ops.square(x))

    def by_mean(x: Any) -> Any:
        return 1e-1 * ops.mean(ops.abs(x))

    def by_spread(x: Any) -> Any:
        return 1e-1 * spread(x)

    plan.layers.append(
        layers.Dense(5, activity_regularizer=plan.choose(by_sum, by_mean, by_spread, "l1"))
    )


# Functions that `compile` is given


def of_each_row(y: Any, outputs: Any) -> Any:
    return ops.sum(ops.square(outputs - one_hot(y)), axis=-1)


def mean_over_all(y: Any, outputs: Any) -> Any:
    return ops.mean(ops.square(outputs - one_hot(y)))


def root_of_the_mean(y: Any, outputs: Any) -> Any:
    return ops.sqrt(ops.mean(ops.square(outputs - one_hot(y))))


def ratio(y: Any, outputs: Any) -> Any:
    return ops.sum(ops.square(outputs - one_hot(y))) / (1 + ops.sum(ops.abs(outputs)))


def hardest_half(y: Any, outputs: Any) -> Any:
    losses = cross_entropy(y, outputs)
    return tf.reduce_mean(tf.sort(losses)[tf.shape(losses)[0] // 2 :])


def against_the_mean(y: Any, outputs: Any) -> Any:
    losses = cross_entropy(y, outputs)
    return losses * tf.stop_gradient(losses / tf.reduce_mean(losses))


def in_its_batch(y: Any, outputs: Any) -> Any:
    scores = ops.matmul(outputs, ops.transpose(outputs))
    return keras.losses.sparse_categorical_crossentropy(
        ops.arange(ops.shape(scores)[0]), scores, from_logits=True
    )


OF_LOSSES = (
    *(of_each_row, mean_over_all, root_of_the_mean, ratio, hardest_half),
    *(against_the_mean, in_its_batch),
)


@feature("loss")
def a_loss_function(plan: Plan) -> None:
    plan.compiled["loss"] = plan.choose(*OF_LOSSES)


@feature("loss")
def a_class_of_losses(plan: Plan) -> None:
    function = plan.choose(*OF_LOSSES)

    class OwnLoss(keras.losses.Loss):  # type: ignore[misc]
        def call(self, y: Any, outputs: Any) -> Any:
            return function(y, outputs)

    reduction = plan.choose("sum_over_batch_size", "sum", "mean_with_sample_weight")
    plan.compiled["loss"] = OwnLoss(reduction=reduction)


@feature("loss")
def a_loss_that_keeps_a_mean(plan: Plan) -> None:
    class Centred(keras.losses.Loss):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.mean = tf.Variable(1.0, trainable=False, dtype=tf.float64)

        def call(self, y: Any, outputs: Any) -> Any:
            losses = cross_entropy(y, outputs)
            self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(losses))
            return losses / tf.stop_gradient(tf.convert_to_tensor(self.mean))

    plan.compiled["loss"] = Centred()


@feature("metrics")
def a_metric_function(plan: Plan) -> None:
    slot = plan.choose("metrics", "weighted_metrics")
    functions = OF_LOSSES if slot == "metrics" else OF_LOSSES[:1]
    plan.compiled[slot] = [plan.choose(*functions)]


@feature("metrics")
def a_class_of_metrics(plan: Plan) -> None:
    function = plan.choose(*OF_LOSSES)

    class Sum(keras.metrics.Metric):  # type: ignore[misc]
        """Adds up over batches, in a weight of Keras or in a variable of TensorFlow."""

        def __init__(self, by_keras: bool) -> None:
            super().__init__(name="own")
            of_keras = self.add_weight(name="total", initializer="zeros") if by_keras else None
            self.total = of_keras or tf.Variable(0.0, trainable=False, dtype=tf.float64)

        def update_state(self, y: Any, outputs: Any, sample_weight: Any = None) -> None:
            self.total.assign_add(ops.mean(function(y, outputs)))

        def result(self) -> Any:
            return self.total + 0.0

        def reset_state(self) -> None:
            self.total.assign(0.0)

    plan.compiled["metrics"] = [Sum(plan.choose(True, False))]


@feature("metrics")
def a_mean_of_a_function(plan: Plan) -> None:
    plan.compiled["metrics"] = [
        keras.metrics.MeanMetricWrapper(plan.choose(*OF_LOSSES), name="wrapped")
    ]


@feature("metrics")
def a_metric_of_python(plan: Plan) -> None:
    def by_numpy(y: Any, outputs: Any) -> Any:
        values = tf.numpy_function(
            lambda y, outputs: np.sort(outputs[:, 0]).cumsum(), [y, outputs], tf.float64
        )
        return tf.ensure_shape(values, [None])

    plan.compiled["metrics"] = [by_numpy]


# What updates


@feature("optimizer")
def a_schedule(plan: Plan) -> None:
    class Warm(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
        def __call__(self, step: Any) -> Any:
            return tf.cond(step < 3, lambda: 0.02 * (number(step) + 1), lambda: number(0.05))

    rate = tf.Variable(0.05, trainable=False, dtype=tf.float64)

    def of_a_variable() -> Any:
        return rate * 1.0

    plan.compiled["optimizer"] = keras.optimizers.SGD(
        {
            "warm": Warm(),
            "variable": of_a_variable,
            "cosine": keras.optimizers.schedules.CosineDecay(0.1, 8),
        }[plan.choose("warm", "variable", "cosine")]
    )


@feature("optimizer")
def an_optimizer(plan: Plan) -> None:
    def plainly(self: Any, gradient: Any, variable: Any, rate: Any) -> None:
        variable.assign_sub(rate * gradient)

    def by_its_norm(self: Any, gradient: Any, variable: Any, rate: Any) -> None:
        variable.assign(variable - rate * gradient / (0.1 + tf.norm(gradient)))

    def by_numpy(self: Any, gradient: Any, variable: Any, rate: Any) -> None:
        change = tf.numpy_function(np.tanh, [gradient], tf.float64)
        variable.assign_sub(rate * tf.reshape(change, variable.shape))

    def by_the_count(self: Any, gradient: Any, variable: Any, rate: Any) -> None:
        scale = tf.cond(self.iterations % 2 == 0, lambda: number(1.0), lambda: number(0.5))
        variable.assign_sub(rate * scale * gradient)

    kind = type(
        "Own",
        (keras.optimizers.Optimizer,),
        {"update_step": plan.choose(plainly, by_its_norm, by_numpy, by_the_count)},
    )
    plan.compiled["optimizer"] = kind(0.05)


@feature("optimizer")
def an_optimizer_with_noise(plan: Plan) -> None:
    class Noisy(keras.optimizers.SGD):  # type: ignore[misc]
        def update_step(self, gradient: Any, variable: Any, rate: Any) -> None:
            noise = tf.random.normal(tf.shape(gradient), stddev=0.1, dtype=tf.float64)
            super().update_step(gradient + noise, variable, rate)

    plan.draws = True
    plan.compiled["optimizer"] = Noisy(0.05)


@feature("optimizer")
def an_optimizer_with_a_slot(plan: Plan) -> None:
    class Lion(keras.optimizers.Optimizer):  # type: ignore[misc]
        def build(self, variables: Any) -> None:
            super().build(variables)
            self.slots = [self.add_variable_from_reference(v, "slot") for v in variables]

        def update_step(self, gradient: Any, variable: Any, rate: Any) -> None:
            slot = self.slots[self._get_variable_index(variable)]
            slot.assign(0.9 * slot + 0.1 * gradient)
            variable.assign_sub(rate * tf.tanh(20 * slot))

    plan.compiled["optimizer"] = Lion(0.05)
