"""Records how a CNN and an all-reduce scale on this machine, for lesson 13.

    python benchmarks/record_scaling.py --machine "two cores of a shared server"

Each number of replicas runs in a process of its own, several times in turn. Of each figure the
smallest median counts, because whatever else runs on a machine only adds time. The strategy is
TensorFlow's own MirroredStrategy, which adds up in a ring on logical devices.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

REPLICAS, GLOBAL_BATCHES = (1, 2, 4), (32, 64, 128, 256)
SIZES_BYTES = tuple(4 * 4**power for power in range(12))  # 4 B to 16 MiB
BATCHES = 4
OUT = Path(__file__).resolve().parent.parent / "distlab" / "measure" / "recorded_scaling.json"


def measure(replicas: int) -> dict[str, Any]:
    """Measures in this process, which must be fresh."""
    import numpy as np
    import tensorflow as tf

    import distlab as dl
    from distlab.measure.bandwidth import time_all_reduce
    from distlab.measure.scaling_runs import small_cnn, time_step

    devices = dl.split_devices(replicas, kind="cpu")
    tf.get_logger().setLevel("ERROR")
    strategy = tf.distribute.MirroredStrategy(devices)
    draw = np.random.default_rng(0)
    steps = []
    for batch in GLOBAL_BATCHES:
        images = draw.random((BATCHES * batch, 28, 28, 1), dtype=np.float32)
        labels = draw.integers(0, 10, BATCHES * batch)
        data = tf.data.Dataset.from_tensor_slices((images, labels)).batch(batch)
        steps.append(time_step(small_cnn, strategy, data.prefetch(2)))
    reduced = time_all_reduce(strategy, SIZES_BYTES) if replicas > 1 else []
    return {
        "steps": [dataclasses.asdict(step) for step in steps],
        "all_reduces": [dataclasses.asdict(row) for row in reduced],
    }


def smallest(rounds: list[list[dict[str, Any]]], by: str) -> list[dict[str, Any]]:
    """Returns for each row the one with the smallest `by` of all rounds."""
    return [min(same, key=lambda row: row[by]) for same in zip(*rounds, strict=True)]


def main() -> None:
    """Records all, in processes of their own, or measures in this one."""
    parser = argparse.ArgumentParser(description="Record how a CNN scales on this machine.")
    parser.add_argument("--machine", default="a machine with two CPU cores", help="its name")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured (5)")
    parser.add_argument("--measure", type=int, metavar="REPLICAS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure)))
        return
    found: dict[int, list[dict[str, Any]]] = {replicas: [] for replicas in REPLICAS}
    for round_ in range(options.rounds):
        for replicas in REPLICAS:
            command = [sys.executable, __file__, "--measure", str(replicas)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found[replicas].append(json.loads(done.stdout.splitlines()[-1]))
            print(f"round {round_ + 1}, {replicas} replicas", flush=True)
    rows = {
        kind: [
            row
            for replicas in REPLICAS
            for row in smallest([one[kind] for one in found[replicas]], by)
        ]
        for kind, by in (("steps", "whole_secs"), ("all_reduces", "secs"))
    }
    about = {
        "machine": options.machine,
        "recorded": datetime.date.today().isoformat(),
        "command": "python benchmarks/record_scaling.py",
    }
    OUT.write_text(json.dumps({**about, **rows}, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {OUT}")


if __name__ == "__main__":
    main()
