"""The command `distlab bench`.

distlab bench train.py --replicas 1 2 4 --batch 64 --plot scaling.png
distlab bench --build my_project.models:build_small
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import runpy
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from distlab.course.measure.scaling_runs import MeasuredStep, time_step
from distlab.environment import require_modules
from distlab.errors import InvalidArgument, ProcessError

_COLUMNS = ("replicas", "examples/s", "efficiency", "step ms", "compute", "communic.", "input")


def add_bench(commands: Any) -> None:
    """Adds the command."""
    bench = commands.add_parser(
        "bench",
        help="measure how your own model scales on this machine",
        description="Measure a training step of your own model on 1 to N replicas of this "
        "machine: once with the same global batch (strong scaling) and once with the same batch on "
        "each replica (weak scaling). The tables split each step into compute, communication and "
        "input. Your file has two functions: build() returns a compiled Keras model, and "
        "data(batch_size) returns a tf.data.Dataset of (x, y) batches. Each number of replicas "
        "runs in a process of its own.",
        example=[
            "distlab example train             # writes examples/train.py, with both",
            "distlab bench examples/train.py --replicas 1 2 --batch 32 --blocks 3",
        ],
    )
    bench.add_argument(
        "script", nargs="?", metavar="train.py", help="a file with build() and data()"
    )
    bench.add_argument(
        "--build", metavar="MODULE:FUNCTION", help="a module's build(), in place of a file"
    )
    number = {"type": int, "metavar": "N"}
    bench.add_argument(
        "--replicas",
        nargs="+",
        default=[1, 2, 4],
        help="the numbers of replicas, 1 first (1 2 4)",
        **number,
    )
    bench.add_argument(
        "--batch", default=64, help="examples in a step of one replica (64)", **number
    )
    bench.add_argument("--blocks", default=9, help="number of timed blocks (9)", **number)
    bench.add_argument("--plot", type=Path, metavar="FILE", help="also draw the steps into a file")
    bench.set_defaults(run=_bench)


def _bench(options: argparse.Namespace) -> int:
    if bool(options.script) == bool(options.build):
        raise InvalidArgument(
            asked="distlab bench",
            found="both a file and --build" if options.script else "neither a file nor --build",
            do="name one of them: distlab bench train.py",
        )
    if options.replicas[0] != 1:
        raise InvalidArgument(
            asked=f"--replicas {' '.join(map(str, options.replicas))}",
            found="a first number that is not 1, with which the others are compared",
            do="start with 1",
        )
    if options.plot:
        require_modules("distlab bench --plot", "matplotlib")
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
        from distlab.course.figures.step_costs import draw_spread

        parts = {kind: efficiency_of(kind, measured) for kind, measured in steps.items()}
        draw_spread(steps, parts).savefig(options.plot, dpi=150)
        print(f"wrote {options.plot}")
    return 0


def efficiency_of(kind: str, steps: list[MeasuredStep]) -> list[float]:
    """Returns the efficiency of each step, compared with the first, which has one replica."""
    alone_secs = steps[0].whole_secs
    return [
        alone_secs / step.whole_secs / (step.replicas if kind == "strong" else 1) for step in steps
    ]


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


_MARK = "distlab-bench:"
KINDS = ("strong", "weak")


def measure_scaling(
    target: str,
    *,
    replicas: Sequence[int],
    batch: int,
    blocks: int = 9,
    tell: Callable[[int], None] = lambda count: None,
) -> dict[str, list[MeasuredStep]]:
    """Returns the measured steps by kind of scaling, in the order of `replicas`.

    Each count has a process of its own: logical devices are fixed once TensorFlow runs.
    """
    uneven = [count for count in replicas if count < 1 or batch % count]
    if uneven:
        raise InvalidArgument(
            asked=f"distlab bench {target} with --batch {batch}",
            found=f"{batch} examples, which {uneven[0]} replicas cannot share equally",
            do=f"choose a multiple of {uneven[0]}",
            pitfall="Empty shares: the last step is too short",
        )
    rows = []
    for count in replicas:
        tell(count)
        rows.append(_in_own_process(target, count, batch, blocks))
    return {kind: [row[place] for row in rows] for place, kind in enumerate(KINDS)}


def _in_own_process(target: str, replicas: int, batch: int, blocks: int) -> list[MeasuredStep]:
    call = [target, str(replicas), str(batch), str(blocks)]
    command = [sys.executable, "-m", "distlab.course.bench_command", *call]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if done.returncode or not rows:
        raise ProcessError(
            asked=f"distlab bench {target} on {replicas} replicas",
            found=f"a process that ended with exit code {done.returncode}: "
            + "\n".join(done.stderr.strip().splitlines()[-3:]),
            do="run the model on one device first, and see its whole error there",
        )
    stored: list[dict[str, Any]] = json.loads(rows[-1].removeprefix(_MARK))
    return [MeasuredStep(**row) for row in stored]


def _measure_here(target: str, replicas: int, batch: int, blocks: int) -> list[MeasuredStep]:
    """A strong and a weak step, in this process."""
    from distlab.devices import split_devices
    from distlab.strategy.factory import make_strategy

    devices = split_devices(replicas)
    build, data = own_functions(target)
    strategy = make_strategy("mirrored", devices=devices)
    steps = {}
    for global_batch in dict.fromkeys((batch, replicas * batch)):
        step = time_step(build, strategy, data(global_batch), blocks=blocks)
        if step.global_batch != global_batch:
            raise InvalidArgument(
                asked=f"data({global_batch})",
                found=f"a first batch of {step.global_batch} examples",
                do="return batches of batch_size examples",
            )
        steps[global_batch] = step
    return [steps[batch], steps[replicas * batch]]


def own_functions(target: str) -> tuple[Callable[[], Any], Callable[[int], Any]]:
    """Returns `build` and `data` of a reader's own file or module.

    `build()` returns a compiled Keras model. `data(batch_size)` returns a `tf.data.Dataset` of
    batches `(x, y)` with so many examples. It is in the same file or module as `build`.
    """
    path, name = Path(target), "build"
    if target.endswith(".py"):
        if not path.is_file():
            raise _refusal(target, "no such file", "give the path of a Python file")
        sys.path.insert(0, str(path.resolve().parent))
        names = runpy.run_path(str(path))
    else:
        module, colon, name = target.partition(":")
        if not (colon and name.isidentifier()):
            raise _refusal(target, "no file and no function", "give train.py or module:function")
        sys.path.insert(0, "")
        try:
            names = vars(importlib.import_module(module))
        except ModuleNotFoundError as error:
            do = "run the command in the folder from which the module can be imported"
            raise _refusal(target, f"no module named {error.name!r}", do) from error
    missing = [wanted for wanted in (name, "data") if not callable(names.get(wanted))]
    if missing:
        wanted = "a compiled Keras model" if missing[0] == name else "a dataset of (x, y) batches"
        arguments = "" if missing[0] == name else "batch_size"
        raise _refusal(
            target,
            f"no function {missing[0]!r}",
            f"define {missing[0]}({arguments}), which returns {wanted}",
        )
    return names[name], names["data"]


def _refusal(target: str, found: str, do: str) -> InvalidArgument:
    return InvalidArgument(asked=f"distlab bench {target}", found=found, do=do)


if __name__ == "__main__":
    mode, *numbers = sys.argv[1:]
    measured = _measure_here(mode, *(int(number) for number in numbers))
    print(_MARK + json.dumps([dataclasses.asdict(step) for step in measured]))
