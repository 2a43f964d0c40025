"""A check of lesson 13: the efficiency of strong and of weak scaling, from measured times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.checks import Check, Close, Cost, Fault, Form, Inputs, Plain


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    counts = [1, 2, 4, 8] if seed % 2 else [1, 2, 3, 6]
    return {
        "batch": int(draw.choice([48, 96, 192])),
        "replicas": counts,
        "ms_per_example": round(float(draw.uniform(0.5, 2)), 2),
        "ms_per_step": round(float(draw.uniform(5, 20)), 1),
        "ms_per_replica": round(float(draw.uniform(1, 6)), 1),
    }


def _step_ms(given: Inputs, replicas: int, global_batch: int) -> float:
    each = given["ms_per_example"] * global_batch / replicas
    return float(each + given["ms_per_step"] + given["ms_per_replica"] * (replicas - 1))


def _call(efficiencies: Callable[..., Any], inputs: Inputs) -> Plain:
    def measure(replicas: int, global_batch: int) -> float:
        return _step_ms(inputs, replicas, global_batch)

    return efficiencies(measure, inputs["batch"], list(inputs["replicas"]))


def _divided(one: float, many: float, replicas: int) -> float:
    return one / (replicas * many)


def _plain(one: float, many: float, replicas: int) -> float:
    return one / many


def _reference(
    given: Inputs,
    *,
    strong_batch: Callable[[int, int], int] = lambda batch, replicas: batch,
    weak_batch: Callable[[int, int], int] = lambda batch, replicas: batch * replicas,
    strong: Callable[[float, float, int], float] = _divided,
    weak: Callable[[float, float, int], float] = _plain,
) -> Plain:
    batch, one = given["batch"], _step_ms(given, 1, given["batch"])

    def all_of(of: Callable[..., float], batch_of: Callable[[int, int], int]) -> list[float]:
        return [of(one, _step_ms(given, n, batch_of(batch, n)), n) for n in given["replicas"]]

    return {"strong": all_of(strong, strong_batch), "weak": all_of(weak, weak_batch)}


def _has_lists(given: Inputs, out: Plain) -> bool:
    return isinstance(out, dict) and all(
        isinstance(out.get(kind), (list, np.ndarray)) and len(out[kind]) == len(given["replicas"])
        for kind in ("strong", "weak")
    )


EFFICIENCIES = Check(
    name="efficiencies",
    title="The efficiency of strong and of weak scaling",
    question=(
        "On twice as many replicas, how many examples does each replica have in strong scaling, "
        "and in weak scaling?"
    ),
    direction=(
        "Imagine perfect replicas that lose nothing. How long is their step in each kind of "
        "scaling? Divide this time by the measured one."
    ),
    cost=Cost.PURE,
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=(
        Form("two lists in a dictionary, with a number for each count", _has_lists),
        Close("strong", "the efficiency of strong scaling", atol=1e-4, points=1.5),
        Close("weak", "the efficiency of weak scaling", atol=1e-4, points=1.5),
    ),
    hint="Strong: measure(1, batch) / (n * measure(n, batch)). Weak: measure(1, batch) / "
    "measure(n, n * batch).",
    revisit='"Strong and weak scaling" in lesson 13',
    mistakes=(
        Fault("weak_with_fixed_global", weak_batch=lambda batch, replicas: batch)
        .or_with(weak_batch=lambda batch, replicas: batch, weak=_divided)
        .feedback(
            "In your weak scaling the global batch stays the same, so each replica gets less and "
            "less to do. That is strong scaling. What stays the same on each replica in weak "
            "scaling, and what does `measure` take?"
        ),
        Fault("strong_with_growing_batch", strong_batch=lambda batch, replicas: batch * replicas)
        .or_with(strong_batch=lambda batch, replicas: batch * replicas, strong=_plain)
        .feedback(
            "In your strong scaling the global batch grows with the replicas, so the work is not "
            "the same for all of them. What stays the same in strong scaling?"
        ),
        Fault("speedup_for_efficiency", strong=_plain).feedback(
            "Your strong scaling is the speedup: 2 for two perfect replicas. An efficiency says "
            "which part of the replicas' time is used. What is it for two perfect replicas?"
        ),
        Fault("weak_divided_again", weak=_divided).feedback(
            "You divided weak scaling by the number of replicas. They also have that many times "
            "the examples in a step, so perfect replicas would only reach 1/n. How long is their "
            "step, compared with that of one replica?"
        ),
        Fault(
            "upside_down",
            strong=lambda one, many, n: n * many / one,
            weak=lambda one, many, n: many / one,
        ).feedback(
            "Your efficiencies are above 1 and grow as steps get slower. Which of the two times "
            "is the one that perfect replicas would have?"
        ),
    ),
)
