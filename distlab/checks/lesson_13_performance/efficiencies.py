"""A check of lesson 13: strong and weak scaling from the throughput that a benchmark reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.checks import Check, Close, Cost, Fault, Form, Inputs, Plain


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    counts = [4, 8, 16, 32] if seed % 2 else [2, 4, 6, 12]
    return {
        "batch": int(draw.choice([96, 192, 384])),
        "replicas": counts,
        "ms_per_example": round(float(draw.uniform(0.5, 2)), 2),
        "ms_per_step": round(float(draw.uniform(5, 20)), 1),
        "ms_per_replica": round(float(draw.uniform(1, 6)), 1),
    }


def _per_sec(given: Inputs, replicas: int, global_batch: float) -> float:
    each = given["ms_per_example"] * global_batch / replicas
    step_ms = each + given["ms_per_step"] + given["ms_per_replica"] * (replicas - 1)
    return float(1000 * global_batch / step_ms)


def _call(efficiencies: Callable[..., Any], inputs: Inputs) -> Plain:
    def examples_per_sec(replicas: int, global_batch: int) -> float:
        return _per_sec(inputs, replicas, global_batch)

    return efficiencies(examples_per_sec, inputs["batch"], list(inputs["replicas"]))


def _grown(batch: int, first: int, replicas: int) -> float:
    return batch * replicas / first


def _fixed(batch: int, first: int, replicas: int) -> float:
    return batch


def _efficiency(one: float, many: float, first: int, replicas: int) -> float:
    return many / one * first / replicas


def _speedup(one: float, many: float, first: int, replicas: int) -> float:
    return many / one


def _reference(
    given: Inputs,
    *,
    strong_batch: Callable[[int, int, int], float] = _fixed,
    weak_batch: Callable[[int, int, int], float] = _grown,
    strong: Callable[[float, float, int, int], float] = _efficiency,
    weak: Callable[[float, float, int, int], float] = _efficiency,
) -> Plain:
    """Each kind from two throughputs, the first count and the other one."""
    batch, first = given["batch"], given["replicas"][0]
    one = _per_sec(given, first, batch)

    def all_of(of: Callable[..., float], batch_of: Callable[..., float]) -> list[float]:
        return [
            of(one, _per_sec(given, n, batch_of(batch, first, n)), first, n)
            for n in given["replicas"]
        ]

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
        "Imagine perfect replicas that lose nothing. How many examples per second do they process "
        "together, compared with the baseline? Which part of that do the measured ones reach?"
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
    hint="Let first = replicas[0] and base = examples_per_sec(first, batch) / first. Strong: "
    "examples_per_sec(n, batch) / n / base. Weak: the same with a batch of batch // first * n.",
    revisit='"Strong and weak scaling" in lesson 13',
    mistakes=(
        Fault("weak_with_fixed_global", weak_batch=_fixed)
        .or_with(weak_batch=_fixed, weak=_speedup)
        .feedback(
            "In your weak scaling the global batch stays the same, so each replica gets less and "
            "less to do. That is strong scaling. What stays the same on each replica in weak "
            "scaling, and what does `examples_per_sec` take?"
        ),
        Fault("strong_with_growing_batch", strong_batch=_grown)
        .or_with(strong_batch=_grown, strong=_speedup)
        .feedback(
            "In your strong scaling the global batch grows with the replicas, so the work is not "
            "the same for all of them. What stays the same in strong scaling?"
        ),
        Fault("baseline_of_one", weak_batch=lambda batch, first, n: batch * n)
        .or_with(
            strong=lambda one, many, first, n: many / one / n,
            weak=lambda one, many, first, n: many / one / n,
        )
        .or_with(weak=lambda one, many, first, n: many / one / n)
        .or_with(
            strong=lambda one, many, first, n: many / one / n,
            weak=lambda one, many, first, n: many / one / n,
            weak_batch=lambda batch, first, n: batch * n,
        )
        .feedback(
            "You treated the baseline as if it were one replica, and it has several. `batch` and "
            "its examples per second belong to all of them together. How many times as many "
            "replicas as the baseline does each count have?"
        ),
        Fault("speedup_for_efficiency", strong=_speedup)
        .or_with(weak=_speedup)
        .or_with(strong=_speedup, weak=_speedup)
        .feedback(
            "Your numbers are speedups: 2 for twice as many perfect replicas. An efficiency says "
            "which part of the replicas' time is used. What is it for perfect replicas?"
        ),
        Fault(
            "upside_down",
            strong=lambda one, many, first, n: one / many * n / first,
            weak=lambda one, many, first, n: one / many * n / first,
        )
        .or_with(
            strong=lambda one, many, first, n: one / many * first / n,
            weak=lambda one, many, first, n: one / many,
        )
        .feedback(
            "You divided the baseline's examples per second by the others', as one does with the "
            "times of a step. Of examples per second, more is better. Which of the two throughputs "
            "would perfect replicas have?"
        ),
    ),
)
