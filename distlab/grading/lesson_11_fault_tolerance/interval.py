"""A check of lesson 11: how often to save, from what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_close, expect_equal, expect_true


def _interval_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    return {
        "save_secs": [round(float(secs), 2) for secs in draw.uniform(4, 40, size=5)],
        "step_secs": round(float(draw.uniform(0.2, 1.5)), 2),
        "failures": int(draw.integers(3, 12)),
        "watched_hours": int(draw.integers(100, 900)),
        "watched_workers": int(draw.integers(2, 9)),
        "workers": int(draw.integers(10, 40)),
    }


_CHANGES = {
    "as measured": {},
    "four times as many failures": {"failures": 4},
    "four times as many workers": {"workers": 4},
    "four times as many workers watched": {"watched_workers": 4},
}


def _changed(inputs: Inputs, factors: dict[str, int]) -> dict[str, Any]:
    return {name: value * factors.get(name, 1) for name, value in inputs.items()}


def _interval_call(save_every_steps: Callable[..., Any], inputs: Inputs) -> Plain:
    cases = {name: _changed(inputs, factors) for name, factors in _CHANGES.items()}
    found = {name: save_every_steps(**case) for name, case in cases.items()}
    quick = save_every_steps(**{**inputs, "step_secs": 1e6})
    return {**found, "steps that take longer": quick}


def _young(
    inputs: Inputs,
    *,
    by_workers: bool = True,
    secs: float = 3600,
    twice: int = 2,
    cost_of: Callable[[Any], Any] = np.mean,
    in_steps: Callable[[float, float], float] = lambda best, step_secs: best / step_secs,
) -> int:
    between = inputs["watched_hours"] * secs / inputs["failures"]
    if by_workers:
        between *= inputs["watched_workers"] / inputs["workers"]
    best = math.sqrt(twice * float(cost_of(inputs["save_secs"])) * between)
    return max(1, round(in_steps(best, float(inputs["step_secs"]))))


def _interval_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    rows = [
        expect_close(name, yours=outputs[name], expected=_young(_changed(inputs, factors)), atol=1)
        for name, factors in _CHANGES.items()
    ]
    if not any(row.passed for row in rows):
        return Verdict.of(*rows)  # a number without a reason may be a whole one, too
    others = [steps for steps in outputs.values() if not isinstance(steps, int)]
    return Verdict.of(
        *rows,
        expect_equal("at least every step", yours=outputs["steps that take longer"], expected=1),
        expect_true(
            "whole numbers",
            not others,
            message=f"a number of steps is an int; yours is {others[0] if others else 0!r}",
        ),
    )


def _alike(*names: str) -> Callable[[Inputs, Plain], bool]:
    """Whether the answer stays the same in one of these cases."""

    def when(_: Inputs, outputs: Plain) -> bool:
        measured = outputs["as measured"]
        return measured > 1 and any(abs(outputs[name] - measured) <= 1 for name in names)

    return when


def _more_seldom(name: str) -> Callable[[Inputs, Plain], bool]:
    return lambda _, outputs: bool(outputs[name] > outputs["as measured"] + 1)


def _gives(**how: Any) -> Callable[[Inputs, Plain], bool]:
    return lambda inputs, outputs: abs(outputs["as measured"] - _young(inputs, **how)) <= 1


INTERVAL_CHECKS = (
    Check(
        name="save_interval",
        function="save_every_steps",
        title="How often to save",
        points=2,
        inputs=_interval_inputs,
        call=_interval_call,
        judge=_interval_judge,
        hint="C is the mean of the measured saves. M: the machines that were watched failed once "
        "in watched_hours / failures; more machines fail more often. Then sqrt(2 * C * M), and how "
        "many steps that is.",
        revisit="How often to save",
        mistakes=(
            Mistake(
                "ignores_failure_rate",
                "It does not matter to your answer how often something fails. Where nothing fails, "
                "no checkpoint is worth its time.",
                when=_alike("four times as many failures"),
            ),
            Mistake(
                "ignores_workers",
                "The failures were counted on `watched_workers` machines, and `workers` will "
                "train. Each of them can fail: twice as many machines, twice as many failures.",
                when=_alike("four times as many workers", "four times as many workers watched"),
            ),
            Mistake(
                "upside_down",
                "With more failures you save more seldom. M is the time *between* two failures of "
                "the whole training: the more machines it runs on, the shorter.",
                when=lambda inputs, outputs: (
                    _more_seldom("four times as many failures")(inputs, outputs)
                    or _more_seldom("four times as many workers")(inputs, outputs)
                ),
            ),
            Mistake(
                "hours_for_seconds",
                "Hours and seconds are mixed: the watched time is given in hours.",
                when=lambda inputs, outputs: (
                    _gives(secs=1)(inputs, outputs) or _gives(secs=60)(inputs, outputs)
                ),
            ),
            Mistake(
                "seconds_for_steps",
                "The interval is right in seconds. How many steps is that, where one takes "
                "`step_secs`?",
                when=lambda inputs, outputs: (
                    _gives(in_steps=lambda best, _: best)(inputs, outputs)
                    or _gives(in_steps=lambda best, secs: best * secs)(inputs, outputs)
                ),
            ),
            Mistake(
                "no_root",
                "That is 2 * C * M by the time of a step: the root is missing.",
                when=_gives(in_steps=lambda best, secs: best * best / secs),
            ),
            Mistake(
                "not_the_mean",
                "C is the mean of the saves that were measured: not their sum, and none of them "
                "alone.",
                when=lambda inputs, outputs: any(
                    _gives(cost_of=cost)(inputs, outputs) for cost in (np.sum, max, min, np.median)
                ),
            ),
            Mistake(
                "factor_two",
                "Nearly: a failure loses *half* an interval, so it is 2 * C * M under the root.",
                when=_gives(twice=1),
            ),
        ),
    ),
)
