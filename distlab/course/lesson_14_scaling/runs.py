"""The report of lesson 14: a CNN that was recorded on 1, 2 and 4 replicas, and its efficiencies.

scaled = scale_recorded()
draw_spread(scaled.steps, scaled.efficiency)
"""

from __future__ import annotations

from dataclasses import dataclass

from distlab.course.lesson_14_scaling.recorded import recorded_scaling
from distlab.course.measure.scaling_runs import MeasuredStep

BATCH, REPLICAS = 64, (1, 2, 4)


@dataclass(frozen=True)
class ScaledSteps:
    """A CNN on 1, 2 and 4 replicas.

    Attributes:
        steps: By kind of scaling, the recorded step of each number of replicas.
        efficiency: By kind of scaling, the efficiency of these steps.
    """

    steps: dict[str, list[MeasuredStep]]
    efficiency: dict[str, list[float]]


def scale_recorded() -> ScaledSteps:
    """Returns the recorded steps of strong and of weak scaling."""
    recording = recorded_scaling()
    steps = {
        "strong": [recording.step(replicas, BATCH) for replicas in REPLICAS],
        "weak": [recording.step(replicas, replicas * BATCH) for replicas in REPLICAS],
    }
    one = recording.step(1, BATCH).whole_secs
    return ScaledSteps(
        steps=steps,
        efficiency={
            "strong": [one / (step.replicas * step.whole_secs) for step in steps["strong"]],
            "weak": [one / step.whole_secs for step in steps["weak"]],
        },
    )
