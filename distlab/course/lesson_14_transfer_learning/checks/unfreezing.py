"""A check of lesson 14: the upper layers of a trained model learn again, and nothing else moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import (
    Check,
    Close,
    Cost,
    Equal,
    Fault,
    Gate,
    Holds,
    Inputs,
    Observed,
    Plain,
    Then,
)
from distlab.course.runs.replicas import mirrored

_BLOCKS, _WIDTH, _CLASSES, _ROWS, _REPLICAS = 3, 4, 3, 6, 2


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    return {
        "first": int(draw.integers(2, _BLOCKS + 1)),
        "rate": float(draw.choice([0.002, 0.005, 0.01])),
        "images": draw.normal(0, 1, (_ROWS, _WIDTH)).astype("float32"),
        "labels": draw.integers(_CLASSES, size=_ROWS),
    }


def _call(unfreeze: Callable[..., Any], inputs: Inputs) -> Plain:
    model = _trained_head(inputs)
    unfreeze(model, f"block_{inputs['first']}", inputs["rate"])
    before = _weights(model)
    error = ""
    try:
        _fit(model, inputs)
    except ValueError as refused:
        error = str(refused).splitlines()[0][:200]
    names = [name for name, old in before.items() if old != _weights(model)[name]]
    return {
        "error": error,
        "kernels": [name for name in names if not name.startswith("norm")],
        "normalizations": [name for name in names if name.startswith("norm")],
        "rate": float(model.optimizer.learning_rate.numpy()),
    }


def _weights(model: Any) -> dict[str, Any]:
    """Each layer's weights, as lists: an array could share the memory of a variable."""
    return {
        layer.name: [weight.numpy().tolist() for weight in layer.weights] for layer in model.layers
    }


def _trained_head(inputs: Inputs) -> Any:
    """A model on two replicas, whose head has been trained for a step on a frozen body."""
    from distlab.training.distribute import distribute

    model = distribute(lambda: _frozen_body(inputs), mirrored(_REPLICAS))
    _fit(model, inputs)
    return model


def _frozen_body(inputs: Inputs) -> Any:
    import keras

    layers: list[Any] = [keras.Input((_WIDTH,))]
    for number in range(1, _BLOCKS + 1):
        layers.append(keras.layers.Dense(_WIDTH, "tanh", name=f"block_{number}"))
        layers.append(keras.layers.BatchNormalization(name=f"norm_{number}"))
    model = keras.Sequential([*layers, keras.layers.Dense(_CLASSES, name="head")])
    draw = np.random.default_rng(int(inputs["labels"].sum()))
    for weight in model.trainable_weights:
        weight.assign(draw.normal(0, 0.5, weight.shape))
    for layer in model.layers[:-1]:
        layer.trainable = False
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=False)
    return model


def _fit(model: Any, inputs: Inputs) -> None:
    model.fit(inputs["images"], inputs["labels"], batch_size=_ROWS, shuffle=False, verbose=0)


def _reference(
    given: Inputs,
    *,
    first: int | None = None,
    normalizations: str = "none",
    rate: float | None = None,
) -> Plain:
    first = given["first"] if first is None else first
    blocks = range(first, _BLOCKS + 1)
    norms = {"none": (), "upper": blocks, "all": range(1, _BLOCKS + 1)}[normalizations]
    return {
        "error": "",
        "kernels": [*(f"block_{number}" for number in blocks), "head"],
        "normalizations": [f"norm_{number}" for number in norms],
        "rate": given["rate"] if rate is None else rate,
    }


UNFREEZE = Check(
    name="unfreeze_from",
    title="The upper layers learn again",
    question="Which weights does the next call of `fit` change, and when was that decided?",
    direction=(
        "Check three things: which layers have `trainable = True`, what a BatchNormalization does "
        "in the next step, and whether `fit` has heard of the change."
    ),
    cost=Cost.TENSORFLOW,
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=(
        Gate(
            Holds(
                "the model can be trained again",
                lambda given, out: not out["error"],
                lambda given, out: f"`fit` raised an error: {out['error']}",
            )
        ),
        Equal("kernels", "the dense layers that the next step changes", points=2),
        Then(
            Equal("normalizations", "the BatchNormalizations that it changes", points=1),
            Close("rate", "the learning rate", atol=1e-6, points=1),
        ),
    ),
    hint="Walk through `model.layers` with a flag that becomes true at `first`. Set `trainable` of "
    "each layer to the flag, but to False for a BatchNormalization. Then call `model.compile` with "
    "a new optimizer and `model.loss`.",
    revisit='"Unfreeze the body" in lesson 14',
    mistakes=(
        Observed("same_optimizer", lambda given, out: "Unknown variable" in out["error"]).feedback(
            "You compiled the model with the optimizer that has trained the head. It has state "
            "for the head's weights only, so it refuses the others. Which optimizer knows nothing "
            "yet?"
        ),
        Fault("no_recompile", sees="kernels", first=_BLOCKS + 1).feedback(
            "You set the layers free, and only the head has moved. `fit` still runs the step that "
            "it traced before your change. Which call makes it trace a new one?"
        ),
        Fault("all_layers_unfrozen", sees="kernels", first=1).feedback(
            "You unfroze every layer, so the lowest layers move as well. They were meant to stay "
            "as the old data made them. From which layer on should the model learn?"
        ),
        Fault("bn_in_training_mode", sees="normalizations", normalizations="upper")
        .or_with(normalizations="all")
        .feedback(
            "You unfroze BatchNormalizations as well. They normalize with the few rows of a "
            "batch, and overwrite the statistics of the old data. How do you train the "
            "dense layers between them and keep these statistics?"
        ),
        Fault("same_lr", sees="rate", rate=0.1).feedback(
            "You kept the learning rate of the head. Its steps are large, for weights that start "
            "from random numbers. How large may a step be for weights that know something?"
        ),
    ),
)
