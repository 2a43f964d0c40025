"""When each stage of a pipeline computes which micro-batch, and how often it computes nothing.

schedule = pipeline_schedule(2, micro_batches=4)
schedule[1][0]        # None: in the first tick stage 1 has nothing to compute
idle_share(schedule)  # 0.2
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from distlab.errors import InvalidArgument


class Work(NamedTuple):
    """A stage's work in one tick."""

    kind: str
    micro_batch: int


Lane = list[Work | None]


def pipeline_schedule(stages: int, *, micro_batches: int) -> list[Lane]:
    """Returns for each stage what it does in each tick, or None where it is idle.

    The order is GPipe's: all micro-batches forward, then all of them backward, the last one first.
    Every stage takes one tick for one micro-batch, forward and backward alike.
    """
    if stages < 1 or micro_batches < 1:
        raise InvalidArgument(
            asked=f"pipeline_schedule({stages}, micro_batches={micro_batches})",
            found="a pipeline without work",
            do="pass at least 1 stage and 1 micro-batch",
        )
    forward = stages + micro_batches - 1
    lanes: list[Lane] = [[None] * (2 * forward) for _ in range(stages)]
    for stage, lane in enumerate(lanes):
        for number in range(micro_batches):
            lane[stage + number] = Work("forward", number)
            lane[2 * forward - 1 - stage - number] = Work("backward", number)
    return lanes


def idle_share(schedule: Sequence[Sequence[object]]) -> float:
    """Returns which part of all ticks of all stages is idle: the pipeline's bubble."""
    ticks = [work for lane in schedule for work in lane]
    return sum(work is None for work in ticks) / len(ticks)
