"""A check of lesson 13: alpha and beta from some all-reduces, tested on others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Close, Cost, Fault, Form, Inputs, Plain, Then

_KEYS = ("latency_ms", "ms_per_mb", "largest_error")


def _points(sizes: list[float], times: Any) -> list[tuple[float, float]]:
    return [(size, round(float(time), 3)) for size, time in zip(sizes, times, strict=True)]


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    known, unseen = [0.1, 1.0, 4.0, 16.0, 32.0], [2.0, 8.0, 64.0]
    alpha, beta = draw.uniform(1, 3), draw.uniform(0.4, 2)

    def times(sizes: list[float], latency: float, noise: float) -> Any:
        exact = latency + beta * np.array(sizes)
        return exact * draw.uniform(1 - noise, 1 + noise, size=len(sizes))

    # Large messages that are slower than the line of the small ones push alpha below 0.
    bent = np.array([0.04, 0.4, 1.5, 9.0, 22.0]) * beta
    return {
        "usual": [_points(known, times(known, alpha, 0.04)),
                  _points(unseen, times(unseen, alpha, 0.15))],
        "bent": [_points(known, bent), _points(unseen, times(unseen, 0.0, 0.15) * 0.6)],
    }  # fmt: skip


def _call(fit_and_test: Callable[..., Any], inputs: Inputs) -> Plain:
    answers = {case: fit_and_test(*points) for case, points in inputs.items()}
    if not all(isinstance(line, dict) and set(_KEYS) <= set(line) for line in answers.values()):
        return {"form": next(iter(answers.values()))}
    (usual, usual_error), (bent, bent_error) = (
        ([line["latency_ms"], line["ms_per_mb"]], line["largest_error"])
        for line in answers.values()
    )
    return {"line": usual, "error": usual_error, "bent": bent, "bent_error": bent_error}


def _line(points: Any, *, below_0: str) -> tuple[float, float]:
    """Alpha and beta by least squares; what becomes of an alpha below 0 is an argument."""
    sizes, times = np.array(points).T
    beta, alpha = np.polyfit(sizes, times, 1)
    if alpha < 0 and below_0 == "fitted again":
        return 0.0, float(sizes @ times / (sizes @ sizes))
    return (0.0 if alpha < 0 and below_0 == "cut" else float(alpha)), float(beta)


def _reference(
    given: Inputs,
    *,
    below_0: str = "fitted again",
    fitted: Callable[[Any, Any], Any] = lambda known, unseen: known,
    tested: Callable[[Any, Any], Any] = lambda known, unseen: unseen,
    error: Callable[[Any, Any], Any] = lambda predicted, measured: abs(predicted / measured - 1),
) -> Plain:
    def answer(known: Any, unseen: Any) -> tuple[list[float], float]:
        alpha, beta = _line(fitted(known, unseen), below_0=below_0)
        sizes, times = np.array(tested(known, unseen)).T
        return [alpha, beta], float(np.max(error(alpha + beta * sizes, times)))

    (usual, usual_error), (bent, bent_error) = answer(*given["usual"]), answer(*given["bent"])
    return {"line": usual, "error": usual_error, "bent": bent, "bent_error": bent_error}


ALPHA_BETA = Check(
    name="fit_link",
    function="fit_and_test",
    title="Alpha and beta, tested on sizes that were not fitted",
    question="Which of the points decide your line, and which decide whether you may trust it?",
    direction=(
        "Separate three steps: a line through `known`, what it says of `unseen`, and how far that "
        "is from what was measured. What does an alpha below 0 say of a message of 0 bytes?"
    ),
    cost=Cost.PURE,
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=(
        Form(
            "a dictionary with " + ", ".join(_KEYS),
            lambda given, out: "form" not in out,
            key="form",
        ),
        Close("line", "alpha and beta", atol=1e-4, points=1),
        Close("error", "the largest relative error on the unseen sizes", atol=1e-4, points=1),
        Then(
            Close("bent", "alpha and beta where the best line starts below 0", atol=1e-4, points=1)
        ),
    ),
    hint="`beta, alpha = np.polyfit(sizes, times, 1)`. If alpha is below 0, take 0, and "
    "`beta = sizes @ times / (sizes @ sizes)`. The error is "
    "`abs((alpha + beta * sizes) / times - 1).max()` over `unseen`.",
    revisit='"Two numbers for every size" in lesson 13',
    mistakes=(
        Fault("tested_on_fitted_points", tested=lambda known, unseen: known).feedback(
            "You computed the error on the points through which you laid the line. A line always "
            "looks good there, and would even if it were wrong for all other sizes. Which points "
            "can surprise it?"
        ),
        Fault("fitted_to_all_points", fitted=lambda known, unseen: [*known, *unseen]).feedback(
            "You fitted the line to `unseen` as well, so nothing was left to test it. What must "
            "your line not know before it is tested?"
        ),
        Fault("negative_alpha", below_0="kept").feedback(
            "One of your alphas is below 0: by your line a small message arrives before it is "
            "sent. What is the smallest value that a latency can have, and which line is the best "
            "one then?"
        ),
        Fault("alpha_cut_off", below_0="cut").feedback(
            "You set an alpha below 0 to 0 and kept the beta that belonged to it. This line is "
            "above most of the points. Which beta is the best one if alpha is 0?"
        ),
        Fault(
            "signed_error",
            error=lambda predicted, measured: predicted / measured - 1,
        )
        .or_with(error=lambda predicted, measured: 1 - predicted / measured)
        .feedback(
            "You took the largest of errors that have a sign, so a prediction that is far too "
            "small looks better than a good one. What do errors of -30 % and +30 % have in common?"
        ),
    ),
)
