"""A check of lesson 04: local SGD, which averages the copies in some steps only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Close, Cost, Fault, Inputs, Plain, Then
from distlab.course.lesson_04_without_keras.checks.hand_written import (
    copies_of,
    made,
    on_replicas,
    to_all,
)
from distlab.course.runs.replicas import MOST_REPLICAS

_RATE, _STEPS = 0.5, 7


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    return {
        "every": 2 + seed % 2,
        "weight": draw.normal(size=3).astype("float32"),
        "gradients": draw.normal(size=(_STEPS, MOST_REPLICAS, 3)).astype("float32"),
    }


def _call(local_step: Callable[..., Any], inputs: Inputs) -> Plain:
    def copies_by(every: int, steps: int) -> Plain:
        (weight,) = made(inputs["weight"])
        after_steps = []
        for step, parts in enumerate(inputs["gradients"][:steps], 1):
            on_replicas(
                lambda *given, at=step: local_step(*given, _RATE, at, every), [weight], parts
            )
            after_steps.append(copies_of(weight))
        return np.stack(after_steps)

    return {"copies": copies_by(inputs["every"], _STEPS), "always": copies_by(1, 2)}


def _mean(copies: Any) -> Any:
    return to_all(copies.mean(axis=0))


def _reference(
    given: Inputs,
    *,
    averages: Callable[[int, int], bool] = lambda step, every: step % every == 0,
    combine: Callable[[Any], Any] = _mean,
    average_first: bool = False,
) -> Plain:
    """The copies [steps, replicas, 3] after each step."""

    def copies_by(every: int, steps: int) -> Any:
        copies, after_steps = np.array(to_all(given["weight"]), "float64"), []
        for step, gradient in enumerate(given["gradients"][:steps], 1):
            change = _RATE * gradient
            if not averages(step, every):
                copies = copies - change
            elif average_first:
                copies = combine(copies) - change
            else:
                copies = combine(copies - change)
            after_steps.append(copies)
        return np.stack(after_steps)

    return {"copies": copies_by(given["every"], _STEPS), "always": copies_by(1, 2)}


LOCAL = Check(
    name="local_step",
    title="Train apart, and average now and then",
    question="In which steps do your copies differ, and in which are they equal?",
    direction="First let every replica move on its own. Then ask whether this step ends a round.",
    cost=Cost.TENSORFLOW,
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=(
        Close("copies", "every copy after each of seven steps", atol=1e-5, points=2),
        Then(Close("always", "the same if every step ends in an average", atol=1e-5, points=1)),
    ),
    hint="Subtract first. Then, if step % every == 0, assign the MEAN all-reduce of "
    "weight.read_value().",
    revisit='"When would you do without Keras?" in lesson 04',
    mistakes=(
        Fault("averages_each_step", sees="copies", averages=lambda step, every: True).feedback(
            "After each step all your copies were equal: you averaged copies or gradients every "
            "time. That is right as SGD, and costs as many all-reduces. In which steps may the "
            "copies differ?"
        ),
        Fault("never_averages", averages=lambda step, every: False).feedback(
            "Your copies drifted apart and never came together. Four models were trained, each on "
            "a quarter of the data. What should happen in step `every`?"
        ),
        Fault("sum_of_copies", combine=lambda copies: to_all(copies.sum(axis=0))).feedback(
            "You replaced the copies by their sum, so every average made the weights about four "
            "times as large. Which reduction keeps four equal copies as they are?"
        ),
        Fault("averages_before_the_step", average_first=True).feedback(
            "You averaged first and subtracted afterwards, so the copies differ again at the end "
            "of the round. Which of the two comes last in the task?"
        ),
        Fault(
            "off_by_one", sees="copies", averages=lambda step, every: (step - 1) % every == 0
        ).feedback(
            "You averaged in steps 1, `every` + 1 and so on. Steps are counted from 1, so the "
            "first round has `every` steps. For which numbers is the remainder 0?"
        ),
    ),
)
