"""A view of a pipeline's lanes: devices, micro-batches, the order, and pieces on each device.

explore_pipeline()      # as the last line of a cell
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from distlab.course.lesson_17_pipelines.figures import draw_lanes
from distlab.course.lesson_17_pipelines.schedules import SCHEDULES, Schedule, interleaved
from distlab.course.lesson_17_pipelines.timetable import Span, Timetable, play
from distlab.course.view import Choices, View

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PIECES = (2, 4)


def explore_pipeline() -> View:
    """Returns the view; it starts with 1F1B on four devices and eight micro-batches."""
    return View(
        "The order of a pipeline's work",
        {
            "schedule": Choices("order", list(SCHEDULES), start="1F1B"),
            "devices": Choices("devices", [2, 3, 4], start=4),
            "micro_batches": Choices("micro-batches for each device", [1, 2, 4], start=2),
            "pieces": Choices(
                "pieces on each device, if interleaved",
                _PIECES,
                last=lambda schedule, **_: _PIECES[-1 if schedule == "interleaved" else 0],
            ),
        },
        _numbers,
        _draw,
    )


def _schedule(schedule: str, devices: int, micro_batches: int, pieces: int) -> Schedule:
    if schedule == "interleaved":
        return interleaved(devices, micro_batches, pieces)
    return SCHEDULES[schedule](devices, micro_batches)


def _numbers(schedule: str, devices: int, micro_batches: int, pieces: int) -> dict[str, Any]:
    """Returns the items of each device, with the ticks at which each starts and ends."""
    count = devices * micro_batches
    table = play(_schedule(schedule, devices, count, pieces), count)
    lanes = [[[round(s.start, 2), round(s.end, 2), s.item] for s in lane] for lane in table.lanes]
    return {"lanes": lanes, "kept": table.kept, "ticks": table.ticks, "idle": table.idle_share}


def _draw(numbers: Mapping[str, Any], *, schedule: str, pieces: int, **_: Any) -> Figure:
    lanes = [[Span(*span) for span in lane] for lane in numbers["lanes"]]
    split = schedule == "zero bubble"
    count = pieces if schedule == "interleaved" else 1
    table = Timetable(lanes, numbers["kept"], waits={}, why="", pieces=count, split=split)
    return draw_lanes({schedule: table})
