"""When each device of a pipeline does what: plays a schedule without a model, tick by tick.

    schedule = [["F0", "F1", "B0", "B1"], ["F0", "B0", "F1", "B1"]]  # a list for each device
    table = play(schedule, micro_batches=2)
    table.ticks, table.idle_share, table.kept, table.lanes

"F1" is micro-batch 1 forward and "B1" backward; "F1.1" is its way through the device's second piece
of the model. If a schedule has "W1", the backward pass is split: "B1" is then the inputs' half and
"W1" the weights' half. A tick is the time in which a device takes a micro-batch forward through all
of its layers; a backward pass takes two. A device starts an item as soon as its input has arrived.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from distlab.errors import InvalidArgument

_ITEM = re.compile(r"([FBW])(\d+)(?:\.(\d+))?")
_MOST_SHOWN = 6


class Work(NamedTuple):
    """One micro-batch's way through one stage, in one direction; stages count over all devices."""

    kind: str
    stage: int
    micro_batch: int


class Span(NamedTuple):
    """An item of a schedule, and the ticks at which its device starts and ends it."""

    start: float
    end: float
    item: str


@dataclass(frozen=True)
class Timetable:
    """A schedule as it was played.

    Attributes:
        lanes: The spans of each device, in order.
        kept: The most micro-batches that each device keeps at a time, for their backward passes.
        waits: By device, the item at which it waits forever; empty if all devices finish.
        why: For each of these devices, what it waits for.
        pieces: Into how many pieces each device's layers are cut.
        split: Whether the backward passes are split into two halves.
    """

    lanes: list[list[Span]]
    kept: list[float]
    waits: dict[int, str]
    why: str
    pieces: int
    split: bool

    @property
    def ticks(self) -> float:
        """The ticks until the last device is finished."""
        return max((span.end for lane in self.lanes for span in lane), default=0)

    @property
    def idle_share(self) -> float:
        """The part of all devices' time in which they wait: the pipeline's bubble."""
        busy = sum(span.end - span.start for lane in self.lanes for span in lane)
        return 1 - busy / (len(self.lanes) * self.ticks) if self.ticks else 0


def play(
    schedule: Sequence[Sequence[str]],
    micro_batches: int,
    compute: Callable[[Work], None] = lambda work: None,
    *,
    message_ticks: float = 0,
) -> Timetable:
    """Plays a schedule, and calls `compute` for each piece of work once its input is there.

    Args:
        schedule: For each device a list of items.
        micro_batches: How many the batch is cut into.
        compute: What is called, in an order in which every input is there.
        message_ticks: How many ticks an input from a different device is on its way.

    Raises:
        InvalidArgument: If an item is unknown, missing or there twice.
    """
    plan, pieces = _read(schedule, micro_batches)
    split = any(work.kind == "W" for works in plan for work in works)
    takes = {"F": 1, "B": 1 if split else 2, "W": 1}
    stages, last_use = len(plan) * pieces, "W" if split else "B"
    ends: dict[Work, float] = {}
    free, held, most = [0.0] * len(plan), [0] * len(plan), [0] * len(plan)
    lanes: list[list[Span]] = [[] for _ in plan]
    moved = True
    while moved:
        moved = False
        for device, works in enumerate(plan):
            while len(lanes[device]) < len(works):
                work = works[len(lanes[device])]
                needed = _needs(work, stages)
                if needed and needed not in ends:
                    break
                arrived = _arrival(work, needed, ends, len(plan), message_ticks * pieces)
                start = max(free[device], arrived)
                free[device] = ends[work] = start + takes[work.kind]
                item = schedule[device][len(lanes[device])]
                lanes[device].append(Span(start / pieces, free[device] / pieces, item))
                held[device] += (work.kind == "F") - (work.kind == last_use)
                most[device] = max(most[device], held[device])
                compute(work)
                moved = True
    nexts = {d: works[len(lanes[d])] for d, works in enumerate(plan) if len(lanes[d]) < len(works)}
    waits = {device: schedule[device][len(lanes[device])] for device in nexts}
    kept = [count / pieces for count in most]
    return Timetable(lanes, kept, waits, _why(nexts, waits, plan, pieces), pieces, split)


def _needs(work: Work, stages: int) -> Work | None:
    """Returns the work whose result another one starts from; None for the batch itself."""
    kind, stage, micro_batch = work
    if kind == "F":
        return Work("F", stage - 1, micro_batch) if stage else None
    if kind == "W":
        return Work("B", stage, micro_batch)
    last = stage == stages - 1
    return Work("F", stage, micro_batch) if last else Work("B", stage + 1, micro_batch)


def _arrival(
    work: Work, needed: Work | None, ends: dict[Work, float], devices: int, message: float
) -> float:
    """Returns when the input of a piece of work is there."""
    if needed is None:
        return 0
    from_here = needed.stage % devices == work.stage % devices
    return ends[needed] + (0 if from_here else message)


def _read(schedule: Sequence[Sequence[str]], micro_batches: int) -> tuple[list[list[Work]], int]:
    """Returns the work of each device, and into how many pieces each device's layers are cut."""

    def refuse(found: str, do: str) -> InvalidArgument:
        devices = len(schedule) if isinstance(schedule, list | tuple) else "no"
        asked = f"a schedule for {devices} devices and {micro_batches} micro-batches"
        return InvalidArgument(asked=asked, found=found, do=do)

    if not (
        isinstance(schedule, list | tuple)
        and schedule
        and all(isinstance(items, list | tuple) for items in schedule)
    ):
        raise refuse(f"{schedule!r:.60}", "pass a list of items for each device")
    items = [
        [_ITEM.fullmatch(item) if isinstance(item, str) else None for item in items]
        for items in schedule
    ]
    for device, matches in enumerate(items):
        for place, match in enumerate(matches):
            item = schedule[device][place]
            if match is None:
                raise refuse(
                    f"{item!r} in the list of device {device}",
                    "write F, B or W and a micro-batch, such as 'F0', or 'F0.1' for piece 1",
                )
            if int(match[2]) >= micro_batches:
                raise refuse(
                    f"{item!r} in the list of device {device}",
                    f"number the micro-batches from 0 to {micro_batches - 1}",
                )
    matches_of_all = [match for matches in items for match in matches if match]
    pieces = 1 + max((int(match[3] or 0) for match in matches_of_all), default=0)
    kinds = [kind for kind in "FBW" if kind != "W" or any(m[1] == "W" for m in matches_of_all)]
    plan = [
        [
            Work(match[1], device + len(schedule) * int(match[3] or 0), int(match[2]))
            for match in matches
            if match
        ]
        for device, matches in enumerate(items)
    ]
    for device, works in enumerate(plan):
        counts = Counter(works)
        wanted = [
            Work(kind, device + len(schedule) * piece, number)
            for kind in kinds
            for piece in range(pieces)
            for number in range(micro_batches)
        ]
        for problem, which in (
            ("never does", [work for work in wanted if not counts[work]]),
            ("does twice or more", [work for work in wanted if counts[work] > 1]),
        ):
            if which:
                names = _listed([_name(work, len(schedule), pieces) for work in which])
                raise refuse(
                    f"device {device} {problem} {names}",
                    f"let each device do {' and '.join(kinds)} of each micro-batch once",
                )
    return plan, pieces


def _why(nexts: dict[int, Work], waits: dict[int, str], plan: list[list[Work]], pieces: int) -> str:
    """Returns who waits for what, if devices wait forever."""

    def sentences() -> Iterator[str]:
        for device, work in nexts.items():
            needed = _needs(work, len(plan) * pieces)
            assert needed  # what needs nothing doesn't wait
            other, name = needed.stage % len(plan), _name(needed, len(plan), pieces)
            whose = f"device {other}'s {name}"
            if other == device:
                whose = f"its own {name}, which is later in its list"
            yield f"device {device} waits at {waits[device]} for {whose}"

    return "; ".join(sentences())


def _name(work: Work, devices: int, pieces: int) -> str:
    return f"{work.kind}{work.micro_batch}" + f".{work.stage // devices}" * (pieces > 1)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_SHOWN} more" * (len(names) > _MOST_SHOWN)
    return ", ".join(names[:_MOST_SHOWN]) + more
