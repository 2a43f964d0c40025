"""A check of lesson 05: predict the time of a step from its parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Close, Cost, Fault, Inputs, Plain, Then

_CASES = ("FILE", "DATA")


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    workers, at_once = int(draw.choice([2, 4, 8])), int(draw.choice([2, 3]))
    share = int(draw.choice([5, 7, 11]))  # never a multiple of `at_once`
    read_ms = float(draw.choice([1.5, 2.0, 3.0]))
    fast = math.ceil(share / at_once) * read_ms
    slow = math.ceil(share * workers / at_once) * read_ms
    # Longer than the input of a share, and shorter than that of a whole batch.
    return {
        "read_ms": read_ms,
        "compute_ms": round(float(draw.uniform(1.1 * fast, 0.9 * slow)), 2),
        "global_batch": share * workers,
        "workers": workers,
        "at_once": at_once,
    }


def _call(step_ms: Callable[..., Any], inputs: Inputs) -> Plain:
    names = ("read_ms", "compute_ms", "global_batch", "workers")
    fixed = [inputs[name] for name in names]
    return {
        "ahead": [step_ms(*fixed, policy, inputs["at_once"], True) for policy in _CASES],
        "in turns": [step_ms(*fixed, policy, inputs["at_once"], False) for policy in _CASES],
    }


def _reference(
    given: Inputs,
    *,
    ahead: Callable[..., float] = max,
    in_turns: Callable[..., float] = lambda a, b: a + b,
    shares: tuple[str, ...] = ("FILE",),
    rounds: Callable[[int, int], float] = lambda calls, at_once: math.ceil(calls / at_once),
) -> Plain:
    """The input of a worker's examples, in rounds of calls, joined with the computation."""

    def joined(join: Callable[..., float]) -> list[float]:
        times = []
        for policy in _CASES:
            calls = given["global_batch"] // (given["workers"] if policy in shares else 1)
            read_ms = rounds(calls, given["at_once"]) * given["read_ms"]
            times.append(join(read_ms, given["compute_ms"]))
        return times

    return {"ahead": joined(ahead), "in turns": joined(in_turns)}


PREDICT = Check(
    name="predict_step",
    function="step_ms",
    title="The time of a step, from its parts",
    question="How many examples does one worker read for a step, and what happens meanwhile?",
    direction=(
        "Compute the time of the input alone first. Then ask how it is joined with the time of the "
        "computation."
    ),
    cost=Cost.PURE,
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=(
        Close("in turns", "nothing is read ahead: FILE, then DATA", atol=1e-6, points=1),
        Then(Close("ahead", "batches are read ahead: FILE, then DATA", atol=1e-6, points=2)),
    ),
    hint="Examples: global_batch / workers under FILE, global_batch under DATA. Rounds: examples / "
    "at_once, rounded up. Input: rounds times read_ms. Then the larger of input and computation, "
    "or their sum.",
    revisit="A step has two parts",
    mistakes=(
        Fault("data_shares_work", shares=_CASES).feedback(
            "Under DATA your worker reads only its share of a batch. So your prediction is too "
            "short if reading is slow. What does a worker do with the examples that it drops?"
        ),
        Fault("one_call_at_a_time", rounds=lambda calls, at_once: calls).feedback(
            "You added up the time of all calls, as if each waited for the one before it. How many "
            "rounds of calls does a batch need if several run at once?"
        ),
        Fault("part_of_a_round", rounds=lambda calls, at_once: calls / at_once).feedback(
            "You divided the calls and kept the fraction. The last round may have fewer calls, but "
            "it takes as long as any other. How many whole rounds does the batch need?"
        ),
        Fault("always_ahead", in_turns=max).feedback(
            "You took the larger of the two times even if nothing is read ahead. Who works on the "
            "next batch while the step computes?"
        ),
        Fault(
            "prefetch_hides_input", sees=("in turns", "ahead"), ahead=lambda read, compute: compute
        ).feedback(
            "You left out the input if batches are read ahead. That is right only while the input "
            "is the shorter part. How long does a step take if reading a batch takes longer than "
            "computing it?"
        ),
    ),
)
