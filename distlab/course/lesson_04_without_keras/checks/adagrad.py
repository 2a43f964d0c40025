"""A check of lesson 04: Adagrad with a limit; both must come after the all-reduce."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Close, Cost, Fault, Inputs, Plain
from distlab.course.lesson_04_without_keras.checks.hand_written import (
    copies_of,
    made,
    on_replicas,
    to_all,
)
from distlab.course.runs.replicas import MOST_REPLICAS

_RATE, _LIMIT, _STEPS = 0.1, 1.0, 2


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    # For each step and weight a sum within or beyond the limit, cut into parts that disagree.
    sums = draw.choice([0.3, 0.6, 1.8, 2.5], size=(_STEPS, 5)) * draw.choice([-1, 1], size=5)
    parts = draw.normal(0, 1.5, size=(_STEPS, MOST_REPLICAS, 5))
    parts += (sums - parts.sum(axis=1))[:, None] / MOST_REPLICAS
    return {
        "weight": draw.normal(size=5).astype("float32"),
        "total": draw.uniform(0.5, 1, size=5).astype("float32"),
        "parts": parts.astype("float32"),
    }


def _call(adagrad_step: Callable[..., Any], inputs: Inputs) -> Plain:
    variables = made(inputs["weight"], inputs["total"])
    for parts in inputs["parts"]:
        on_replicas(lambda *given: adagrad_step(*given, _RATE, _LIMIT), variables, parts)
    return dict(zip(("weight", "total"), map(copies_of, variables), strict=True))


def _sum(parts: Any) -> Any:
    return to_all(parts.sum(axis=0))


def _clip(gradient: Any) -> Any:
    return np.clip(gradient, -_LIMIT, _LIMIT)


def _same(values: Any) -> Any:
    return values


def _reference(
    given: Inputs,
    *,
    before: Callable[[Any], Any] = _same,
    reduce: Callable[[Any], Any] = _sum,
    clip: Callable[[Any], Any] = _clip,
    squares: Callable[[Any, Any], Any] = lambda gradient, parts: gradient**2,
    change: Callable[[Any], Any] = _same,
) -> Plain:
    """All copies after the steps; each argument is one part of the step."""
    weight, total = (np.array(to_all(given[key]), "float64") for key in ("weight", "total"))
    for parts in given["parts"].astype("float64"):
        gradient = clip(reduce(before(parts)))
        total = total + squares(gradient, parts)
        weight -= change(_RATE * gradient / np.sqrt(total))
    return {"weight": weight, "total": total}


ADAGRAD = Check(
    name="adagrad_step",
    title="Adagrad with a limit, by hand",
    question="Which of the three lines of Adagrad would give something different for a part?",
    direction="Find the first line that is not linear. What must be complete before it runs?",
    cost=Cost.TENSORFLOW,
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=(
        Close("weight", "the weight in every copy after two steps", atol=1e-5, points=2),
        Close("total", "the total of squares in every copy after two steps", atol=1e-4, points=1),
    ),
    hint='gradient = context.all_reduce("SUM", gradient), and then the three lines of one device.',
    revisit='"An optimizer with a memory" in lesson 04',
    mistakes=(
        Fault("no_all_reduce", reduce=_same).feedback(
            "Each replica took its own part for the whole gradient, so every copy went its own "
            "way. What turns the four parts into the gradient of one device?"
        ),
        Fault("clipped_before_reduce", before=_clip, clip=_same)
        .or_with(before=_clip)
        .feedback(
            "You limited each replica's part and then added up. Parts that would cancel are cut "
            "first, so the sum is a different one. Which number should stay within the limit?"
        ),
        Fault("state_before_reduce", squares=lambda gradient, parts: (parts**2).sum(axis=0))
        .or_with(squares=lambda gradient, parts: (_clip(parts) ** 2).sum(axis=0))
        .or_with(squares=lambda gradient, parts: parts**2)
        .or_with(squares=lambda gradient, parts: _clip(parts) ** 2)
        .feedback(
            "The total collected the squares of the parts. The square of a sum is not the sum of "
            "the squares, so each step has the wrong length. Which gradient does one device "
            "square?"
        ),
        Fault("changes_reduced", reduce=_same, change=_sum)
        .or_with(reduce=_same, change=lambda each: to_all(each.mean(axis=0)))
        .feedback(
            "Each replica ran Adagrad on its own part, and you combined the changes. The weights "
            "are equal and wrong, and the totals differ between the copies. Which lines of "
            "Adagrad treat a part differently from the sum?"
        ),
        Fault("mean_for_sum", reduce=lambda parts: to_all(parts.mean(axis=0))).feedback(
            "You took the mean of the parts, which is a quarter of the gradient. The task says "
            "what gives the gradient of one device. Which reduction is it?"
        ),
    ),
)
