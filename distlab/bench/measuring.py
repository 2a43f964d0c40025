"""Measures a reader's own model on 1 to N replicas, each number in a process of its own.

steps = measure_scaling("train.py", replicas=(1, 2, 4), batch=64)
steps["strong"][2].whole_secs

Logical devices are fixed once TensorFlow runs, so one process cannot have 1 and then 2 of them.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from distlab.errors import InvalidArgument, ProcessError
from distlab.measure.scaling_runs import MeasuredStep, time_step

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
    """Returns the measured steps by kind of scaling, in the order of `replicas`."""
    uneven = [count for count in replicas if count < 1 or batch % count]
    if uneven:
        raise InvalidArgument(
            asked=f"distlab bench {target} with --batch {batch}",
            found=f"{batch} examples, which {uneven[0]} replicas cannot share equally",
            do=f"give a multiple of {uneven[0]}",
            pitfall="Empty shares: the last step is too short",
        )
    rows = []
    for count in replicas:
        tell(count)
        rows.append(_in_own_process(target, count, batch, blocks))
    return {kind: [row[place] for row in rows] for place, kind in enumerate(KINDS)}


def _in_own_process(target: str, replicas: int, batch: int, blocks: int) -> list[MeasuredStep]:
    call = [target, str(replicas), str(batch), str(blocks)]
    command = [sys.executable, "-m", "distlab.bench.measuring", *call]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if done.returncode or not found:
        raise ProcessError(
            asked=f"distlab bench {target} on {replicas} replicas",
            found=f"a process that ended with exit code {done.returncode}: "
            + "\n".join(done.stderr.strip().splitlines()[-3:]),
            do="run the model on one device first, and see its whole error there",
        )
    stored: list[dict[str, Any]] = json.loads(found[-1].removeprefix(_MARK))
    return [
        MeasuredStep(**{**row, "middle_half_secs": tuple(row["middle_half_secs"])})
        for row in stored
    ]


def _measure_here(target: str, replicas: int, batch: int, blocks: int) -> list[MeasuredStep]:
    """A strong and a weak step, in this process."""
    from distlab.bench.own_code import own_functions
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


if __name__ == "__main__":
    what, *numbers = sys.argv[1:]
    measured = _measure_here(what, *(int(number) for number in numbers))
    print(_MARK + json.dumps([dataclasses.asdict(step) for step in measured]))  # noqa: T201
