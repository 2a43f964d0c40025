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
PRODUCT_ROWS = tuple(2**power for power in range(10))
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


def record_products() -> dict[str, Any]:
    """Returns times of products: by their rows, and of a tiny one."""
    import tensorflow as tf

    from distlab.course.measure.timing import time_in_turns

    matrix = tf.random.normal((1024, 1024))
    tiny = tf.random.normal((8, 8))

    def product(left: Any, right: Any) -> Callable[[], Any]:
        return tf.function(lambda: tf.matmul(left, right))

    calls: dict[str, Callable[[], Any]] = {
        str(rows): product(tf.random.normal((rows, 1024)), matrix) for rows in PRODUCT_ROWS
    }
    calls["tiny"] = product(tiny, tiny)
    timings = time_in_turns(calls, blocks=200, calls=1)
    secs = {name: min(timing.block_secs) for name, timing in timings.items()}
    print({name: round(1e6 * each) for name, each in secs.items()}, flush=True)
    return {
        "products": [{"rows": rows, "secs": secs[str(rows)]} for rows in PRODUCT_ROWS],
        "tiny_secs": secs["tiny"],
    }


def record_timelines(rounds: int) -> dict[str, Any]:
    """Returns the events of two steps without prefetch and with it, and the products' share."""
    from distlab.course.lesson_13_step_cost.recorded import stored_event
    from distlab.course.lesson_13_step_cost.runs import (
        TrainingStep,
        loop_with_slow_input,
        share_of_products,
    )
    from distlab.course.measure.timeline import record_quickest

    step = TrainingStep(64)
    step()
    plain = record_quickest(lambda: [step() for _ in range(STEPS)], rounds=rounds)
    share = share_of_products(plain)
    print(f"products: {100 * share:.0f} % of the computing time", flush=True)
    timelines = {}
    for name, ahead in (("without prefetch", 0), ("with prefetch", 2)):
        train = loop_with_slow_input(step, ahead=ahead)
        best = record_quickest(functools.partial(train, STEPS), rounds=rounds)
        timelines[name] = [stored_event(event) for event in best if event.ms >= SHORTEST_MS]
        print(name, len(timelines[name]), "events", flush=True)
    return {"products_share": share, "timelines": timelines}


PARTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "mfu": lambda blocks: {"mfu": record_mfu(blocks)},
    "products": lambda blocks: record_products(),
    "timelines": lambda blocks: record_timelines(blocks),
}


def main() -> None:
    """Records all of it, or some parts again, into the lesson's file."""
    parser = argparse.ArgumentParser(description="Record what a step costs on this machine.")
    parser.add_argument("--machine", default="two CPU cores of a shared server", help="its name")
    parser.add_argument("--blocks", type=int, default=15, help="how often each is timed (15)")
    parser.add_argument(
        "--only", nargs="+", choices=list(PARTS), default=list(PARTS), help="on the same machine"
    )
    options = parser.parse_args()
    recording = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
    recording |= {"machine": options.machine, "recorded": datetime.date.today().isoformat()}
    for part in options.only:
        recording |= PARTS[part](options.blocks)
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in recording.items()]
    OUT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
