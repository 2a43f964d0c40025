"""Kills the tasks of trainings at random steps, and holds that they recover each time.

    python tools/chaos.py                      # `make chaos`: 50 kills
    python tools/chaos.py --kills 5 --seed 7   # the same again

`distlab launch --max-restarts` runs tests/support/train_and_resume.py, in turn on two workers and
under parameter servers; SIGKILL or SIGTERM ends one of its tasks, again and again. What must hold:
it ends with 0, goes on from the last checkpoint, and leaves no process and no port. On two workers
the weights are, bit by bit, those of a run that nothing disturbed. Under parameter servers, which
are asynchronous, no step is missing and the loss is within `BAND` of the undisturbed run's.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from distlab.cluster.launch.script import STACKS_SIGNAL
from distlab.cluster.ports import is_free
from distlab.cluster.warm.process import ADDRESS_VARIABLE, shared_server

SCRIPT = Path(__file__).resolve().parent.parent / "tests" / "support" / "train_and_resume.py"
MOST_KILLS = 10  # of one run
BAND = 1.5  # the loss is at most so many times the undisturbed one's, or that so many times it
STEP_SECS = 0.02
TIMEOUT_SECS = 120.0
# Every process of a run has this in its environment: so one that is left is found.
MARK = "DISTLAB_CHAOS"


class Cluster(NamedTuple):
    """Where a training runs, and how many steps it takes for each kill, on average."""

    arguments: tuple[str, ...]
    tasks: tuple[str, ...]
    alone: tuple[str, ...]  # those that are started again alone when they are lost
    steps_between: int


TWO_WORKERS = Cluster(("--workers", "2"), ("worker:0", "worker:1"), (), 10)
SERVERS = Cluster(
    ("--workers", "2", "--ps", "1"),
    ("chief:0", "worker:0", "worker:1", "ps:0"),
    ("worker:0", "worker:1"),
    40,
)


class Kill(NamedTuple):
    """Which task is ended by which signal, and how long after which step."""

    step: int
    delay_secs: float
    task: str
    number: signal.Signals


class NotRecovered(AssertionError):
    """A run did not recover as it must."""


def plan(cluster: Cluster, kills: int, draw: random.Random) -> list[Kill]:
    """Returns kills at random steps, in order."""
    return [
        Kill(
            step,
            draw.uniform(0, 2 * STEP_SECS),
            draw.choice(cluster.tasks),
            draw.choice((signal.SIGKILL, signal.SIGTERM)),
        )
        for step in sorted(draw.choices(range(1, kills * cluster.steps_between), k=kills))
    ]


class Run:
    """A launched training, with what its tasks last printed."""

    def __init__(self, cluster: Cluster, folder: Path, *, steps: int, max_restarts: int) -> None:
        self.cluster, self.folder, self.mark = cluster, folder, secrets.token_hex(8)
        self.lines, self.pids = list[str](), dict[str, int]()
        self.numbers: dict[str, int] = {}  # after "step" and "goes on from"
        command = [sys.executable, "-m", "distlab.cli", "launch", *cluster.arguments]
        command += ["--max-restarts", str(max_restarts), str(SCRIPT), str(folder)]
        self.process = subprocess.Popen(
            [*command, "--steps", str(steps), "--step-secs", str(STEP_SECS)],
            env={**os.environ, MARK: self.mark, ADDRESS_VARIABLE: shared_server().address},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )

    def read_until(self, done: Callable[[], bool]) -> bool:
        """Reads what the tasks print until it is so, the run ends, or its time is over."""
        assert self.process.stdout is not None
        timer = threading.Timer(TIMEOUT_SECS, self.stop_late)
        timer.start()
        while not done() and (line := self.process.stdout.readline()):
            self.lines.append(line)
            task, _, text = line.rstrip().partition(" | ")
            if match := re.fullmatch(r"(step|goes on from) (\d+)", text):
                self.numbers[match[1]] = int(match[2])
            elif match := re.fullmatch(r"pid (\d+)", text):
                self.pids[task.strip()] = int(match[1])
        timer.cancel()
        return done()

    def stop_late(self) -> None:
        """Has each task print its stacks, and ends the run."""
        for pid in self.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, STACKS_SIGNAL)
        time.sleep(2)
        for process in self.processes():
            process.kill()

    def wait_for(self, done: Callable[[], bool]) -> None:
        """Reads until it is so, which it must be before the run ends."""
        if not self.read_until(done):
            raise self.failure(f"it ended too early, or hung for {TIMEOUT_SECS:g} s")

    def next_number(self, name: str, least: int = 0) -> int:
        """Returns the next number that a task prints after this name."""
        self.numbers.pop(name, None)
        self.wait_for(lambda: self.numbers.get(name, -1) >= least)
        return self.numbers[name]

    def last_saved(self) -> int:
        """Returns the last step that a whole checkpoint has."""
        names = (path.name for path in self.folder.glob("checkpoints/epoch-*-step-*"))
        return max((int(name.rpartition("-")[2]) for name in names), default=0)

    def suffer(self, kill: Kill) -> None:
        """Kills a task, and waits until the training has gone on."""
        self.next_number("step", least=kill.step)
        self.wait_for(lambda: kill.task in self.pids)
        time.sleep(kill.delay_secs)
        saved, victim = self.last_saved(), self.pids[kill.task]
        is_alone = kill.task in self.cluster.alone
        restarted = {kill.task} if is_alone else set(self.cluster.tasks)
        for task in restarted:
            self.pids.pop(task, None)
        start = time.monotonic()
        os.kill(victim, kill.number)
        self.wait_for(lambda: restarted <= self.pids.keys())
        resumed = saved if is_alone else self.next_number("goes on from")
        self.next_number("step")
        secs = time.monotonic() - start
        if resumed < saved:
            raise self.failure(f"step {saved} was saved, and it went on from {resumed}")
        print(f"{kill.task:9} {kill.number.name:8} step {kill.step}: {secs:.2f} s", flush=True)

    def end(self) -> dict[str, np.ndarray]:
        """Waits for the end, and returns what was trained; nothing else may be left."""
        self.read_until(lambda: False)
        if code := self.process.wait(TIMEOUT_SECS):
            raise self.failure(f"it ended with {code}")
        if left := self.processes():
            raise self.failure(f"these processes are left: {left}")
        ports = [int(port) for port in re.findall(r" on [\d.]+:(\d+)", "".join(self.lines))]
        if taken := [port for port in ports if not is_free(port)]:
            raise self.failure(f"these ports are left: {taken}")
        with np.load(self.folder / "trained.npz") as trained:
            return dict(trained)

    def processes(self) -> list[psutil.Process]:
        """Returns the processes of this run."""
        processes = psutil.process_iter(["environ"])
        return [p for p in processes if (p.info["environ"] or {}).get(MARK) == self.mark]

    def failure(self, text: str) -> NotRecovered:
        """Returns the error, with what was printed last."""
        return NotRecovered(f"{text}\n{''.join(self.lines[-200:])}")

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()  # its tasks end with it
        self.process.wait()


def disturb(cluster: Cluster, kills: int, seed: int, folder: Path) -> None:
    """Kills tasks of one training, and compares it with one that nothing disturbed."""
    steps = (kills + 1) * cluster.steps_between
    with Run(cluster, folder / "undisturbed", steps=steps, max_restarts=0) as run:
        expected = run.end()
    with Run(cluster, folder / "disturbed", steps=steps, max_restarts=kills) as run:
        for kill in plan(cluster, kills, random.Random(seed)):
            run.suffer(kill)
        trained = run.end()
        if wrong := differences(expected, trained, to_the_bit=cluster is TWO_WORKERS):
            raise run.failure(f"not as an undisturbed run: {wrong}")


def differences(
    expected: dict[str, np.ndarray], trained: dict[str, np.ndarray], *, to_the_bit: bool
) -> str:
    """Returns what of a training is not as it must be; "" for nothing."""
    if to_the_bit:
        names = expected.keys() | trained.keys()
        same = (k for k in expected if np.array_equal(expected[k], trained.get(k)))
        return ", ".join(sorted(names.difference(same)))
    ratio = float(trained["loss"][-1] / expected["loss"][-1])
    if not 1 / BAND <= ratio <= BAND:
        return f"the loss is {ratio:.2f} times as high"
    if len(trained["loss"]) < len(expected["loss"]) or trained["steps"] < expected["steps"]:
        return f"{trained['steps']} steps for {expected['steps']}"
    return ""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    options = parser.parse_args()
    print(f"seed {options.seed}; each line says when training went on", flush=True)
    firsts = range(0, options.kills, MOST_KILLS)
    for first, cluster in zip(firsts, itertools.cycle((TWO_WORKERS, SERVERS)), strict=False):
        with tempfile.TemporaryDirectory() as name:
            kills = min(MOST_KILLS, options.kills - first)
            disturb(cluster, kills, options.seed + first, Path(name))
    print(f"{options.kills} kills, {options.kills} recoveries; no process and no port left")
