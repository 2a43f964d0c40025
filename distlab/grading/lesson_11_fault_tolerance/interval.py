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


def _young(inputs: Inputs, *, by_workers: bool = True, secs: float = 3600, twice: int = 2) -> int:
    between = inputs["watched_hours"] * secs / inputs["failures"]
    if by_workers:
        between *= inputs["watched_workers"] / inputs["workers"]
    best = math.sqrt(twice * float(np.mean(inputs["save_secs"])) * between)
    return max(1, round(best / float(inputs["step_secs"])))


def _interval_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    rows = [
        expect_close(name, yours=outputs[name], expected=_young(_changed(inputs, factors)), atol=1)
        for name, factors in _CHANGES.items()
    ]
    whole = all(isinstance(steps, int) for steps in outputs.values())
    return Verdict.of(
        *rows,
        expect_equal("at least every step", yours=outputs["steps that take longer"], expected=1),
        expect_true("whole numbers", whole, message="a number of steps is whole: int"),
    )


def _alike(name: str) -> Callable[[Inputs, Plain], bool]:
    return lambda _, outputs: abs(outputs[name] - outputs["as measured"]) <= 1


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
                "The failures were counted on other machines than those that will train. Each of "
                "them can fail: twice as many machines, twice as many failures.",
                when=_gives(by_workers=False),
            ),
            Mistake(
                "hours_for_seconds",
                "Hours and seconds are mixed: the watched time is given in hours.",
                when=_gives(secs=1),
            ),
            Mistake(
                "factor_two",
                "Nearly: a failure loses *half* an interval, so it is 2 * C * M under the root.",
                when=_gives(twice=1),
            ),
        ),
    ),
)
