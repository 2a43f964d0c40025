"""A check of lesson 02: the learning rate of each step, as a Keras callback asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Close, Cost, Fault, Inputs, Plain, Then

_AFTER = 2  # epochs after the warm-up


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    first = round(float(draw.uniform(0.02, 0.1)), 3)
    return {
        "steps_per_epoch": int(draw.integers(4, 9)),
        "warmup_epochs": int(draw.integers(2, 5)),
        "first_rate": first,
        "full_rate": round(first * float(draw.uniform(4, 16)), 3),
    }


def _call(rate_at: Callable[..., Any], inputs: Inputs) -> Plain:
    def rates(given: Inputs) -> list[Any]:
        return [
            rate_at(epoch, batch, **given)
            for epoch in range(given["warmup_epochs"] + _AFTER)
            for batch in range(given["steps_per_epoch"])
        ]

    return {"rates": rates(inputs), "without": rates({**inputs, "warmup_epochs": 0})}


def _reference(
    given: Inputs,
    *,
    counted: Callable[[int, int, int], float] = lambda epoch, batch, per: epoch * per + batch,
    longer_by: int = 0,
    stops: bool = True,
) -> Plain:
    """The rate of each step for a climb with these properties."""
    per, first, full = given["steps_per_epoch"], given["first_rate"], given["full_rate"]
    steps = given["warmup_epochs"] * per + longer_by

    def rate(epoch: int, batch: int) -> float:
        part = counted(epoch, batch, per) / steps
        return float(first + (full - first) * (min(1.0, part) if stops else part))

    epochs = range(given["warmup_epochs"] + _AFTER)
    return {
        "rates": [rate(epoch, batch) for epoch in epochs for batch in range(per)],
        "without": [full] * (_AFTER * per),
    }


WARM_UP = Check(
    name="rate_at",
    title="The learning rate of each step of a warm-up",
    question="How many steps has the optimizer taken when this batch begins?",
    direction=(
        "Turn epoch and batch into one count of steps that never falls. Then say at which count "
        "the climb begins and at which it is over."
    ),
    cost=Cost.PURE,
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=(
        Close("rates", "the rate of each step, in all epochs", atol=1e-6, points=2),
        Then(Close("without", "the full rate if there is no warm-up", atol=1e-6, points=0.5)),
    ),
    hint="step = epoch * steps_per_epoch + batch; steps = warmup_epochs * steps_per_epoch. From "
    "step `steps` on return full_rate, before it first_rate + (full_rate - first_rate) * step / "
    "steps.",
    revisit='"Warm-up" in lesson 02',
    mistakes=(
        Fault("restarts_each_epoch", sees="rates", counted=lambda epoch, batch, per: batch)
        .or_with(counted=lambda epoch, batch, per: batch + 1)
        .feedback(
            "Your rate falls back at the beginning of each epoch, so the climb never gets to its "
            "end. Keras counts `batch` from 0 in every epoch. Which two arguments together say "
            "how far training is?"
        ),
        Fault(
            "off_by_one",
            sees="rates",
            counted=lambda epoch, batch, per: epoch * per + batch + 1,
        )
        .or_with(longer_by=-1)
        .or_with(longer_by=1)
        .or_with(
            counted=lambda epoch, batch, per: epoch * per + batch + 1,
            longer_by=1,
        )
        .feedback(
            "Your climb is one step too early, too late, too short or too long. In a short "
            "warm-up that changes every rate. Which rate has step 0, and what is the number of "
            "the first step after the climb?"
        ),
        Fault(
            "one_stair_an_epoch", sees="rates", counted=lambda epoch, batch, per: epoch * per
        ).feedback(
            "Your rate changes only between epochs. Each epoch then begins with a jump, which a "
            "gradual warm-up should avoid. What else do you know about the step, besides its "
            "epoch?"
        ),
        Fault("climbs_on", sees="rates", stops=False).feedback(
            "Your rate climbs on after the warm-up, past the full rate. Such a rate diverges "
            "sooner or later. What should be returned when the climb is over?"
        ),
    ),
)
