"""A check of lesson 17: which share of a pipeline is idle if its stages differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Close, Cost, Fault, Inputs, Plain, Then

_KINDS = ("equal", "unequal")


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)

    def stages(kind: str) -> list[float]:
        count, ms = int(draw.integers(3, 7)), draw.uniform(10, 40)
        # The slowest stage is neither the first nor the last one.
        slower = draw.permutation(np.linspace(1.2, 1.8, count - 2)) if kind == "unequal" else 1
        return [round(float(each), 1) for each in ms * np.r_[1, np.ones(count - 2) * slower, 1.1]]

    def case(kind: str) -> dict[str, Any]:
        stage_ms = stages(kind)
        stage_ms = [stage_ms[0]] * len(stage_ms) if kind == "equal" else stage_ms
        return {"stage_ms": stage_ms, "micro_batches": int(draw.integers(2, 13))}

    return {kind: [case(kind) for _ in range(3)] for kind in _KINDS}


def _call(pipeline_idle: Callable[..., Any], inputs: Inputs) -> Plain:
    return {
        kind: [pipeline_idle(list(case["stage_ms"]), case["micro_batches"]) for case in cases]
        for kind, cases in inputs.items()
    }


def _reference(
    given: Inputs,
    *,
    cut: bool = True,
    pace: Callable[[Any], Any] = max,
    whole_each: bool = False,
    of_the_work: bool = False,
) -> Plain:
    """The idle share of each case, by these habits of counting."""

    def share(stage_ms: list[float], micro_batches: int) -> float:
        count = micro_batches if cut else 1
        took = sum(stage_ms) + (count - 1) * float(pace(stage_ms))
        took = took if whole_each else took / count
        available = len(stage_ms) * took
        return (available - sum(stage_ms)) / (sum(stage_ms) if of_the_work else available)

    return {kind: [share(**case) for case in cases] for kind, cases in given.items()}


IDLE = Check(
    name="pipeline_idle",
    title="The bubble of a pipeline whose stages differ",
    question="When does a stage start its first micro-batch, and when does it end its last one?",
    direction=(
        "Draw three micro-batches through stages that take 1, 3 and 1 ms for each of them. Which "
        "stage never waits once it has started?"
    ),
    cost=Cost.PURE,
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=(
        Close("equal", "idle share where all stages take the same time", atol=1e-4),
        Then(Close("unequal", "idle share where one stage is slower", atol=1e-4, points=2)),
    ),
    hint="With m micro-batches the pass takes (sum(stage_ms) + (m - 1) * max(stage_ms)) / m. All "
    "stages together have that many milliseconds once each, and work for sum(stage_ms) of them.",
    revisit='"A pipeline and its bubble" in lesson 17',
    mistakes=(
        Fault("micro_batches_ignored", cut=False).feedback(
            "Your share is that of a batch that moves through the stages as a whole: one stage "
            "works and all others wait. Can stage 1 start before stage 0 has seen the last "
            "example?"
        ),
        Fault("slowest_stage_ignored", pace=np.mean).feedback(
            "You used the formula for equal stages, and one stage here is slower. After a while "
            "micro-batches queue in front of it. Which stage's time lies between two micro-batches "
            "that leave the pipeline?"
        ),
        Fault("whole_batch_each", whole_each=True).feedback(
            "You let each micro-batch take as long as the whole batch. It has only a part of the "
            "examples. How long does a stage take for one of m micro-batches?"
        ),
        Fault("share_of_the_work", of_the_work=True).feedback(
            "You divided the idle time by the time of work. That is how Megatron-LM's authors "
            "state the bubble, and it can be above 1. The task asks for a share of all time. What "
            "must be below the line?"
        ),
    ),
)
