"""A check of lesson 03: repair three losses."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distlab.course.checks import Check, Close, Cost, Criterion, Fault, Gate, Inputs, Plain
from distlab.course.checks.shared_checks import softmax
from distlab.course.lesson_03_custom_training_loop.checks.gradients import summed_gradient
from distlab.course.runs.replicas import MOST_REPLICAS, mirrored

_PENALTY = 0.1


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    examples = int(draw.choice([8, 12, 20]))
    x = draw.normal(size=(examples, 5)).astype("float32")
    y = draw.integers(0, 3, size=examples).astype("int32")
    shapes = ((5, 4), (4, 3), (4, 1))
    return {"x": x, "y": y, "weights": [draw.normal(size=s).astype("float32") for s in shapes]}


@functools.cache
def _two_heads() -> Any:
    import keras

    with mirrored(MOST_REPLICAS).scope():
        inputs = keras.Input((5,))
        penalty = keras.regularizers.L2(_PENALTY)
        body = keras.layers.Dense(4, use_bias=False, kernel_regularizer=penalty)(inputs)
        heads = [keras.layers.Dense(units, use_bias=False)(body) for units in (3, 1)]
        return keras.Model(inputs, heads)


def _call(replica_loss: Callable[..., Any], inputs: Inputs) -> Plain:
    model = _two_heads()
    model.set_weights(inputs["weights"])
    count = len(inputs["y"])
    _, gradients = summed_gradient(
        lambda x, y: replica_loss(model, x, y, count),
        model.trainable_variables,
        (inputs["x"], inputs["y"]),
    )
    return {"gradients": gradients}


def _gradients_of_losses(given: Inputs) -> Any:
    """One device's gradient of each of the three losses, as the rows of an array."""
    x, y = given["x"].astype("float64"), given["y"]
    body, digit, odd = (weight.astype("float64") for weight in given["weights"])
    hidden = x @ body
    to_digit = (softmax(hidden @ digit) - np.eye(3)[y]) / len(y)
    to_odd = (1 / (1 + np.exp(-hidden @ odd)) - (y % 2)[:, None]) / len(y)
    losses = (
        (x.T @ to_digit @ digit.T, hidden.T @ to_digit, 0 * odd),
        (x.T @ to_odd @ odd.T, 0 * digit, hidden.T @ to_odd),
        (2 * _PENALTY * body, 0 * digit, 0 * odd),
    )
    return np.array([np.concatenate([array.ravel() for array in loss]) for loss in losses])


def _read(given: Inputs, outputs: Plain) -> Plain:
    """Takes the gradient apart: how often each of the three losses counts in it."""
    losses = _gradients_of_losses(given)
    total = np.concatenate([np.asarray(g, dtype="float64").ravel() for g in outputs["gradients"]])
    counts = np.linalg.lstsq(losses.T, total, rcond=None)[0]
    digit, odd, penalty = (round(float(count), 4) for count in counts)
    return {"digit": digit, "odd": odd, "penalty": penalty, "else": total - counts @ losses}


def _reference(
    given: Inputs,
    *,
    digit: float = 1.0,
    odd: float = 1.0,
    penalty: Callable[[int], float] = lambda examples: 1.0,
) -> Plain:
    """How often each loss counts."""
    nothing = np.zeros(sum(weight.size for weight in given["weights"]))
    factors = {"digit": digit, "odd": odd, "penalty": penalty(len(given["y"]))}
    return {**factors, "else": nothing}


_ASK_OTHERWISE = "what divides it, and how many replicas add the result?"
_ASK = {
    0.0: "it is missing: where does it enter the sum that you return?",
    1 / MOST_REPLICAS: "it counts a quarter: which two places divide by the number of replicas?",
    float(MOST_REPLICAS): "it counts four times: each replica adds how much of it?",
}


@dataclass(frozen=True)
class _Count(Close):
    """How often a loss counts; what is wrong is asked for this loss alone."""

    def compare(self, yours: Plain, expected: Plain) -> Criterion:
        """As for every number, with a question for a factor that has a known cause."""
        row = super().compare(yours, expected)
        known = (ask for factor, ask in _ASK.items() if self.agrees(yours, factor))
        return row if row.passed else replace(row, message=next(known, _ASK_OTHERWISE))


REPAIR = Check(
    name="repair_losses",
    function="replica_loss",
    title="Three losses, each scaled wrongly",
    question="How often does each of the three losses count in the sum over all replicas?",
    direction=(
        "For each loss, find every place that divides it: the loss function, your code, and the "
        "number of replicas."
    ),
    cost=Cost.TENSORFLOW,
    inputs=_inputs,
    call=_call,
    read=_read,
    reference=_reference,
    criteria=(
        Gate(Close("else", "the gradient has nothing but the three losses in it", atol=1e-4)),
        _Count("digit", "the digit loss counts once", atol=1e-3),
        _Count("odd", "the odd loss counts once", atol=1e-3),
        _Count("penalty", "the penalty counts once", atol=1e-3),
    ),
    hint="The digit loss is the mean over one replica's examples, and nothing divides it by the "
    "number of replicas. The odd loss is divided by `global_batch`, which is enough. Each replica "
    "adds the whole penalty. For a loss of examples, their sum divided by `global_batch` always "
    "works.",
    revisit="The right loss",
    mistakes=(
        Fault("divided_twice", digit=1 / MOST_REPLICAS).feedback(
            "Your digit loss is divided by the number of replicas twice. It counts a quarter, so "
            "its steps are four times too short. One division is in your code: where is the "
            "other one?"
        ),
        Fault("odd_divided_twice", odd=1 / MOST_REPLICAS).feedback(
            "Your odd loss is divided by `global_batch` and by the number of replicas as well. It "
            "counts a quarter. Which of the two divisions gives each example its weight?"
        ),
        Fault("digit_not_divided", digit=MOST_REPLICAS).feedback(
            "You took the mean over the replica's own examples for the digit loss. The optimizer "
            "adds four such means, so this loss counts four times. Which reduction divides by the "
            "number of replicas, and which one does not?"
        ),
        Fault("l2_unscaled", penalty=lambda examples: MOST_REPLICAS).feedback(
            "Every replica adds the whole penalty. It counts four times, and pulls the weights too "
            "hard towards zero. What part of it should each replica add?"
        ),
        Fault("l2_by_examples", penalty=lambda examples: MOST_REPLICAS / examples).feedback(
            "You divided the penalty by `global_batch`. The larger the batch, the weaker the "
            "penalty. Is it added once for each example, or once for each replica?"
        ),
    ),
)
