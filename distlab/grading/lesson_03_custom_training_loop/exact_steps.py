"""A check of lesson 03: the exact step on a partial batch."""

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
    summed_gradient,
)
from distlab.grading.replicas import MOST_REPLICAS, mirrored

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


def _weighs(weight_of: Callable[[Any], Any]) -> Callable[[Inputs, Plain], bool]:
    """Whether the gradient is that of such weights, or a mean of nothing came in between."""

    def when(inputs: Inputs, outputs: Plain) -> bool:
        wrong = _weighted(inputs, weight_of)["gradient"]
        found = np.allclose(outputs["gradient"], wrong, atol=1e-4)
        return found or _is_nan_on_empty(inputs, outputs)

    return when


def _is_nan_on_empty(inputs: Inputs, outputs: Plain) -> bool:
    empty = 0 in split_batch(len(inputs["y"]), MOST_REPLICAS)
    return empty and bool(np.isnan(outputs["loss"]))


EXACT = Check(
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
            when=_weighs(mean_of_means),
        ),
        Mistake(
            "own_mean",
            "Each replica takes the mean of its own examples, and four means are added.",
            when=_weighs(lambda share: 1 / share),
        ),
        Mistake(
            "counted_as_many_times",
            "As many times too much as there are replicas. Is the count a mean over them? Or "
            "are the losses added up here already? Only the count wants an all-reduce.",
            when=_weighs(lambda share: MOST_REPLICAS * one_device(share)),
        ),
        Mistake(
            "divided_twice",
            "The count is that of all replicas. Who divides by their number once more makes "
            "steps that are too short.",
            when=_weighs(lambda share: one_device(share) / MOST_REPLICAS),
        ),
        Mistake(
            "summed_only",
            "A sum over the examples grows with the batch. Divide it by how many there are.",
            when=_weighs(np.ones_like),
        ),
        Mistake(
            "python_number",
            "len(...) is an ordinary number, and all_reduce wants a tensor: tf.size of it, or "
            "tf.shape.",
            error="'(int|float)' object has no attribute 'dtype'",
        ),
        Mistake(
            "a_loss_for_each",
            "A replica's loss is one number. Add up what its examples have.",
            error="a loss is one number",
        ),
    ),
)
