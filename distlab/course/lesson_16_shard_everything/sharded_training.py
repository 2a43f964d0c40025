"""Trains on replicas that keep whole weights, gradients and state, or only their own rows of them.

    model = TextModel(replicas=4)
    run = train(mirrored(4), model, Stage("ZeRO 1", update, divides=("state",)), Momentum(0.1))
    run.weights, run.losses, run.held, run.notes
    train_on_one(model, Momentum(0.1)).weights

A model is a list of layers. Each has one tensor of weights, whose rows can be divided. `update`
gets `(context, weight, gradient, state, step)`, where `step` is the optimizer's, on tensors of one
shape, and returns what the replica keeps of the new weight and of the new state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from distlab.course.runs.noted_collectives import Notes, own_rows
from distlab.course.runs.outcomes import quiet_tensorflow

PARTS = ("weights", "gradients", "state")


@dataclass(frozen=True)
class Momentum:
    """Gradient descent with momentum: one number of state for each weight."""

    rate: float
    slots: int = 1

    def __call__(self, weight: Any, gradient: Any, state: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Returns the new weight and state; all tensors have one shape."""
        velocity = 0.9 * state[0] + gradient
        return weight - self.rate * velocity, [velocity]


@dataclass(frozen=True)
class Adam:
    """Adam without its correction of the first steps: two numbers of state for each weight."""

    rate: float
    slots: int = 2

    def __call__(self, weight: Any, gradient: Any, state: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Returns the new weight and state; all tensors have one shape."""
        m = 0.9 * state[0] + 0.1 * gradient
        v = 0.999 * state[1] + 0.001 * gradient**2
        return weight - self.rate * m / (tf.sqrt(v) + 1e-3), [m, v]


def run_layer(context: Any, layer: Callable[..., Any], weight: Any, x: Any) -> Any:
    """Runs a layer on a weight that the replica keeps whole."""
    return layer(weight, x)


def keep_gradient(context: Any, gradient: Any) -> Any:
    """Keeps the gradient of a replica's own examples as it is."""
    return gradient


@dataclass(frozen=True)
class Stage:
    """How replicas share the work, as functions that run on each of them.

    Attributes:
        name: For outputs, as "ZeRO 1".
        update: `(context, weight, gradient, state, step)` to the new weight and state.
        divides: Of which parts a replica keeps only its own rows: "weights" and so on.
        collect: `(context, gradient)` to what is added to the kept gradient.
        forward: `(context, layer, weight, x)` to the layer's output.
    """

    name: str
    update: Callable[..., Any]
    divides: Sequence[str] = ()
    collect: Callable[..., Any] = keep_gradient
    forward: Callable[..., Any] = run_layer


@dataclass
class Run:
    """A training that is over.

    Attributes:
        losses: The loss of each step, over all examples.
        weights: The whole weight of each layer.
        held: Bytes that replica 0 keeps between two steps, by part.
        notes: The collectives of one step.
    """

    losses: list[float]
    weights: list[Any]
    held: dict[str, int] = field(default_factory=dict)
    notes: Notes = field(default_factory=Notes)


class TextModel:
    """The small transformer as a list of layers, each with all of its weights in one vector."""

    def __init__(self, *, replicas: int, micro_batches: int = 1) -> None:
        import keras

        from distlab.course.tiny_transformer import build_transformer, text_windows

        keras.utils.set_random_seed(0)
        inner = build_transformer(layers=1).layers[1:]
        groups = [*([layer] for layer in inner[:-2]), inner[-2:]]  # the last norm and the logits
        self.layers = [_flat(group) for group in groups]
        self.first = [
            np.concatenate([np.ravel(value) for layer in group for value in layer.get_weights()])
            for group in groups
        ]
        inputs, targets = next(iter(text_windows().batch(8)))
        # In float32: recompute_grad warns of whole numbers, and the first layer turns them back.
        tokens, self.examples = tf.cast(inputs, tf.float32), int(inputs.shape[0])
        shares = np.split(np.arange(self.examples), micro_batches)
        self.batches = [  # of each micro-batch, the examples of each replica
            [(tf.gather(tokens, own), tf.gather(targets, own)) for own in np.split(share, replicas)]
            for share in shares
        ]

    def loss(self, logits: Any, targets: Any) -> Any:
        """Returns a replica's part of the mean over all tokens."""
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
        return tf.reduce_sum(losses) / (self.examples * targets.shape[1])


def _flat(group: Sequence[Any]) -> Callable[..., Any]:
    """Returns a function of one vector of weights, and of what goes into the first layer."""
    shapes = [[tuple(variable.shape) for variable in layer.variables] for layer in group]

    def run(flat: Any, x: Any) -> Any:
        start = 0
        for layer, own_shapes in zip(group, shapes, strict=True):
            values = []
            for shape in own_shapes:
                size = int(np.prod(shape))
                values.append(tf.reshape(flat[start : start + size], shape))
                start += size
            x, _ = layer.stateless_call(values, [], x)
        return x

    return run


def train(strategy: Any, model: Any, stage: Stage, step: Any, *, steps: int = 3) -> Run:
    """Trains on all replicas of a strategy, and returns what replica 0 kept and sent.

    Args:
        strategy: Any synchronous strategy; it may have one replica on each of several workers.
        model: Its layers, their first weights, its batches and its loss, as in `TextModel`.
        stage: What is divided, and how.
        step: The optimizer's step.
        steps: How many to take, all with the same batch.
    """
    notes, replicas = Notes(), int(strategy.num_replicas_in_sync)
    devices = strategy.extended.worker_devices
    kept = [_Kept(model, stage, step, replicas, *place) for place in _places(strategy, devices)]
    by_index = {each.index: each for each in kept}
    layers = [notes.layer(layer) for layer in model.layers]

    def on_replica() -> Any:
        context = notes.context()
        index = int(tf.get_static_value(context.replica_id_in_sync_group))
        own, losses = by_index[index], list[Any]()
        for batch in model.batches:
            given = (stage, layers, own, batch[index], model.loss)
            losses.append(_accumulate(context, *given, is_first=not losses))
        _update(context, stage, step, own)
        return tf.distribute.get_replica_context().all_reduce("SUM", tf.add_n(losses))

    compiled = tf.function(lambda: strategy.run(on_replica))
    with quiet_tensorflow():  # each training traces its own step, and TensorFlow counts these
        losses = [float(strategy.experimental_local_results(compiled())[0]) for _ in range(steps)]
    return Run(losses, _whole(kept, stage), kept[0].held(), notes)


def train_on_one(model: Any, step: Any, *, steps: int = 3) -> Run:
    """Takes the steps of a single device, on whole batches."""
    weights = [tf.constant(value) for value in model.first]
    state = [[tf.zeros_like(value)] * step.slots for value in weights]
    losses = []
    for _ in range(steps):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            parts = [
                model.loss(_forward(model.layers, weights, x), y)
                for batch in model.batches
                for x, y in batch
            ]
            loss = tf.add_n(parts)
        losses.append(float(loss))
        gradients = tape.gradient(loss, weights)
        pairs = [step(*each) for each in zip(weights, gradients, state, strict=True)]
        weights, state = [list(each) for each in zip(*pairs, strict=True)]
    return Run(losses, [weight.numpy() for weight in weights])


def max_difference(run: Run, other: Run) -> float:
    """Returns how far any weight of two trainings is apart."""
    pairs = zip(run.weights, other.weights, strict=True)
    return max(float(np.abs(one - two).max()) for one, two in pairs)


def _forward(layers: Sequence[Any], weights: Sequence[Any], x: Any) -> Any:
    for layer, weight in zip(layers, weights, strict=True):
        x = layer(weight, x)
    return x


class _Kept:
    """The variables of one replica: weights, gradients and state, whole or its own rows."""

    def __init__(
        self, model: Any, stage: Stage, step: Any, replicas: int, index: int, device: str
    ) -> None:
        self.index = index

        def zeros(part: str) -> list[tf.Variable]:
            count = replicas if part in stage.divides else 1
            # One tensor of the whole part: where it's too large, that is found out at once.
            tf.zeros([sum(value.size for value in model.first) // count])
            shapes = [(len(value) // count, *value.shape[1:]) for value in model.first]
            return [tf.Variable(tf.zeros(shape)) for shape in shapes]

        with tf.device(device):
            self.weights = zeros("weights")
            for variable, value in zip(self.weights, model.first, strict=True):
                divided = "weights" in stage.divides
                variable.assign(own_rows(value, replicas, index) if divided else value)
            self.gradients = zeros("gradients")
            self.state = list(zip(*(zeros("state") for _ in range(step.slots)), strict=True))

    def held(self) -> dict[str, int]:
        """Returns the bytes of each part."""
        parts = (self.weights, self.gradients, tf.nest.flatten(self.state))
        sizes = [sum(4 * int(np.prod(each.shape)) for each in part) for part in parts]
        return dict(zip(PARTS, sizes, strict=True))


def _places(strategy: Any, devices: Sequence[str]) -> list[tuple[int, str]]:
    """Returns number and device of each replica in this process."""
    resolver = strategy.cluster_resolver
    first = resolver.task_id if resolver is not None and resolver.task_id is not None else 0
    return [(first + n, device) for n, device in enumerate(devices)]


def _accumulate(
    context: Any,
    stage: Stage,
    layers: Sequence[Any],
    own: _Kept,
    batch: Any,
    loss_of: Any,
    *,
    is_first: bool,
) -> Any:
    """Adds the gradients of a micro-batch to what the replica keeps, and returns its loss."""
    weights = [variable.read_value() for variable in own.weights]
    x, y = batch
    with tf.GradientTape() as tape:
        tape.watch(weights)
        for layer, weight in zip(layers, weights, strict=True):
            with tf.control_dependencies([x]):  # else all layers would be gathered at once
                weight = tf.identity(weight)
            x = stage.forward(context, layer, weight, x)
        loss = loss_of(x, y)
    for total, gradient in zip(own.gradients, tape.gradient(loss, weights), strict=True):
        own_part = stage.collect(context, gradient)
        total.assign(own_part) if is_first else total.assign_add(own_part)
    return loss


def _update(context: Any, stage: Stage, step: Any, own: _Kept) -> None:
    """Updates one layer after the other, so that only one needs room for new values."""
    done: list[Any] = []
    for weight, total, state in zip(own.weights, own.gradients, own.state, strict=True):
        with tf.control_dependencies(done):
            given = (weight.read_value(), total.read_value(), [each.read_value() for each in state])
            new_weight, new_state = stage.update(context, *given, step)
            done = [weight.assign(new_weight)]
            done += [each.assign(new) for each, new in zip(state, new_state, strict=True)]


def _whole(kept: Sequence[_Kept], stage: Stage) -> list[Any]:
    """Returns the weights of all replicas in this process, put together if they're divided."""
    if "weights" not in stage.divides:
        return [variable.numpy() for variable in kept[0].weights]
    rows = zip(*(each.weights for each in kept), strict=True)
    return [np.concatenate([variable.numpy() for variable in pieces]) for pieces in rows]


def bytes_per_weight(model: Any, stage: Stage, step: Any, replicas: int) -> float:
    """Returns the bytes that one of several replicas keeps, divided by the weights of the model."""
    held = _Kept(model, stage, step, replicas, 0, "CPU:0").held()
    return float(sum(held.values()) / sum(value.size for value in model.first))
