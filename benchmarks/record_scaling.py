"""Records how a CNN and an all-reduce scale on this machine, for lesson 14.

    python benchmarks/record_scaling.py --machine "two cores of a shared server"

Each number of replicas runs in a process of its own, several times in turn. Of each figure the
smallest median counts, because whatever else runs on a machine only adds time. The strategy is
TensorFlow's own MirroredStrategy, which adds up in a ring on logical devices. With `--overlap` it
records the steps with buckets instead: of each number of buckets the fastest step of two workers.
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

REPLICAS = (1, 2, 4)
LESSON = Path(__file__).parents[1] / "distlab/course/lesson_14_scaling"
OUT = LESSON / "recorded_scaling.json"
BUCKETS, STEPS = (1, 4, 16), 50


def measure(replicas: int) -> dict[str, Any]:
    """Measures in this process, which must be fresh."""
    import tensorflow as tf

    import distlab as dl
    from distlab.course.lesson_14_scaling.own_machine import measure_here

    devices = dl.split_devices(replicas, kind="cpu")
    tf.get_logger().setLevel("ERROR")
    found = dataclasses.asdict(measure_here(tf.distribute.MirroredStrategy(devices)))
    return {kind: found[kind] for kind in ("steps", "all_reduces")}


def record_overlap(machine: str) -> None:
    """Records a step of two workers by the number of buckets."""
    import distlab as dl
    from distlab.course.lesson_14_scaling.overlap import connect, time_steps

    with dl.LocalCluster(workers=2) as cluster:
        cluster.run(connect)
        steps = cluster.run(time_steps, BUCKETS, STEPS)[0]
    about = {
        "machine": machine,
        "recorded": datetime.date.today().isoformat(),
        "command": "python benchmarks/record_scaling.py --overlap",
        "steps": {count: _rounded(dataclasses.asdict(step)) for count, step in steps.items()},
    }
    out = LESSON / "recorded_overlap.json"
    out.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {out}")


def _rounded(times: dict[str, Any]) -> dict[str, Any]:
    return {
        name: round(ms, 1) if isinstance(ms, float) else [round(each, 1) for each in ms]
        for name, ms in times.items()
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
    parser.add_argument("--overlap", action="store_true", help="record buckets instead")
    options = parser.parse_args()
    if options.overlap:
        record_overlap(options.machine)
        return
    if options.measure:
        print(json.dumps(measure(options.measure)))
        return
    rounds: list[dict[str, list[dict[str, Any]]]] = []
    for number in range(1, options.rounds + 1):
        rounds.append({"steps": [], "all_reduces": []})
        for replicas in REPLICAS:
            command = [sys.executable, __file__, "--measure", str(replicas)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            for kind, rows in json.loads(done.stdout.splitlines()[-1]).items():
                rounds[-1][kind] += rows
        write(rounds, machine=options.machine)
        print(f"wrote {OUT} after round {number} of {options.rounds}", flush=True)


def write(rounds: list[dict[str, list[dict[str, Any]]]], *, machine: str) -> None:
    """Writes the smallest of all rounds so far."""
    about = {
        "machine": machine,
        "recorded": datetime.date.today().isoformat(),
        "command": "python benchmarks/record_scaling.py",
        "steps": smallest([each["steps"] for each in rounds], "whole_secs"),
        "all_reduces": smallest([each["all_reduces"] for each in rounds], "secs"),
    }
    OUT.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
