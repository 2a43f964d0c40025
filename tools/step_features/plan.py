"""A plan: the layers, the step, the callbacks and the hidden states that features put together.

@feature()
def a_second_data_set(plan: Plan) -> None:
    more = iter(tf.data.Dataset.range(1, 100))
    plan.losses.append(lambda now: tf.reduce_mean(now.outputs) / number(next(more)))

A feature is called in `build`, so what it makes is made where a user would make it.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops

CLASSES = 4
FEATURES: dict[str, Feature] = {}


@dataclasses.dataclass
class Moment:
    """What a step has at hand.

    Attributes:
        model: The model.
        x: What the step was given, rows first.
        y: Their classes.
        weights: Their weights, or None.
        outputs: What the model makes of them: a number for each class.
        tape: The step's gradient tape, None where Keras's own step runs.
    """

    model: Any
    x: Any
    y: Any
    weights: Any
    outputs: Any
    tape: Any = None


Part = Callable[[Moment], Any]


@dataclasses.dataclass
class Plan:
    """What features add to.

    Attributes:
        draw: Chooses among variants of a feature.
        layers: On [rows, numbers].
        sequence_layers: On [rows, steps, numbers]; if there are any, the inputs are sequences.
        beside: Layers that the step calls.
        losses: Each returns a number that is added to the loss.
        changes: Each gets the moment and the gradients, and returns gradients.
        logs: What a step of the model's own logs, by name.
        after: What a step of the model's own does when it has updated.
        learn: In the place of what takes the gradient of the loss and updates.
        methods: Methods of the model's class.
        callbacks: Keras's callbacks.
        compiled: Arguments of `compile`.
        kept: Hidden states, to be compared when the training is over.
        notes: The variants that were drawn.
        draws: Whether a feature draws by `tf.random`, so that one replica is the reference.
        is_symbolic: Whether the feature is about what TensorFlow traces, so that the reference is
            traced, too.
    """

    draw: random.Random
    layers: list[Any] = dataclasses.field(default_factory=list)
    sequence_layers: list[Any] = dataclasses.field(default_factory=list)
    beside: list[Any] = dataclasses.field(default_factory=list)
    losses: list[Part] = dataclasses.field(default_factory=list)
    changes: list[Callable[[Moment, list[Any]], list[Any]]] = dataclasses.field(
        default_factory=list
    )
    logs: dict[str, Part] = dataclasses.field(default_factory=dict)
    after: list[Part] = dataclasses.field(default_factory=list)
    learn: Callable[[Moment, Any], None] | None = None
    methods: dict[str, Any] = dataclasses.field(default_factory=dict)
    callbacks: list[keras.callbacks.Callback] = dataclasses.field(default_factory=list)
    compiled: dict[str, Any] = dataclasses.field(default_factory=dict)
    kept: dict[str, Callable[[], Any]] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    draws: bool = False
    is_symbolic: bool = False

    def choose(self, *variants: Any) -> Any:
        """Returns one of the variants, and notes its name."""
        chosen = self.draw.choice(variants)
        self.notes.append(str(getattr(chosen, "__name__", chosen)))
        return chosen

    def call_beside(self, layer: Any) -> Any:
        """Returns a layer that the step may call with outputs of the model, built for these."""
        for each in layer._flatten_layers(include_self=True):
            if not each.built:
                each.build((None, CLASSES))
        self.beside.append(layer)
        return layer

    def add_function(self, function: Callable[[Any], Any]) -> None:
        """Adds a layer of a function that keeps the shape and must not run for Keras's symbols."""
        self.layers.append(Own(function, keeps_shape=True))

    @property
    def has_own_step(self) -> bool:
        """Whether a feature needs a step that the model brings itself."""
        return bool(self.losses or self.changes or self.logs or self.after or self.learn)


@dataclasses.dataclass(frozen=True)
class Feature:
    """Something that people write.

    Attributes:
        add: Adds it to a plan.
        slot: What a plan has one of, such as a way to learn; no two features take it.
        kind: The module that has it.
    """

    add: Callable[[Plan], None]
    slot: str
    kind: str


def feature(slot: str = "") -> Callable[[Callable[[Plan], None]], Callable[[Plan], None]]:
    """Enters a function that adds to a plan into the table of features."""

    def enter(add: Callable[[Plan], None]) -> Callable[[Plan], None]:
        assert add.__name__ not in FEATURES, add.__name__
        FEATURES[add.__name__] = Feature(add, slot, add.__module__.rpartition(".")[2])
        return add

    return enter


class Drawn(keras.Model):  # type: ignore[misc]
    """A model around layers, in Keras's own step."""

    def __init__(self, plan: Plan, body: keras.Model) -> None:
        super().__init__()
        self.plan, self.body, self.beside = plan, body, list(plan.beside)

    def build(self, shape: Any) -> None:
        self.built = True

    def call(self, x: Any, training: bool = False) -> Any:
        return self.body(x, training=training)


class DrawnLoss(Drawn):
    """What features add to the loss is in `compute_loss`."""

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        now = Moment(self, x, y, sample_weight, y_pred)
        return sum((part(now) for part in self.plan.losses if training), start=loss)


class DrawnStep(Drawn):
    """What features add is in a step of the model's own."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            outputs = self(x, training=True)
            loss = self.compute_loss(x, y, outputs, weights)
            now = Moment(self, x, y, weights, outputs, tape)
            for part in self.plan.losses:
                loss += part(now)
        (self.plan.learn or learn)(now, loss)
        logs = {name: part(now) for name, part in self.plan.logs.items()}
        for part in self.plan.after:
            part(now)
        # A name of its own, since Keras logs its metrics where a step has no other names.
        metrics: dict[str, Any] = self.compute_metrics(x, y, outputs, weights)
        return metrics | {"last loss": loss} | logs


def learn(now: Moment, loss: Any) -> None:
    """Updates by the gradient of the loss, as features change it."""
    weights = now.model.trainable_variables
    pairs = zip(now.tape.gradient(loss, weights), weights, strict=True)
    gradients, weights = zip(*(pair for pair in pairs if pair[0] is not None), strict=True)
    for change in now.model.plan.changes:
        gradients = change(now, list(gradients))
    now.model.optimizer.apply(gradients, weights)


class Own(layers.Layer):  # type: ignore[misc]
    """A layer of the user's, whose call is a function; `keeps_shape` spares it a symbolic call."""

    def __init__(self, function: Callable[..., Any], *, keeps_shape: bool = False) -> None:
        super().__init__()
        self.function, self.keeps_shape = function, keeps_shape

    def call(self, x: Any) -> Any:
        return self.function(x)

    def compute_output_spec(self, x: Any) -> Any:
        if self.keeps_shape:
            return keras.KerasTensor(x.shape, x.dtype)
        return super().compute_output_spec(x)


def own_layer(call: Callable[..., Any], **attributes: Any) -> layers.Layer:
    """Returns a layer with this method `call`, and with attributes."""
    kind = type("Drawn", (layers.Layer,), {"call": call})
    layer = kind()
    for name, value in attributes.items():
        setattr(layer, name, value)
    return layer


def base(model: Any) -> Any:
    """The class of which a drawn model's is made, whose methods a drawn one may call."""
    return type(model).__mro__[1]


def number(value: Any) -> Any:
    """A tensor as float64."""
    return tf.cast(value, tf.float64)


def mean_square(x: Any) -> Any:
    """A number in which every row counts alike."""
    return tf.reduce_mean(tf.square(x))


def spread(x: Any) -> Any:
    """A number that is no mean over rows."""
    return tf.math.reduce_std(x) + tf.reduce_sum(tf.abs(tf.reduce_mean(x, 0)))


def cross_entropy(y: Any, outputs: Any) -> Any:
    """A loss for each row."""
    return keras.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True)


def one_hot(y: Any) -> Any:
    """Classes as rows of zeros and a one."""
    return ops.one_hot(ops.cast(ops.reshape(y, (-1,)), "int32"), CLASSES, dtype="float64")


partial = functools.partial
