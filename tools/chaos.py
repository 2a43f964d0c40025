"""Kills the tasks of trainings at random steps, and holds that they recover each time.

    python tools/chaos.py                      # `make chaos`: 50 kills
    python tools/chaos.py --kills 5 --seed 7   # the same again

`distlab launch --max-restarts` runs tests/support/train_and_resume.py, in turn on two workers and
under parameter servers; a task of it is ended by SIGKILL or SIGTERM, again and again. What must
hold: it ends with 0, goes on from the last checkpoint, and leaves no process and no port. On two
workers the weights are, bit by bit, those of a run that nothing disturbed. Under parameter servers,
which are asynchronous, no step is missing and the loss is within `BAND` of the undisturbed one's.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import queue
import random
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from distlab.cluster.launch.script import STACKS_SIGNAL
from distlab.cluster.ports import is_free
from distlab.warm.keeper import shared_keeper
from distlab.warm.process import ADDRESS_VARIABLE

SCRIPT = Path(__file__).resolve().parent.parent / "tests" / "support" / "train_and_resume.py"
SIGNALS = (signal.SIGKILL, signal.SIGTERM)
MOST_KILLS = 10  # of one run
BAND = 1.5  # the loss is at most so many times the undisturbed one's, or that so many times it
_STEP_SECS = 0.02
_PATIENCE_SECS = 120.0
_STACKS_SECS = 2.0
# Every process of a run has this in its environment: so one that is left is found.
_MARK = "DISTLAB_CHAOS"


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Where a training runs.

    Attributes:
        arguments: What `distlab launch` is told.
        tasks: Its tasks.
        alone: Those that are started again alone when they are lost.
        steps_between: Steps of the training for each kill, on average.
    """

    arguments: tuple[str, ...]
    tasks: tuple[str, ...]
    alone: tuple[str, ...] = ()
    steps_between: int


TWO_WORKERS = Cluster(
    arguments=("--workers", "2"), tasks=("worker:0", "worker:1"), steps_between=10
)
SERVERS = Cluster(
    arguments=("--workers", "2", "--ps", "1"),
    tasks=("chief:0", "worker:0", "worker:1", "ps:0"),
    alone=("worker:0", "worker:1"),
    steps_between=40,
)


@dataclass(frozen=True, kw_only=True)
class Kill:
    """What befalls a run.

    Attributes:
        step: After which step.
        delay_secs: How long after it.
        task: Whom.
        number: The signal.
    """

    step: int
    delay_secs: float
    task: str
    number: signal.Signals


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """What followed on a kill.

    Attributes:
        kill: The kill.
        saved: The last step that a checkpoint had then.
        resumed_from: The step from which training went on; None where it never stopped.
        secs: From the kill to the next step that was done once all tasks were there again.
    """

    kill: Kill
    saved: int
    resumed_from: int | None
    secs: float


class NotRecovered(AssertionError):
    """A run did not recover as it must."""


def plan(cluster: Cluster, kills: int, draw: random.Random) -> list[Kill]:
    """Returns kills at random steps, in order.

    Args:
        cluster: Whose tasks.
        kills: How many.
        draw: Where chance comes from.
    """
    steps = sorted(draw.choices(range(1, kills * cluster.steps_between), k=kills))
    return [
        Kill(
            step=step,
            delay_secs=draw.uniform(0, 2 * _STEP_SECS),
            task=draw.choice(cluster.tasks),
            number=draw.choice(SIGNALS),
        )
        for step in steps
    ]


class Run:
    """A launched training, under watch.

    Args:
        cluster: Where it runs.
        folder: Where it leaves its checkpoints and weights.
        steps: How many it takes.
        max_restarts: How often it may be started again.
    """

    def __init__(self, cluster: Cluster, folder: Path, *, steps: int, max_restarts: int) -> None:
        self.cluster, self.folder, self.pids = cluster, folder, dict[str, int]()
        self._mark = secrets.token_hex(8)
        env = {**os.environ, _MARK: self._mark, ADDRESS_VARIABLE: shared_keeper().address}
        command = [sys.executable, "-m", "distlab.cli", "launch", *cluster.arguments]
        command += ["--max-restarts", str(max_restarts), str(SCRIPT), str(folder)]
        self._process = subprocess.Popen(
            [*command, "--steps", str(steps), "--step-secs", str(_STEP_SECS)],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self.said: list[str] = []
        self._lines: queue.Queue[tuple[float, str] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said.append(line)
            self._lines.put((time.monotonic(), line))
        self._lines.put(None)

    def until(self, seen: Callable[[str, str], bool]) -> float:
        """Returns when a task said what is looked for.

        Args:
            seen: Looks for it in a task's name and its line.

        Raises:
            NotRecovered: It is not said in time, or the run has ended.
        """
        deadline = time.monotonic() + _PATIENCE_SECS
        while True:
            try:
                item = self._lines.get(timeout=max(deadline - time.monotonic(), 0))
            except queue.Empty:
                self._ask_for_stacks()
                raise self.failure(f"nothing happens for {_PATIENCE_SECS:g} s") from None
            if item is None:
                raise self.failure("it ended too early")
            at, (task, _, text) = item[0], item[1].rstrip().partition(" | ")
            if pid := re.fullmatch(r"pid (\d+)", text):
                self.pids[task.strip()] = int(pid[1])
            if seen(task.strip(), text):
                return at

    def _ask_for_stacks(self) -> None:
        for pid in self.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, STACKS_SIGNAL)
        time.sleep(_STACKS_SECS)

    def until_number(self, words: str, *, least: int = 0) -> tuple[int, float]:
        """Returns a number that a task says, and when.

        Args:
            words: What it says before the number.
            least: How large it must be.
        """
        number = -1

        def seen(_: str, text: str) -> bool:
            nonlocal number
            if found := re.fullmatch(rf"{words} (\d+)", text):
                number = int(found[1])
            return number >= least

        at = self.until(seen)
        return number, at

    def until_started(self, tasks: Iterable[str]) -> None:
        """Waits until tasks have said which processes they are.

        Args:
            tasks: Which.
        """
        while not set(tasks) <= self.pids.keys():
            self.until(lambda task, text: True)

    def saved(self) -> int:
        """Returns the last step that a whole checkpoint has."""
        names = (path.name for path in self.folder.glob("checkpoints/epoch-*-step-*"))
        return max((int(name.rpartition("-")[2]) for name in names), default=0)

    def suffer(self, kill: Kill) -> Recovery:
        """Kills a task, and returns how the training goes on.

        Args:
            kill: Whom, when and how.

        Raises:
            NotRecovered: It does not go on, or from too far back.
        """
        self.until_number("step", least=kill.step)
        self.until_started([kill.task])
        time.sleep(kill.delay_secs)
        saved, victim = self.saved(), self.pids[kill.task]
        goes_on = kill.task in self.cluster.alone
        again = [kill.task] if goes_on else self.cluster.tasks
        for task in again:
            self.pids.pop(task, None)
        at = time.monotonic()
        os.kill(victim, kill.number)
        self.until_started(again)
        resumed_from = None if goes_on else self.until_number("goes on from")[0]
        _, again_at = self.until_number("step")
        if resumed_from is not None and resumed_from < saved:
            raise self.failure(f"step {saved} was saved, and it went on from {resumed_from}")
        return Recovery(kill=kill, saved=saved, resumed_from=resumed_from, secs=again_at - at)

    def end(self) -> dict[str, np.ndarray]:
        """Waits for the end, and returns what was trained.

        Raises:
            NotRecovered: It ended badly, or left something behind.
        """
        code = self._process.wait(_PATIENCE_SECS)
        if code:
            raise self.failure(f"it ended with {code}")
        if left := [p for p in psutil.process_iter() if self._is_ours(p)]:
            raise self.failure(f"these processes are left: {left}")
        ports = [int(port) for port in re.findall(r" on [\d.]+:(\d+)", "".join(self.said))]
        if taken := [port for port in ports if not is_free(port)]:
            raise self.failure(f"these ports are left: {taken}")
        with np.load(self.folder / "trained.npz") as trained:
            return dict(trained)

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(_MARK) == self._mark
        except psutil.Error:
            return False

    def failure(self, text: str) -> NotRecovered:
        """Returns the error, with what was said last.

        Args:
            text: What is wrong.
        """
        return NotRecovered(f"{text}\n{''.join(self.said[-200:])}")

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # its tasks end with it
        self._process.wait()


def recoveries(cluster: Cluster, kills: int, seed: int, folder: Path) -> list[Recovery]:
    """Kills tasks of one training, and returns how it recovered each time.

    Args:
        cluster: Where it runs.
        kills: How often.
        seed: Of what is done to whom, and when.
        folder: For what the trainings leave.

    Raises:
        NotRecovered: It did not recover as it must.
    """
    steps = (kills + 1) * cluster.steps_between
    with Run(cluster, folder / "undisturbed", steps=steps, max_restarts=0) as run:
        expected = run.end()
    with Run(cluster, folder / "disturbed", steps=steps, max_restarts=kills) as run:
        found = [run.suffer(kill) for kill in plan(cluster, kills, random.Random(seed))]
        trained = run.end()
        if wrong := differences(expected, trained, to_the_bit=cluster is TWO_WORKERS):
            raise run.failure(f"not as an undisturbed run: {wrong}")
    return found


def differences(
    expected: dict[str, np.ndarray], trained: dict[str, np.ndarray], *, to_the_bit: bool
) -> str:
    """Returns what of a training is not as it must be; "" for nothing.

    Args:
        expected: What an undisturbed run left.
        trained: What a disturbed one left.
        to_the_bit: Whether all must be the same, or the loss in its band and all steps done.
    """
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


def report(found: list[Recovery], first: int) -> str:
    """Returns the lines of the table for some recoveries.

    Args:
        found: The recoveries.
        first: The number of the first.
    """
    return "\n".join(
        f"{number:4}  {one.kill.task:9} {one.kill.number.name:8} {one.kill.step:5} "
        f"{one.saved:6} {'-' if one.resumed_from is None else one.resumed_from:>8} {one.secs:6.2f}"
        for number, one in enumerate(found, first)
    )


def main() -> int:
    """Runs it.

    Returns:
        0; what does not recover raises.
    """
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    options = parser.parse_args()
    print(f"seed {options.seed}\nkill  task      signal    step  saved  resumed   secs", flush=True)
    found: list[Recovery] = []
    for cluster in itertools.cycle((TWO_WORKERS, SERVERS)):
        kills = min(MOST_KILLS, options.kills - len(found))
        if kills <= 0:
            break
        with tempfile.TemporaryDirectory() as folder:
            new = recoveries(cluster, kills, options.seed + len(found), Path(folder))
        print(report(new, len(found) + 1), flush=True)
        found += new
    secs = sorted(one.secs for one in found)
    print(
        f"{len(found)} kills, {len(found)} recoveries; no process and no port left. "
        f"Secs to the next step: median {secs[len(secs) // 2]:.2f}, longest {secs[-1]:.2f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
