"""Two checks of lesson 03: repair three losses, and take the exact step on a partial batch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.batching import split_batch
from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_close
from distlab.grading.lesson_03_custom_training_loop.gradients import (
    mean_of_means,
    one_device,
    share_of_each,
    softmax,
    summed_gradient,
)
from distlab.grading.replicas import MOST_REPLICAS, mirrored

# --- repair_losses --------------------------------------------------------------------------

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


def _counts(part: int, factor: float) -> Callable[[Inputs, Plain], bool]:
    def when(inputs: Inputs, outputs: Plain) -> bool:
        factors, total, mixture = _repair_factors(inputs, outputs)
        return bool(np.allclose(total, mixture, atol=1e-4)) and bool(
            np.isclose(factors[part], factor, atol=1e-3)
        )

    return when


# --- exact_loss -----------------------------------------------------------------------------

_NOMINAL = 16


def _exact_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    examples = (5, 10, 9, 13)[seed % 4]  # shared 2 2 1 0, 3 3 3 1, 3 3 3 0 and 4 4 4 1
    return {
        "x": draw.normal(size=(examples, 3)).astype("float32"),
        "y": draw.normal(size=examples).astype("float32"),
        "w": draw.normal(size=3).astype("float32"),
    }


@functools.cache
def _three_weights() -> Any:
    import tensorflow as tf

    with mirrored(MOST_REPLICAS).scope():
        return tf.Variable(tf.zeros(3))


def _exact_call(exact_loss: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    w = _three_weights()
    w.assign(inputs["w"])

    def loss_of(x: Any, y: Any) -> Any:
        return exact_loss((tf.linalg.matvec(x, w) - y) ** 2, _NOMINAL)

    loss, gradient = summed_gradient(loss_of, w, (inputs["x"], inputs["y"]))
    return {"loss": loss, "gradient": gradient}


def _weighted(inputs: Inputs, weight_of: Callable[[Any], Any]) -> Plain:
    """Loss and gradient when each example has the weight that is given its replica's share."""
    error = inputs["x"] @ inputs["w"] - inputs["y"]
    weights = weight_of(share_of_each(len(error)))
    return {
        "loss": np.sum(weights * error**2),
        "gradient": (2 * weights * error) @ inputs["x"],
    }


def _exact_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    right = _weighted(inputs, one_device)
    return Verdict.of(
        expect_close(
            "the gradient, summed over replicas",
            yours=outputs["gradient"],
            expected=right["gradient"],
            atol=1e-4,
        ),
        expect_close(
            "the loss, summed over replicas",
            yours=outputs["loss"],
            expected=right["loss"],
            atol=1e-4,
        ),
    )


def _is_mean_of_means(inputs: Inputs, outputs: Plain) -> bool:
    wrong = _weighted(inputs, mean_of_means)["gradient"]
    return _is_nan_on_empty(inputs, outputs) or np.allclose(outputs["gradient"], wrong, atol=1e-4)


def _is_nan_on_empty(inputs: Inputs, outputs: Plain) -> bool:
    empty = 0 in split_batch(len(inputs["y"]), MOST_REPLICAS)
    return empty and bool(np.isnan(outputs["loss"]))


LOSS_CHECKS = (
    Check(
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
                "The digit loss takes steps that are four times too short. Who else divides by "
                "the number of replicas?",
                when=_counts(0, 1 / MOST_REPLICAS),
            ),
            Mistake(
                "not_divided",
                "The odd loss takes steps that are four times too long. A replica's mean divides "
                "by the examples of this replica only.",
                when=_counts(1, MOST_REPLICAS),
            ),
            Mistake(
                "l2_unscaled",
                "The penalty pulls four times too hard. Each replica computes the whole of it, "
                "and all are added.",
                when=_counts(2, MOST_REPLICAS),
            ),
        ),
    ),
    Check(
        name="exact_loss",
        function="exact_loss",
        title="The exact step on a partial batch",
        points=3,
        inputs=_exact_inputs,
        call=_exact_call,
        judge=_exact_judge,
        hint="Each example weighs one over the number of examples in this batch. No replica "
        "knows that number: tf.distribute.get_replica_context().all_reduce adds what each has.",
        revisit="A partial batch",
        mistakes=(
            Mistake(
                "nominal_batch",
                "A partial batch has fewer examples than `batch_size` says: count them.",
                yields=lambda inputs: _weighted(
                    inputs, lambda share: np.full(len(share), 1 / _NOMINAL)
                ),
                atol=1e-4,
            ),
            Mistake(
                "nan_on_empty",
                "A replica may get no example at all, and a mean of nothing is NaN.",
                when=_is_nan_on_empty,
            ),
            Mistake(
                "mean_of_means",
                "A mean of each replica, over the number of replicas: an example weighs more "
                "where it has less company.",
                when=_is_mean_of_means,
            ),
        ),
    ),
)
