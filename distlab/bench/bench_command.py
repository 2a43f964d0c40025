"""The command `distlab bench`.

distlab bench train.py --replicas 1 2 4 --batch 64 --plot scaling.png
distlab bench --build my_project.models:build_small
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distlab.errors import InvalidArgument

if TYPE_CHECKING:
    from distlab.measure.scaling_runs import MeasuredStep

_COLUMNS = ("replicas", "examples/s", "efficiency", "step ms", "compute", "communic.", "input")


def add_bench(commands: Any) -> None:
    """Adds the command."""
    bench = commands.add_parser(
        "bench",
        help="measure how your own model scales on this machine",
        description="Measure a step of your own model on 1 to N replicas of this machine, with "
        "the same global batch (strong scaling) and with the same batch on each replica (weak "
        "scaling), and what it consists of: compute, communication and input. Your code has two "
        "functions: build() returns a compiled Keras model, and data(batch_size), beside it, "
        "returns a tf.data.Dataset of (x, y) batches. Each number of replicas runs in a process "
        "of its own.",
    )
    bench.add_argument("script", nargs="?", metavar="train.py", help="a file with both functions")
    bench.add_argument("--build", metavar="MODULE:FUNCTION", help="in place of a file")
    number = {"type": int, "metavar": "N"}
    bench.add_argument(
        "--replicas", nargs="+", default=[1, 2, 4], help="which numbers (1 2 4)", **number
    )
    bench.add_argument("--batch", default=64, help="examples in a step of one replica", **number)
    bench.add_argument("--blocks", default=9, help="how many blocks are timed (9)", **number)
    bench.add_argument("--plot", type=Path, metavar="FILE", help="draw the steps into a file")
    bench.set_defaults(run=_bench)


def _bench(options: argparse.Namespace) -> int:
    from distlab.bench.measuring import measure_scaling

    if bool(options.script) == bool(options.build):
        raise InvalidArgument(
            asked="distlab bench",
            found="both a file and --build" if options.script else "neither a file nor --build",
            do="give one of them: distlab bench train.py",
        )
    if options.replicas[0] != 1:
        raise InvalidArgument(
            asked=f"--replicas {' '.join(map(str, options.replicas))}",
            found="a first number that is not 1, with which the others are compared",
            do="start with 1",
        )
    steps = measure_scaling(
        options.script or options.build,
        replicas=options.replicas,
        batch=options.batch,
        blocks=options.blocks,
        tell=lambda count: print(f"measuring with replicas: {count}", file=sys.stderr),
    )
    for kind, measured in steps.items():
        where = "in a step" if kind == "strong" else "on each replica"
        print(f"{kind} scaling, {options.batch} examples {where}")
        print("\n".join(table_of(kind, measured)), end="\n\n")
    print("Parts in milliseconds. Compare medians only if their middle halves lie apart (--plot).")
    if options.plot:
        from distlab.pictures.step_costs import draw_spread

        parts = {kind: efficiency_of(kind, measured) for kind, measured in steps.items()}
        draw_spread(steps, parts).savefig(options.plot, dpi=150)
        print(f"wrote {options.plot}")
    return 0


def efficiency_of(kind: str, steps: list[MeasuredStep]) -> list[float]:
    """Returns the efficiency of each step, compared with the first, which has one replica."""
    one = steps[0].whole_secs
    return [one / step.whole_secs / (step.replicas if kind == "strong" else 1) for step in steps]


def table_of(kind: str, steps: list[MeasuredStep]) -> list[str]:
    """Returns the lines of a table: a row for each number of replicas."""
    lines = ["".join(f"{name:>12}" for name in _COLUMNS)]
    for step, efficiency in zip(steps, efficiency_of(kind, steps), strict=True):
        parts = (step.whole_secs, step.compute_secs, step.communication_secs, step.input_secs)
        shown = [
            f"{step.replicas}",
            f"{step.global_batch / step.whole_secs:.0f}",
            f"{100 * efficiency:.0f} %",
            *(f"{1e3 * secs:.1f}" for secs in parts),
        ]
        lines.append("".join(f"{text:>12}" for text in shown))
    return lines
