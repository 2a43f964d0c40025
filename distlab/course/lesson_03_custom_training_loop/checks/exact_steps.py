"""A check of lesson 03: an exact loss where each example counts as many tokens as it has."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.batching import split_batch
from distlab.course.checks import Check, Close, Cost, Fault, Inputs, Plain
from distlab.course.lesson_03_custom_training_loop.checks.gradients import (
    mean_of_means,
    one_device,
    own_mean,
    summed_gradient,
)
from distlab.course.runs.replicas import MOST_REPLICAS, mirrored

_LENGTH = 4  # tokens of the longest sentence


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    sentences = (5, 10, 9, 13)[seed % 4]  # shared 2 2 1 0, 3 3 3 1, 3 3 3 0 and 4 4 4 1
    lengths = draw.permutation(np.resize([1, 4, 2, 3], sentences))
    return {
        "x": draw.normal(size=(sentences, _LENGTH, 3)).astype("float32"),
        "y": draw.normal(size=(sentences, _LENGTH)).astype("float32"),
        "is_token": (np.arange(_LENGTH) < lengths[:, None]).astype("float32"),
        "w": draw.normal(size=3).astype("float32"),
    }


@functools.cache
def _three_weights() -> Any:
    import tensorflow as tf

    with mirrored(MOST_REPLICAS).scope():
        return tf.Variable(tf.zeros(3))


def _call(exact_loss: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    w = _three_weights()
    w.assign(inputs["w"])

    def loss_of(x: Any, y: Any, is_token: Any) -> Any:
        return exact_loss((tf.linalg.matvec(x, w) - y) ** 2, is_token)

    arrays = (inputs["x"], inputs["y"], inputs["is_token"])
    loss, gradient = summed_gradient(loss_of, w, arrays)
    return {"loss": loss, "gradient": gradient}


def _reference(
    given: Inputs, *, weigh: Callable[[Any], Any] = one_device, of_nothing: float = 0.0
) -> Plain:
    """Loss and gradient; `of_nothing` is the loss of a replica that has no sentence."""
    error = given["x"] @ given["w"] - given["y"]
    weights = weigh(given["is_token"].astype("float64"))
    empty = split_batch(len(error), MOST_REPLICAS).count(0)
    loss = np.sum(weights * error**2) + (empty * of_nothing if empty else 0)
    gradient = np.einsum("ij,ijk->k", 2 * weights * error, given["x"])
    return {"loss": loss, "gradient": gradient}


def _weighs(name: str, weigh: Callable[[Any], Any]) -> Fault:
    """Such weights show in the gradient; the loss may also have a mean of nothing in it."""
    return Fault(name, sees="gradient", weigh=weigh)


EXACT = Check(
    name="exact_loss",
    title="The mean over the tokens of all replicas",
    question=(
        "By what must the sum over all tokens be divided, and which replica knows that number?"
    ),
    direction=(
        "A replica knows its own sentences only. Find a way for every replica to learn how many "
        "tokens the whole batch has. What must happen to the losses at padding?"
    ),
    cost=Cost.TENSORFLOW,
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=(
        Close("gradient", "the gradient, summed over replicas", atol=1e-4, points=1.5),
        Close("loss", "the loss, summed over replicas", atol=1e-4, points=1.5),
    ),
    hint="Multiply the losses by `is_token` and add them up. Divide by the tokens of all replicas: "
    'tf.distribute.get_replica_context().all_reduce("SUM", ...) of your own number of tokens.',
    revisit="A partial batch",
    mistakes=(
        Fault("nan_on_empty", sees=("gradient", "loss"), of_nothing=np.nan).feedback(
            "You took a mean on a replica that has no sentence. A mean of nothing is NaN, and "
            "the sum over the replicas is NaN, too. Which number can a replica without sentences "
            "give instead?"
        ),
        _weighs("mean_of_means", mean_of_means).feedback(
            "You averaged the replicas' means. A token then weighs more on a replica that has "
            "few of them. What would each replica have to know to give every token the same weight?"
        ),
        _weighs("own_mean", own_mean).feedback(
            "You took the mean over each replica's own tokens. The optimizer adds four such means, "
            "so the step is about four times too long. How many tokens are there on all replicas?"
        ),
        _weighs("counts_padding", lambda tokens: tokens / tokens.size).feedback(
            "You left out the losses at padding, and still counted their positions. The loss "
            "becomes smaller the more padding there is. Which positions should the divisor count?"
        ),
        _weighs(
            "counted_as_many_times", lambda tokens: MOST_REPLICAS * one_device(tokens)
        ).feedback(
            "Your loss is right but for a factor of four, the number of replicas. Either you "
            "divided by the mean of the replicas' counts, or you all-reduced the losses, which the "
            "optimizer then adds a second time. Which one number does the all-reduce need?"
        ),
    ),
)
