"""A check of lesson 11: how often to save, from what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from distlab.course.checks import (
    Check,
    Close,
    Cost,
    Equal,
    Fault,
    Holds,
    Inputs,
    Observed,
    Plain,
    Then,
)

_CHANGES = {
    "as measured": {},
    "four times as many failures": {"failures": 4},
    "four times as many workers": {"workers": 4},
    "four times as many workers watched": {"watched_workers": 4},
}
_QUICK = "steps that take longer"


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    save_secs = draw.uniform(4, 40, size=5) / [10, 1, 1, 1, 1]  # one is quick: no save is the mean
    return {
        "save_secs": [round(float(secs), 2) for secs in save_secs],
        "step_secs": round(float(draw.uniform(0.2, 1.5)), 2),
        "failures": int(draw.integers(3, 12)),
        "watched_hours": int(draw.integers(100, 900)),
        "watched_workers": int(draw.integers(2, 9)),
        "workers": int(draw.integers(10, 40)),
    }


def _cases(given: Inputs) -> dict[str, Inputs]:
    cases = {
        case: {name: value * factors.get(name, 1) for name, value in given.items()}
        for case, factors in _CHANGES.items()
    }
    return {**cases, _QUICK: {**given, "step_secs": 1e6}}


def _reference(
    given: Inputs,
    *,
    secs_per_hour: float = 3600,
    twice: int = 2,
    in_steps: Callable[[float, float], float] = lambda best, step_secs: best / step_secs,
) -> Plain:
    def steps(case: Inputs) -> int:
        hours = case["watched_hours"] / case["failures"]
        between = secs_per_hour * hours * case["watched_workers"] / case["workers"]
        best = math.sqrt(twice * float(np.mean(case["save_secs"])) * between)
        return max(1, round(in_steps(best, case["step_secs"])))

    return {name: steps(case) for name, case in _cases(given).items()}


class _Steps(Close):
    """A number of steps, rounded up or down."""

    def agrees(self, yours: Plain, other: Plain) -> bool:
        """Whether two numbers are one apart at most; for Close 1 is 100 % as well."""
        return bool(abs(yours - other) <= self.atol)


def _not_whole(out: Plain) -> list[Plain]:
    return [steps for steps in out.values() if not isinstance(steps, int)]


def _ignores_workers(given: Inputs, out: Plain) -> bool:
    measured, _, *of_workers = (out[case] for case in _CHANGES)
    return bool(measured > 1 and any(abs(steps - measured) <= 1 for steps in of_workers))


def _is_upside_down(given: Inputs, out: Plain) -> bool:
    measured, *of_more_failures, _ = (out[case] for case in _CHANGES)
    return any(steps > measured + 1 for steps in of_more_failures)


INTERVAL = Check(
    name="save_interval",
    function="save_every_steps",
    title="How often to save",
    question=(
        "What happens to the interval if a save takes four times as long, and if failures are four "
        "times as rare?"
    ),
    direction=(
        "Take the formula of the lesson apart: where do the cost of a save and the time between "
        "failures come from in your numbers?"
    ),
    cost=Cost.PURE,
    inputs=_inputs,
    call=lambda answer, inputs: {n: answer(**case) for n, case in _cases(inputs).items()},
    reference=_reference,
    criteria=(
        *(_Steps(case, case, points=0.5, atol=1) for case in _CHANGES),
        Then(
            Equal(_QUICK, "at least every step", points=0.5),
            Holds(
                "whole numbers",
                lambda given, out: not _not_whole(out),
                lambda given, out: f"a number of steps is an int; yours is {_not_whole(out)[0]!r}",
                points=0.5,
            ),
            after=any,  # a number without a reason may be a whole one, too
        ),
    ),
    hint="C is the mean of save_secs. M is watched_hours * 3600 / failures * "
    "watched_workers / workers. Then sqrt(2 * C * M) / step_secs, rounded, at least 1.",
    revisit="How often to save",
    mistakes=(
        Observed("ignores_workers", _ignores_workers).feedback(
            "Your answer does not use how many machines were watched, or how many will train. "
            "Each machine can fail, so twice as many fail twice as often. How do you get from "
            "the watched machines to yours?"
        ),
        Observed("upside_down", _is_upside_down).feedback(
            "You save less often when there are more failures. So you lose more work with each "
            "of them. Is M the number of failures, or the time between two of them?"
        ),
        Fault("hours_for_seconds", secs_per_hour=1)
        .or_with(secs_per_hour=60)
        .feedback(
            "You mixed hours and seconds: the watched time is given in hours, the cost of a "
            "save in seconds. So your interval is too short. Into which unit must both go?"
        ),
        Fault("seconds_for_steps", sees="as measured", in_steps=lambda best, _: best)
        .or_with(in_steps=lambda best, step_secs: best * step_secs)
        .feedback(
            "Your interval is right in seconds, but you returned it as a number of steps. If a "
            "step takes `step_secs`, how many steps fit into the interval?"
        ),
        Fault("factor_two", twice=1).feedback(
            "You left out the 2 under the root. A failure comes on average in the middle of an "
            "interval, so how much of the interval does it cost?"
        ),
    ),
)
