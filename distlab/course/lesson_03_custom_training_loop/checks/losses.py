"""Checks of lesson 03: three losses to repair, and an exact mean over tokens."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distlab.batching import split_batch
from distlab.course.checks import Check, Close, Criterion, Fault, Gate, Inputs, Plain
from distlab.course.checks.shared_checks import softmax
from distlab.course.runs.replicas import MOST_REPLICAS, give_each, mirrored


def summed_gradient(loss_of: Callable[..., Any], weights: Any, arrays: tuple[Any, ...]) -> Any:
    """The sum over replicas of each replica's loss and gradients, as an optimizer sees it."""
    import tensorflow as tf

    strategy = mirrored(MOST_REPLICAS)
    piece = -(-len(arrays[0]) // MOST_REPLICAS)

    def part(array: Any) -> Any:
        starts = range(0, piece * MOST_REPLICAS, piece)
        return give_each(strategy, [tf.constant(array[at : at + piece]) for at in starts])

    def step(*parts: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = _scalar_loss(loss_of(*parts))
        return loss, tape.gradient(loss, weights, unconnected_gradients="zero")

    per_replica = strategy.run(step, args=tuple(part(array) for array in arrays))
    return tf.nest.map_structure(
        lambda value: strategy.reduce("SUM", value, axis=None).numpy(), per_replica
    )


def _scalar_loss(loss: Any) -> Any:
    """The loss of a replica; 0.0 of one without examples may be an ordinary number."""
    import tensorflow as tf

    if loss is None:
        raise TypeError("your function returned None: is there a `return`?")
    if isinstance(loss, (int, float)) and loss != 0:
        raise TypeError("your function returned a plain number, which has no gradient")
    loss = tf.convert_to_tensor(loss)
    if loss.shape.rank:
        shape = loss.shape.as_list()
        raise TypeError(f"a loss is one number, and yours has the shape {shape}: add it up")
    return loss


def one_device(counts: Any) -> Any:
    """The weight of each example on one device; `counts` is 0 where there is nothing to count."""
    return counts / counts.sum()


def own_mean(counts: Any) -> Any:
    """The weight of each example where replicas' means are added."""
    shares = split_batch(len(counts), MOST_REPLICAS)
    ends = np.cumsum(shares)
    sums = [counts[end - share : end].sum() for end, share in zip(ends, shares, strict=True)]
    columns = [1] * (counts.ndim - 1)
    return counts / np.repeat(sums, shares).astype("float64").reshape(-1, *columns)


def mean_of_means(counts: Any) -> Any:
    """The weight of each example where replicas' means are averaged."""
    return own_mean(counts) / MOST_REPLICAS


# --- repair_losses

_PENALTY = 0.1


def _repair_inputs(seed: int) -> Inputs:
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


def _repair_read(given: Inputs, outputs: Plain) -> Plain:
    """Takes the gradient apart: how often each of the three losses counts in it."""
    losses = _gradients_of_losses(given)
    total = np.concatenate([np.asarray(g, dtype="float64").ravel() for g in outputs["gradients"]])
    counts = np.linalg.lstsq(losses.T, total, rcond=None)[0]
    digit, odd, penalty = (round(float(count), 4) for count in counts)
    return {"digit": digit, "odd": odd, "penalty": penalty, "else": total - counts @ losses}


def _repair_reference(
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
    direction="For each loss, find every place that divides it: the loss function, your code, and "
    "the number of replicas.",
    inputs=_repair_inputs,
    call=_repair_call,
    read=_repair_read,
    reference=_repair_reference,
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
            "its steps are four times too short. One division is in your code: where is the other "
            "one?"
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

# --- exact_loss

_LENGTH = 4  # tokens of the longest sentence


def _exact_inputs(seed: int) -> Inputs:
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


def _exact_call(exact_loss: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    w = _three_weights()
    w.assign(inputs["w"])

    def loss_of(x: Any, y: Any, is_token: Any) -> Any:
        return exact_loss((tf.linalg.matvec(x, w) - y) ** 2, is_token)

    arrays = (inputs["x"], inputs["y"], inputs["is_token"])
    loss, gradient = summed_gradient(loss_of, w, arrays)
    return {"loss": loss, "gradient": gradient}


def _exact_reference(
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
    question="By what must the sum over all tokens be divided, and which replica knows that "
    "number?",
    direction="A replica knows its own sentences only. Find a way for every replica to learn how "
    "many tokens the whole batch has. What must happen to the losses at padding?",
    inputs=_exact_inputs,
    call=_exact_call,
    reference=_exact_reference,
    criteria=(
        Close("gradient", "the gradient, summed over replicas", atol=1e-4, points=1.5),
        Close("loss", "the loss, summed over replicas", atol=1e-4, points=1.5),
    ),
    hint="Multiply the losses by `is_token` and add them up. Divide by the tokens of all replicas: "
    'tf.distribute.get_replica_context().all_reduce("SUM", ...) of your own number of tokens.',
    revisit="A partial batch",
    mistakes=(
        Fault("nan_on_empty", sees=("gradient", "loss"), of_nothing=np.nan).feedback(
            "You took a mean on a replica that has no sentence. A mean of nothing is NaN, and the "
            "sum over the replicas is NaN, too. Which number can a replica without sentences give "
            "instead?"
        ),
        _weighs("mean_of_means", mean_of_means).feedback(
            "You averaged the replicas' means. A token then weighs more on a replica that has few "
            "of them. What would each replica have to know to give every token the same weight?"
        ),
        _weighs("own_mean", own_mean).feedback(
            "You took the mean over each replica's own tokens. The optimizer adds four such means, "
            "so the step is about four times too long. How many tokens are there on all replicas?"
        ),
        _weighs("counts_padding", lambda tokens: tokens / tokens.size).feedback(
            "You left out the losses at padding, and still counted their positions. The loss "
            "becomes smaller the more padding there is. Which positions should the divisor count?"
        ),
    ),
)
