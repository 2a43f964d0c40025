"""A check of lesson 04: a step of linear regression on unequal and empty shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Close, Cost, Fault, Inputs, Plain, Raises, Then
from distlab.course.lesson_04_without_keras.checks.hand_written import (
    copies_of,
    made,
    on_replicas,
    to_all,
)

_RATE = 0.1


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)

    def shares(counts: Any) -> Any:
        return [
            draw.normal(size=(2, count)).astype("float32") for count in draw.permutation(counts)
        ]

    return {
        "slope": float(draw.normal()),
        "offset": float(draw.normal()),
        "full": shares([1, 2, 4, 7]),
        "with_empty": shares([0, 2, 3, 6]),
    }


def _call(sgd_step: Callable[..., Any], inputs: Inputs) -> Plain:
    def after(shares: Any) -> Plain:
        slope, offset = made(inputs["slope"], inputs["offset"])
        x, y = ([share[row] for share in shares] for row in (0, 1))
        on_replicas(lambda *given: sgd_step(*given, _RATE), (slope, offset), x, y)
        return np.stack([copies_of(slope), copies_of(offset)], axis=1)

    return {key: after(inputs[key]) for key in ("full", "with_empty")}


def _one_device(sums: Any, counts: Any) -> Any:
    return sums.sum(axis=0) / counts.sum()


def _reference(
    given: Inputs,
    *,
    gradient: Callable[[Any, Any], Any] = _one_device,
    of_nothing: float = 0.0,
) -> Plain:
    """The copies [replicas, 2] after a step; `gradient` combines sums [replicas, 2] and counts."""
    start = np.array([given["slope"], given["offset"]])

    def after(shares: Any) -> Any:
        counts = np.array([[share.shape[1]] for share in shares])
        errors = [start[0] * x + start[1] - y for x, y in shares]
        sums = [
            [2 * error @ share[0], 2 * error.sum()]
            for error, share in zip(errors, shares, strict=True)
        ]
        with np.errstate(divide="ignore", invalid="ignore"):
            combined = gradient(np.where(counts > 0, sums, of_nothing), counts)
        return to_all(start) - _RATE * combined

    return {key: after(given[key]) for key in ("full", "with_empty")}


def _combined(name: str, gradient: Callable[[Any, Any], Any]) -> Fault:
    return Fault(name, sees="full", gradient=gradient)


REGRESSION = Check(
    name="sgd_step",
    title="A step of linear regression by hand",
    question="Which sums over the global batch does one device need, and which part has a replica?",
    direction=(
        "Write the gradient of one device as a sum over examples divided by a count. Let the "
        "all-reduce carry both."
    ),
    cost=Cost.TENSORFLOW,
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=(
        Close("full", "slope and offset of every copy after a step", atol=1e-5, points=2),
        Then(Close("with_empty", "the same if a replica has no example", atol=1e-5, points=1)),
    ),
    hint='all_reduce("SUM", [sum by slope, sum by offset, number of examples]), then divide the '
    "two sums by the third.",
    revisit='"The line that was missing" in lesson 04',
    mistakes=(
        _combined("no_all_reduce", lambda sums, counts: sums / counts).feedback(
            "Each replica subtracted the gradient of its own examples from its own copy. The "
            "copies now differ, and nothing will bring them together. Which call lets a replica "
            "use what the others know?"
        ),
        _combined("mean_of_means", lambda sums, counts: (sums / counts).mean(axis=0)).feedback(
            "You averaged the replicas' means. The example that is alone on its replica counts "
            "seven times as much as each of seven. How much should one example count?"
        ),
        _combined("own_count", lambda sums, counts: sums.sum(axis=0) / counts).feedback(
            "You added up the gradients and divided by the replica's own number of examples, so "
            "each copy moved by a different amount. Whose examples does the sum contain?"
        ),
        Fault("nan_of_nothing", sees=("full", "with_empty"), of_nothing=np.nan).feedback(
            "Your step is right while every replica has an example. A replica without one took a "
            "mean over nothing, which is NaN, and the sum over the replicas is NaN, too. What is "
            "the sum over no examples?"
        ),
        Raises(
            "all_reduce_in_a_condition",
            "different number of replica_context|`merge_call` called while defining",
        ).feedback(
            "Your `if` keeps some replicas away from the all-reduce, and the others wait. What "
            "could a replica without examples add to the sum?"
        ),
    ),
)
