"""A check of lesson 13: the seconds of one step, on a device that computes while Python goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Close, Cost, Fault, Form, Inputs, Plain

_LAUNCH_SECS = 1e-5


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    return {
        "trace_secs": round(float(draw.uniform(1, 3)), 2),
        "step_secs": round(float(draw.uniform(0.01, 0.05)), 3),
        "calls": int(draw.integers(4, 12)),
    }


class _Device:
    """A device with a clock: a step returns when it is queued, and runs when the device is free."""

    def __init__(self, given: Inputs) -> None:
        self._trace, self._secs = given["trace_secs"], given["step_secs"]
        self._now, self._busy_until = 100.0, 0.0

    def step(self) -> None:
        self._now += _LAUNCH_SECS + self._trace
        self._trace = 0.0
        self._busy_until = max(self._now, self._busy_until) + self._secs

    def wait(self) -> None:
        self._now = max(self._now, self._busy_until)

    def clock(self) -> float:
        return self._now


def _call(secs_per_step: Callable[..., Any], inputs: Inputs) -> Plain:
    device = _Device(inputs)
    return {"secs": secs_per_step(device.step, device.wait, device.clock, inputs["calls"])}


def _reference(
    given: Inputs,
    *,
    traced: bool = False,
    waits: bool = True,
    steps_before: int = 0,
    divided: bool = True,
) -> Plain:
    """The seconds between two looks at the clock, by what happens between them."""
    calls = given["calls"]
    total = given["trace_secs"] * traced + calls * _LAUNCH_SECS
    if waits:
        total = given["trace_secs"] * traced + (calls + steps_before) * given["step_secs"]
    return {"secs": total / calls if divided else total}


TIMER = Check(
    name="step_timer",
    function="secs_per_step",
    title="The seconds of one step",
    question="What does the device do at each of the two moments at which you read the clock?",
    direction=(
        "Draw two lines of time, one for Python and one for the device. Mark the first step, the "
        "steps that count, and both readings of the clock."
    ),
    cost=Cost.PURE,
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=(
        Form(
            "a number of seconds",
            lambda given, out: isinstance(out["secs"], (int, float)),
            key="secs",
        ),
        # Waiting for each step, or once for all, differs by the time of a launch.
        Close("secs", "the mean seconds of one step", atol=1e-4, points=3),
    ),
    hint="Call step() once, and wait(). Read the clock, call step() `calls` times, wait(), and "
    "read the clock again. Divide by `calls`.",
    revisit='"A stopwatch" in lesson 13',
    mistakes=(
        Fault("includes_tracing", traced=True)
        .or_with(traced=True, waits=False)
        .feedback(
            "Your clock was running during the first call. That call also traces the function, "
            "which takes as long as many steps. When may the clock start?"
        ),
        Fault("no_sync", waits=False).feedback(
            "You read the clock when the last call returned. By then the device had only been "
            "given its work, so you timed how fast Python hands it over. How do you learn that "
            "the device is done?"
        ),
        Fault("counts_the_warm_up", steps_before=1)
        .or_with(steps_before=2)
        .or_with(steps_before=3)
        .feedback(
            "When you started the clock, the device was still busy with the calls before. Their "
            "time is in your result. What must come between the warm-up and the clock?"
        ),
        Fault("total_for_mean", divided=False).feedback(
            "You returned the seconds of all calls together, so the result grows with `calls`. "
            "How long did one step take?"
        ),
    ),
)
