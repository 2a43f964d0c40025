"""What leaves a layer by another way than as tensors that its call returns."""

from __future__ import annotations

import collections
import dataclasses
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from keras import layers, ops

from tools.step_features.plan import (
    CLASSES,
    Moment,
    Plan,
    feature,
    mean_square,
    number,
    own_layer,
    spread,
)


def entropy(attention: Any) -> Any:
    """A number of which rows have parts, and one that is no sum over rows."""
    means = tf.reduce_mean(attention, 0)
    return tf.reduce_mean(attention * tf.math.log(attention)) + tf.reduce_sum(means * means)


# Where a layer keeps a tensor, and how the step finds it.


def in_an_attribute(layer: Any, kept: Any) -> None:
    layer.kept = kept


def in_a_new_list(layer: Any, kept: Any) -> None:
    layer.kept_list = [kept]


def in_the_list_of_a_layer(layer: Any, kept: Any) -> None:
    layer.all_kept.append(kept)


def in_a_dictionary(layer: Any, kept: Any) -> None:
    layer.by_name["attention"] = kept


def in_an_object(layer: Any, kept: Any) -> None:
    layer.box.kept = kept


def in_an_attribute_as_an_object(layer: Any, kept: Any) -> None:
    layer.record = types.SimpleNamespace(attention=kept)


WAYS: tuple[tuple[Callable[..., None], Callable[[Any], Any]], ...] = (
    (in_an_attribute, lambda layer: layer.kept),
    (in_a_new_list, lambda layer: layer.kept_list[0]),
    (in_the_list_of_a_layer, lambda layer: layer.all_kept[-1]),
    (in_a_dictionary, lambda layer: layer.by_name["attention"]),
    (in_an_object, lambda layer: layer.box.kept),
    (in_an_attribute_as_an_object, lambda layer: layer.record.attention),
)


def attention_that_is_kept(plan: Plan) -> tuple[Any, Callable[[], Any]]:
    """A layer that keeps its attention, and what finds it."""
    keep, find = plan.draw.choice(WAYS)
    plan.notes.append(keep.__name__)
    beneath = layers.Dense(5)

    def call(self: Any, x: Any) -> Any:
        attention = ops.softmax(self.score(x))
        keep(self, attention)
        return ops.concatenate([x * attention, x], -1)

    layer = own_layer(
        call, score=beneath, all_kept=[], by_name={}, box=types.SimpleNamespace(kept=None)
    )
    return layer, lambda: find(layer)


@feature()
def the_entropy_of_what_a_layer_keeps(plan: Plan) -> None:
    layer, kept = attention_that_is_kept(plan)
    plan.layers += [layers.Dense(5), layer]
    plan.losses.append(lambda now: 0.1 * entropy(kept()))


@feature()
def the_mean_of_what_a_layer_keeps(plan: Plan) -> None:
    layer, kept = attention_that_is_kept(plan)
    plan.layers += [layers.Dense(5), layer]
    plan.logs["kept"] = lambda now: tf.reduce_max(kept())


@feature("metrics of the model")
def a_metric_of_what_a_layer_keeps(plan: Plan) -> None:
    layer, kept = attention_that_is_kept(plan)
    plan.layers += [layers.Dense(5), layer]
    metric = keras.metrics.Mean(name="of_kept")

    def update(now: Moment) -> Any:
        metric.update_state(tf.reduce_sum(kept() ** 2, -1))
        return metric.result()

    plan.logs["of_kept"] = update


@feature()
def a_list_around_the_model(plan: Plan) -> None:
    """A hook: layers append to a list of which they are no owner."""
    collected: list[Any] = []

    def call(self: Any, x: Any) -> Any:
        collected.append(x)
        return x

    plan.layers += [own_layer(call), layers.Dense(5, "tanh"), own_layer(call)]

    def loss(now: Moment) -> Any:
        first, second = collected[-2:]
        collected.clear()
        return 0.1 * (spread(first) + spread(second))

    plan.losses.append(loss)


@feature()
def an_activation_that_keeps_its_input(plan: Plan) -> None:
    box = types.SimpleNamespace()

    def activation(x: Any) -> Any:
        box.before = x
        return ops.tanh(x)

    plan.layers.append(layers.Dense(5, activation=activation))
    plan.losses.append(lambda now: 0.1 * spread(box.before))


@feature()
def a_model_that_keeps_its_features(plan: Plan) -> None:
    hidden = plan.call_beside(layers.Dense(3, "tanh"))

    def call(self: Any, x: Any, training: bool = False) -> Any:
        outputs = self.body(x, training=training)
        self.features = hidden(outputs)
        return outputs

    plan.methods["call"] = call
    plan.losses.append(lambda now: 0.1 * spread(now.model.features))


@feature("loss")
def a_loss_that_keeps_the_values_of_rows(plan: Plan) -> None:
    class Keeping(keras.losses.Loss):  # type: ignore[misc]
        def call(self, y: Any, outputs: Any) -> Any:
            self.values = keras.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True)
            return self.values

    loss = plan.compiled["loss"] = Keeping()
    plan.logs["hardest"] = lambda now: tf.reduce_max(loss.values)


@feature()
def a_size_that_a_layer_keeps(plan: Plan) -> None:
    def call(self: Any, x: Any) -> Any:
        self.rows = tf.shape(x)[0]
        return x

    layer = own_layer(call)
    plan.layers.append(layer)
    plan.losses.append(lambda now: tf.reduce_sum(now.outputs**2) / number(layer.rows) / 10)


@feature()
def a_tensor_that_a_tensor_carries(plan: Plan) -> None:
    """As Keras keeps masks and logits with a tensor."""

    def call(self: Any, x: Any) -> Any:
        result = self.dense(x)
        result.hidden = ops.tanh(x)
        return result

    layer = plan.call_beside(own_layer(call, dense=layers.Dense(3)))
    plan.losses.append(lambda now: spread(layer(now.outputs).hidden))


@feature()
def a_gradient_of_what_a_layer_keeps(plan: Plan) -> None:
    layer, kept = attention_that_is_kept(plan)
    plan.layers += [layers.Dense(5), layer]

    def loss(now: Moment) -> Any:
        with tf.GradientTape() as tape:
            outputs = now.model(now.x)
            total = mean_square(outputs)
        return tf.reduce_sum(tape.gradient(total, kept()) ** 2)

    plan.losses.append(loss)


# Containers


@dataclasses.dataclass
class Record:
    first: Any
    second: Any


class Plain:
    def __init__(self, first: Any, second: Any) -> None:
        self.first, self.second = first, second


class WithSlots:
    __slots__ = ("first", "second")

    def __init__(self, first: Any, second: Any) -> None:
        self.first, self.second = first, second


class Named(NamedTuple):
    first: Any
    second: Any


class Extension(tf.experimental.ExtensionType):  # type: ignore[misc]
    first: tf.Tensor
    second: tf.Tensor


class Output(collections.OrderedDict[str, Any]):
    """As the ModelOutput of transformers: a dictionary with attributes."""

    def __init__(self, first: Any, second: Any) -> None:
        super().__init__(first=first, second=second)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def as_a_dictionary(first: Any, second: Any) -> Any:
    return {"first": first, "second": second}


def as_nested_lists(first: Any, second: Any) -> Any:
    return [first, {"more": [second, None]}]


def as_a_function(first: Any, second: Any) -> Any:
    return lambda: (first, second)


def as_a_generator(first: Any, second: Any) -> Any:
    return (each for each in (first, second))


def _parts(made: Any) -> tuple[Any, Any]:
    if callable(made):
        made = made()
    if hasattr(made, "first"):
        return made.first, made.second
    if isinstance(made, dict):
        return made["first"], made["second"]
    first, second = made
    return first, second["more"][0] if isinstance(second, dict) else second


@feature()
def a_container(plan: Plan) -> None:
    make = plan.choose(
        *(Record, Plain, WithSlots, Named, Extension, Output, types.SimpleNamespace),
        *(as_a_dictionary, as_nested_lists, as_a_function, as_a_generator),
    )

    def call(self: Any, x: Any) -> Any:
        parts = {"first": self.dense(x), "second": ops.tanh(x)}
        return make(**parts)

    layer = plan.call_beside(own_layer(call, dense=layers.Dense(3)))

    def loss(now: Moment) -> Any:
        first, second = _parts(layer(now.outputs))
        return mean_square(first) + spread(second)

    plan.losses.append(loss)


@feature()
def a_container_given_to_a_layer(plan: Plan) -> None:
    make = plan.choose(Record, Named, Extension, as_a_dictionary, types.SimpleNamespace)
    function = plan.choose(ops.tanh, less_the_mean)

    def call(self: Any, x: Any, made: Any) -> Any:
        first, second = _parts(made)
        return function(first) * second * x

    layer = plan.call_beside(own_layer(call))

    def loss(now: Moment) -> Any:
        made = make(first=tf.tanh(now.outputs), second=now.outputs**2)
        return spread(layer(now.outputs, made=made))

    plan.losses.append(loss)


def less_the_mean(x: Any) -> Any:
    return x - ops.mean(x, axis=0)


@feature()
def an_output_that_is_no_dense_tensor(plan: Plan) -> None:
    def ragged(x: Any) -> Any:
        return tf.RaggedTensor.from_row_lengths(
            tf.reshape(x, [-1]), tf.fill(tf.shape(x)[:1], CLASSES)
        )

    def sparse(x: Any) -> Any:
        return tf.sparse.from_dense(tf.nn.relu(x))

    def strings(x: Any) -> Any:
        return tf.strings.as_string(tf.cast(x > 0, tf.int32))

    def booleans(x: Any) -> Any:
        return x > 0

    def array(x: Any) -> Any:
        return tf.TensorArray(tf.float64, 1).write(0, x)

    def read(made: Any) -> Any:
        if isinstance(made, tf.TensorArray):
            return made.stack()
        if isinstance(made, tf.RaggedTensor):
            return made.to_tensor()
        if isinstance(made, tf.SparseTensor):
            return tf.sparse.to_dense(made)
        if made.dtype == tf.string:
            return tf.strings.to_number(made, tf.float64)
        return number(made)

    function = plan.choose(ragged, sparse, strings, booleans, array)
    layer = plan.call_beside(own_layer(lambda self, x: function(x)))
    plan.losses.append(lambda now: 0.1 * spread(now.outputs * read(layer(now.outputs))))
