"""A check of lesson 13, strong and weak scaling from throughput, and the rubric of its report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Close, Cost, Fault, Form, Inputs, Plain
from distlab.course.checks.rubric import RubricRow, WrittenReport


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


def _reference(
    given: Inputs,
    *,
    grows: tuple[str, ...] = ("weak",),
    divided: tuple[str, ...] = ("strong", "weak"),
    of_one: tuple[str, ...] = (),
) -> Plain:
    """Efficiencies; `of_one` takes the baseline's "batch" or "count" for that of one replica."""
    batch, first = given["batch"], given["replicas"][0]

    def efficiency(kind: str, n: int) -> float:
        times = n / (1 if "batch" in of_one else first)
        counts = n / (1 if "count" in of_one else first) if kind in divided else 1
        grown = batch * times if kind in grows else batch
        return _per_sec(given, n, grown) / _per_sec(given, first, batch) / counts

    return {kind: [efficiency(kind, n) for n in given["replicas"]] for kind in ("strong", "weak")}


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
        Fault("weak_with_fixed_global", grows=()).feedback(
            "In your weak scaling the global batch stays the same, so each replica gets less and "
            "less to do. That is strong scaling. What stays the same on each replica in weak "
            "scaling, and what does `examples_per_sec` take?"
        ),
        Fault("strong_with_growing_batch", grows=("strong", "weak")).feedback(
            "In your strong scaling the global batch grows with the replicas, so the work is not "
            "the same for all of them. What stays the same in strong scaling?"
        ),
        Fault("baseline_of_one", of_one=("batch",))
        .or_with(of_one=("count",))
        .or_with(of_one=("batch", "count"))
        .feedback(
            "You treated the baseline as if it were one replica, and it has several. `batch` and "
            "its examples per second belong to all of them together. How many times as many "
            "replicas as the baseline does each count have?"
        ),
        Fault("speedup_for_efficiency", divided=("weak",))
        .or_with(divided=("strong",))
        .feedback(
            "Your numbers are speedups: 2 for twice as many perfect replicas. An efficiency says "
            "which part of the replicas' time is used. What is it for perfect replicas?"
        ),
    ),
)

REPORTS = (
    WrittenReport(
        name="one_against_many",
        title="One device against many, for a CNN",
        rubric=(
            RubricRow(
                "what_differs",
                2,
                "names a pair of steps whose difference is larger than their spread (1), and calls "
                "no difference a speedup that lies within it (1: speedup_within_noise)",
            ),
            RubricRow(
                "which_part",
                2,
                "says which part grows with the replicas, with a figure (1), and why it does on "
                "this machine (1)",
            ),
            RubricRow(
                "what_to_change",
                2,
                "says what a device of its own for each replica changes (1), and what it does not "
                "change (1)",
            ),
        ),
    ),
)
