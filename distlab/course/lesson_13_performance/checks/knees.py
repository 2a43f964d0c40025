"""A check of lesson 13: on how many replicas a step is fastest, in strong scaling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Close, Cost, Equal, Fault, Form, Inputs, Plain

_COUNTS = [2**power for power in range(13)]


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    return {
        "compute_ms": round(float(draw.uniform(250, 500)), 1),
        "latency_ms": round(float(draw.uniform(0.01, 0.04)), 3),
        "gradient_mb": round(float(draw.uniform(40, 120)), 1),
        "mb_per_ms": round(float(draw.uniform(8, 12)), 2),
        "counts": _COUNTS,
    }


def _cases(given: Inputs) -> dict[str, Inputs]:
    # Ten times the gradients and a tenth of the compute: every all-reduce costs more than it saves.
    large = {"compute_ms": given["compute_ms"] / 10, "gradient_mb": given["gradient_mb"] * 10}
    return {"usual": given, "large": {**given, **large}}


def _call(fastest: Callable[..., Any], inputs: Inputs) -> Plain:
    answers = {case: fastest(**given) for case, given in _cases(inputs).items()}
    if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in answers.values()):
        return {"form": answers["usual"]}
    return {
        f"{column} {case}": answer[place]
        for case, answer in answers.items()
        for place, column in enumerate(("replicas", "ms"))
    }


def _ring_mb(replicas: int, gradient_mb: float) -> float:
    return 2 * (replicas - 1) / replicas * gradient_mb


def _reference(
    given: Inputs,
    *,
    rounds: Callable[[int], float] = lambda replicas: 2 * (replicas - 1),
    moved: Callable[[int, float], float] = _ring_mb,
) -> Plain:
    def fastest(case: Inputs) -> tuple[int, float]:
        def step_ms(replicas: int) -> float:
            latency = rounds(replicas) * case["latency_ms"]
            transfer = moved(replicas, case["gradient_mb"]) / case["mb_per_ms"]
            return float(case["compute_ms"] / replicas + latency + transfer)

        best = min(case["counts"], key=step_ms)
        return best, step_ms(best)

    return {
        f"{column} {name}": fastest(case)[place]
        for name, case in _cases(given).items()
        for place, column in enumerate(("replicas", "ms"))
    }


KNEE = Check(
    name="predict_knee",
    function="fastest",
    title="The number of replicas with the fastest step",
    question="Which part of a step shrinks with more replicas, which grows, and which stays?",
    direction=(
        "Write down the step on 1 replica, on 2 and on 4,096, part by part. What must the "
        "communication be on 1 replica?"
    ),
    cost=Cost.PURE,
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=(
        Form(
            "two values: the number of replicas, and the milliseconds of its step",
            lambda given, out: "form" not in out,
            key="form",
        ),
        Equal("replicas usual", "the number of replicas", points=1),
        Close("ms usual", "the milliseconds of its step", atol=1e-4, points=1),
        Equal("replicas large", "the same with large gradients and little compute", points=0.5),
        Close("ms large", "and the milliseconds of that step", atol=1e-4, points=0.5),
    ),
    hint="For n replicas: compute_ms / n + 2 * (n - 1) * latency_ms + 2 * (n - 1) / n * "
    "gradient_mb / mb_per_ms. `min(counts, key=...)` finds the smallest.",
    revisit='"From two cores to 4,096 GPUs" in lesson 13',
    mistakes=(
        Fault("latency_ignored", rounds=lambda replicas: 0).feedback(
            "Your step only gets shorter with more replicas, so you chose the most. The bytes of a "
            "ring hardly grow, but something else does. How many rounds does a ring with n "
            "replicas have, and what does each cost?"
        ),
        Fault("n_times_bytes", moved=lambda replicas, size: replicas * size)
        .or_with(moved=lambda replicas, size: (replicas - 1) * size)
        .or_with(moved=lambda replicas, size: 2 * (replicas - 1) * size)
        .feedback(
            "Your communication moves all gradients of all replicas through one link, so it grows "
            "with their number. A ring cuts the gradients into pieces. How many bytes does one "
            "link carry on 2 replicas, and how many on 4,096?"
        ),
        Fault(
            "half_of_the_ring",
            rounds=lambda replicas: replicas - 1,
            moved=lambda replicas, size: (replicas - 1) / replicas * size,
        ).feedback(
            "You counted one half of the all-reduce. After the reduce-scatter each replica has the "
            "sum of one piece only. What must follow?"
        ),
        Fault("one_latency", rounds=lambda replicas: min(1, replicas - 1))
        .or_with(rounds=lambda replicas: 2 * min(1, replicas - 1))
        .feedback(
            "You added the latency once for the whole all-reduce. A message goes from neighbour to "
            "neighbour, and each round waits for the one before. How many rounds are there?"
        ),
    ),
)
