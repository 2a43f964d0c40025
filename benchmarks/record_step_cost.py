"""Records for lesson 13 how long training steps, products and their parts take on this machine.

    python benchmarks/record_step_cost.py --machine "two cores of a shared server"

Steps are timed by the processor's clock, which other programs don't move. Of a product the shortest
time counts, and of a timeline the quickest steps, because other programs only add time.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

WIDTHS = (32, 64, 128, 256, 384)
XLA_WIDTHS = (64, 128, 256)
PRODUCT_ROWS = tuple(2**power for power in range(11))
STEPS, SHORTEST_MS = 2, 0.02
LESSON = Path(__file__).parents[1] / "distlab/course/lesson_13_step_cost"
OUT = LESSON / "recorded_steps.json"


def record_mfu(blocks: int) -> list[dict[str, Any]]:
    """Returns the steps of each width, each with the product between them."""
    from distlab.course.lesson_13_step_cost.runs import time_steps

    rows = []
    for xla, widths in ((False, WIDTHS), (True, XLA_WIDTHS)):
        for row in time_steps(widths, xla=xla, blocks=blocks).values():
            rows.append(dataclasses.asdict(row))
            print(f"width {row.width}, XLA {xla}: {100 * row.mfu:.0f} %", flush=True)
    return rows


def record_products() -> list[dict[str, Any]]:
    """Returns the time of a product by its number of rows, each in turns with all others."""
    import tensorflow as tf

    from distlab.course.measure.timing import time_in_turns

    matrix = tf.random.normal((1024, 1024))

    def product(rows: int) -> Callable[[], Any]:
        left = tf.random.normal((rows, 1024))
        return tf.function(lambda: tf.matmul(left, matrix))

    calls = {str(rows): product(rows) for rows in PRODUCT_ROWS}
    timings = time_in_turns(calls, blocks=200, calls=1)
    return [{"rows": int(rows), "secs": min(timing.block_secs)} for rows, timing in timings.items()]


def record_timelines(rounds: int) -> dict[str, list[list[object]]]:
    """Returns the events of two steps without prefetch and with it."""
    from distlab.course.lesson_13_step_cost.recorded import stored_event
    from distlab.course.lesson_13_step_cost.runs import TrainingStep, loop_with_slow_input
    from distlab.course.measure.timeline import record_timeline

    step = TrainingStep(64)
    timelines = {}
    for name, ahead in (("without prefetch", 0), ("with prefetch", 2)):
        train = loop_with_slow_input(step, ahead=ahead)
        two_steps = functools.partial(train, STEPS)
        found = [record_timeline(two_steps) for _ in range(rounds)]
        best = min(found, key=lambda events: max(event.end_ms for event in events))
        timelines[name] = [stored_event(event) for event in best if event.ms >= SHORTEST_MS]
        print(name, len(timelines[name]), "events")
    return timelines


def main() -> None:
    """Records all of it into the lesson's file."""
    parser = argparse.ArgumentParser(description="Record what a step costs on this machine.")
    parser.add_argument("--machine", default="two CPU cores of a shared server", help="its name")
    parser.add_argument("--blocks", type=int, default=15, help="how often each is timed (15)")
    options = parser.parse_args()
    recording = {
        "machine": options.machine,
        "recorded": datetime.date.today().isoformat(),
        "mfu": record_mfu(options.blocks),
        "products": record_products(),
        "timelines": record_timelines(10),
    }
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in recording.items()]
    OUT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
