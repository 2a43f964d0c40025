"""Measurements of a CNN and of an all-reduce that were recorded on a named machine.

    recording = recorded_scaling()
    recording.machine, recording.steps[0].compute_secs

A notebook that stores its outputs can compare nothing that it times, so lesson 14 reads these.
`python benchmarks/record_scaling.py` records them again, on your machine.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from distlab.course.measure.bandwidth import AllReduceTime
from distlab.course.measure.scaling_runs import MeasuredStep

_FILE = Path(__file__).with_name("recorded_scaling.json")


@dataclass(frozen=True)
class Recording:
    """The recorded times of one machine.

    Attributes:
        machine: Where.
        recorded: When, as "2026-11-23".
        steps: Steps of `small_cnn`, each with its number of replicas and its global batch.
        all_reduces: All-reduces by themselves.
    """

    machine: str
    recorded: str
    steps: tuple[MeasuredStep, ...]
    all_reduces: tuple[AllReduceTime, ...]

    def step(self, replicas: int, global_batch: int) -> MeasuredStep:
        """Returns the step with so many replicas and examples."""
        by_setting = {(step.replicas, step.global_batch): step for step in self.steps}
        return by_setting[replicas, global_batch]

    def all_reduce(self, replicas: int, size_bytes: int) -> AllReduceTime:
        """Returns the all-reduce of so many replicas and bytes."""
        by_setting = {(row.replicas, row.size_bytes): row for row in self.all_reduces}
        return by_setting[replicas, size_bytes]


def recorded_scaling() -> Recording:
    """Returns the recording that comes with distlab."""
    stored = json.loads(_FILE.read_text(encoding="utf-8"))
    steps = [
        MeasuredStep(**{**row, "middle_half_secs": tuple(row["middle_half_secs"])})
        for row in stored["steps"]
    ]
    return Recording(
        machine=stored["machine"],
        recorded=stored["recorded"],
        steps=tuple(steps),
        all_reduces=tuple(AllReduceTime(**row) for row in stored["all_reduces"]),
    )
