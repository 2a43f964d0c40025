"""Lesson 14's report: the learner's efficiencies of a CNN that was recorded on a named machine.

scaled = scale_recorded(efficiencies)
draw_spread(scaled.steps, scaled.efficiency)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from distlab.course.lesson_14_scaling.recorded import recorded_scaling
from distlab.course.measure.scaling_runs import MeasuredStep

BATCH, REPLICAS = 64, (1, 2, 4)


@dataclass(frozen=True)
class ScaledSteps:
    """A CNN on 1, 2 and 4 replicas.

    Attributes:
        steps: By kind of scaling, the recorded step of each number of replicas.
        efficiency: By kind of scaling, what the learner's function returns for these steps.
    """

    steps: dict[str, list[MeasuredStep]]
    efficiency: dict[str, list[float]]


def scale_recorded(efficiencies: Callable[..., Any]) -> ScaledSteps:
    """Gives the recorded steps to the learner's function."""
    recording = recorded_scaling()

    def examples_per_sec(replicas: int, global_batch: int) -> float:
        return global_batch / recording.step(replicas, global_batch).whole_secs

    fractions = efficiencies(examples_per_sec, BATCH, list(REPLICAS))
    return ScaledSteps(
        steps={
            "strong": [recording.step(replicas, BATCH) for replicas in REPLICAS],
            "weak": [recording.step(replicas, replicas * BATCH) for replicas in REPLICAS],
        },
        efficiency={kind: list(map(float, fractions[kind])) for kind in ("strong", "weak")},
    )
