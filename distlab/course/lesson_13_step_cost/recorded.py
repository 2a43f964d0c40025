"""The times of lesson 13 that were recorded on a named machine, because times differ by run.

    recording = recorded_steps()
    recording.machine, recording.mfu[0].mfu, recording.products[0].secs

`python benchmarks/record_step_cost.py` in distlab's repository records it again.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path

from distlab.course.measure.timeline import Event

_FILE = Path(__file__).with_name("recorded_steps.json")
_PEAK_FLOPS = 2 * 1024**3


@dataclass(frozen=True, kw_only=True)
class MeasuredMfu:
    """A training step's time, and that of a large product between two steps.

    Attributes:
        width: The transformer's width.
        xla: Whether XLA compiled the step.
        flops: The step's FLOPs.
        step_secs: Seconds of a step, on CPUs by the processor's clock.
        product_secs: Seconds of the product of two matrices of 1,024 by 1,024, by the same clock.
    """

    width: int
    xla: bool
    flops: int
    step_secs: float
    product_secs: float

    @property
    def mfu(self) -> float:
        """The step's FLOPs a second, as a part of the large product's."""
        return (self.flops / self.step_secs) / (_PEAK_FLOPS / self.product_secs)


@dataclass(frozen=True, kw_only=True)
class MeasuredProduct:
    """The product of `rows` rows and a matrix of 1,024 by 1,024, in float32.

    Attributes:
        rows: How many rows.
        secs: Seconds of the product.
    """

    rows: int
    secs: float


@dataclass(frozen=True, kw_only=True)
class Recording:
    """The recorded times of one machine.

    Attributes:
        machine: Where.
        recorded: When, as "2026-11-23".
        mfu: Steps by width, without XLA and with it.
        products: Products by their number of rows.
        tiny_secs: Seconds of a product of two matrices of 8 by 8, which is little but a start.
        products_share: The products' part of the computing time of a step at a width of 64.
        timelines: The events of two steps each, by the name of the run.
    """

    machine: str
    recorded: str
    mfu: tuple[MeasuredMfu, ...]
    products: tuple[MeasuredProduct, ...]
    tiny_secs: float
    products_share: float
    timelines: dict[str, list[Event]]


@functools.cache
def recorded_steps() -> Recording:
    """Returns the recording that comes with distlab."""
    stored = json.loads(_FILE.read_text(encoding="utf-8"))
    return Recording(
        machine=stored["machine"],
        recorded=stored["recorded"],
        mfu=tuple(MeasuredMfu(**row) for row in stored["mfu"]),
        products=tuple(MeasuredProduct(**row) for row in stored["products"]),
        tiny_secs=stored["tiny_secs"],
        products_share=stored["products_share"],
        timelines={
            name: [_event(*row) for row in rows] for name, rows in stored["timelines"].items()
        },
    )


def stored_event(event: Event) -> list[object]:
    """Returns an event as a row of the file."""
    times = [round(event.start_ms, 2), round(event.ms, 2)]
    return [event.thread, event.kind, event.operation, *times]


def _event(thread: str, kind: str, operation: str, start_ms: float, ms: float) -> Event:
    return Event(
        thread=thread, kind=kind, operation=operation, start_ms=start_ms, ms=ms, name=operation
    )
