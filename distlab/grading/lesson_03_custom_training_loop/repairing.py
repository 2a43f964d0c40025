"""A check of lesson 03: repair three losses."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_close
from distlab.grading.lesson_03_custom_training_loop.gradients import (
    softmax,
    summed_gradient,
)
from distlab.grading.replicas import MOST_REPLICAS, mirrored

_PENALTY = 0.1
_PARTS = ("the digit loss counts", "the odd loss counts", "the penalty counts")


def _repair_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    examples = int(draw.choice([8, 12, 16]))
    return {
        "x": draw.normal(size=(examples, 5)).astype("float32"),
        "y": draw.integers(0, 3, size=examples).astype("int32"),
        "weights": [
            draw.normal(size=shape).astype("float32") for shape in ((5, 4), (4, 3), (4, 1))
        ],
    }


@functools.cache
def _two_heads() -> Any:
    import keras

    with mirrored(MOST_REPLICAS).scope():
        inputs = keras.Input((5,))
        penalty = keras.regularizers.L2(_PENALTY)
        body = keras.layers.Dense(4, use_bias=False, kernel_regularizer=penalty)(inputs)
        heads = [keras.layers.Dense(units, use_bias=False)(body) for units in (3, 1)]
        return keras.Model(inputs, heads)


def _repair_call(replica_loss: Callable[..., Any], inputs: Inputs) -> Plain:
    model = _two_heads()
    model.set_weights(inputs["weights"])
    count = len(inputs["y"])
    _, gradients = summed_gradient(
        lambda x, y: replica_loss(model, x, y, count),
        model.trainable_variables,
        (inputs["x"], inputs["y"]),
    )
    return {"gradients": gradients}


def _repair_parts(inputs: Inputs) -> Any:
    """One device's gradient of each of the three losses, as the rows of an array."""
    x, y = inputs["x"].astype("float64"), inputs["y"]
    body, digit, odd = (weight.astype("float64") for weight in inputs["weights"])
    hidden = x @ body
    to_digit = (softmax(hidden @ digit) - np.eye(3)[y]) / len(y)
    to_odd = (1 / (1 + np.exp(-hidden @ odd)) - (y % 2)[:, None]) / len(y)
    parts = (
        (x.T @ to_digit @ digit.T, hidden.T @ to_digit, 0 * odd),
        (x.T @ to_odd @ odd.T, 0 * digit, hidden.T @ to_odd),
        (2 * _PENALTY * body, 0 * digit, 0 * odd),
    )
    return np.array([np.concatenate([array.ravel() for array in part]) for part in parts])


def _repair_factors(inputs: Inputs, outputs: Plain) -> tuple[Any, Any, Any]:
    """How often each loss counts in the answer's gradient, its gradient, and their mixture."""
    parts = _repair_parts(inputs)
    total = np.concatenate([np.asarray(g, dtype="float64").ravel() for g in outputs["gradients"]])
    factors = np.linalg.lstsq(parts.T, total, rcond=None)[0]
    return factors, total, factors @ parts


def _repair_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    factors, total, mixture = _repair_factors(inputs, outputs)
    if not np.allclose(total, mixture, atol=1e-4):
        expected = _repair_parts(inputs).sum(axis=0)
        return Verdict.of(
            expect_close(
                "the gradient, made of the three losses", yours=total, expected=expected, atol=1e-4
            )
        )
    return Verdict.of(
        *(
            expect_close(label, yours=round(float(factor), 4), expected=1.0, atol=1e-3)
            for label, factor in zip(_PARTS, factors, strict=True)
        )
    )


_BOTH, _PENALTIES = [0, 1], [2]  # places in _PARTS


def _counts(parts: list[int], factor: float | None) -> Callable[[Inputs, Plain], bool]:
    """Whether one of these losses counts so often; None is once for each example."""

    def when(inputs: Inputs, outputs: Plain) -> bool:
        factors, total, mixture = _repair_factors(inputs, outputs)
        wanted = len(inputs["y"]) if factor is None else factor
        return bool(np.allclose(total, mixture, atol=1e-4)) and bool(
            np.isclose(factors[parts], wanted, atol=1e-3).any()
        )

    return when


REPAIR = Check(
    name="repair_losses",
    function="replica_loss",
    title="Three losses, each scaled wrongly",
    points=3,
    inputs=_repair_inputs,
    call=_repair_call,
    judge=_repair_judge,
    hint="For each of the three ask: who divides here, by what, and is that all? A loss with "
    "the default reduction has been divided by the number of replicas already.",
    revisit="The question: divide by what?",
    mistakes=(
        Mistake(
            "divided_twice",
            "A loss that counts a quarter takes steps that are four times too short. Who else "
            "divides by the number of replicas?",
            when=_counts(_BOTH, 1 / MOST_REPLICAS),
        ),
        Mistake(
            "not_divided",
            "A loss that counts four times takes steps that are four times too long. A "
            "replica's mean divides by the examples of this replica only.",
            when=_counts(_BOTH, MOST_REPLICAS),
        ),
        Mistake(
            "summed_only",
            "A loss counts once for each example: it is a sum, and nobody divides it by "
            "`global_batch`.",
            when=_counts(_BOTH, None),
        ),
        Mistake(
            "l2_unscaled",
            "The penalty pulls four times too hard. Each replica computes the whole of it, "
            "and all are added.",
            when=_counts(_PENALTIES, MOST_REPLICAS),
        ),
        Mistake(
            "no_penalty",
            "The penalty is gone: what is in `model.losses` belongs to the loss.",
            when=_counts(_PENALTIES, 0),
        ),
    ),
)
