"""Runs a script on every task of a cluster on this machine, and starts it again where it fails.

    options = LaunchOptions(workers=2, max_restarts=3)
    code = launch(["train.py", "--epochs", "3"], options)       # what `distlab launch` does

The tasks are kept by a process outside of this one, so they end with it, however it ends.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from distlab.cluster.cluster_explanation import OPEN_SERVERS
from distlab.cluster.gpus import share_gpus, visible_gpus
from distlab.cluster.group import Start, TaskGroup
from distlab.cluster.launch.supervising import RestartPolicy, Supervisor
from distlab.cluster.launch.task_output import TaskOutput
from distlab.cluster.ports import reserved_ports
from distlab.cluster.spec import ClusterSpec, TaskName, local_spec
from distlab.devices import MAX_LOGICAL_DEVICES
from distlab.errors import InvalidArgument


@dataclass(frozen=True, kw_only=True)
class LaunchOptions(RestartPolicy):
    """Which tasks a script is launched on, and what is done when they end.

    Attributes:
        workers: Number of workers.
        parameter_servers: Number of parameter servers; with some there is a chief too.
        chief: Whether there is a chief of its own; without, worker:0 acts as chief.
        evaluator: Whether there is a task that evaluates beside the training.
        devices_per_worker: Logical devices of each task; None leaves the devices as they are.
        log_dir: A folder for a log of each task.
    """

    workers: int = 1
    parameter_servers: int = 0
    chief: bool = False
    evaluator: bool = False
    devices_per_worker: int | None = None
    log_dir: Path | None = None

    @property
    def has_chief(self) -> bool:
        """Whether a chief is among the tasks."""
        return self.chief or self.parameter_servers > 0


def launch(command: Sequence[str], options: LaunchOptions) -> int:
    """Runs a command of Python on every task, and waits for the end."""
    _check_numbers(options)
    _check_devices(options)
    _check_command(command)
    cluster = _Cluster(command, options)
    return Supervisor(cluster.group, cluster.output, policy=options).run()


class _Cluster:
    """The processes that run a command, and what they say."""

    def __init__(self, command: Sequence[str], options: LaunchOptions) -> None:
        self._command, self._options = command, options
        self._gpus = visible_gpus()
        self._ports = options.workers + options.parameter_servers + options.has_chief
        names = map(str, self._spec([0] * self._ports).tasks_in_order())
        self.output = TaskOutput(list(names), log_dir=options.log_dir)

    def _spec(self, ports: Sequence[int]) -> ClusterSpec:
        return local_spec(
            workers=self._options.workers,
            parameter_servers=self._options.parameter_servers,
            chief=self._options.has_chief,
            evaluator=self._options.evaluator,
            ports=ports,
        )

    @contextlib.contextmanager
    def group(self) -> Iterator[TaskGroup]:
        """Yields the group of processes, on ports that are theirs meanwhile."""
        with reserved_ports(self._ports) as ports:
            spec = self._spec(ports)
            share = share_gpus(spec, self._gpus)

            def how(task: TaskName) -> Start:
                env = {"CUDA_VISIBLE_DEVICES": share.of_task[task]} if self._gpus else {}
                stdout, stderr = self.output.streams(str(task))
                return Start(argv=self._argv(), env=env, stdout=stdout, stderr=stderr)

            self._tell(spec, share.note)
            with TaskGroup(spec, how=how, folder=Path()) as group:
                yield group

    def _argv(self) -> list[str]:
        devices = self._options.devices_per_worker or 0
        return ["-m", "distlab.cluster.launch.script", str(devices), *self._command]

    def _tell(self, spec: ClusterSpec, note: str) -> None:
        tasks = spec.tasks_in_order()
        where = ", ".join(f"{task} on {spec.address_of(task) or 'no port'}" for task in tasks)
        self._say(f"{where}. {OPEN_SERVERS}")
        cores = os.cpu_count() or 1
        for line in (note, f"{len(tasks)} tasks share {cores} cores" * (len(tasks) > cores)):
            if line:
                self._say(line)

    def _say(self, text: str) -> None:
        self.output.say(f"distlab launch: {text}")


def _check_numbers(options: LaunchOptions) -> None:
    for option, number, least, most in (
        ("--workers", options.workers, 1, math.inf),
        ("--ps", options.parameter_servers, 0, math.inf),
        ("--max-restarts", options.max_restarts, 0, math.inf),
        ("--devices-per-worker", options.devices_per_worker, 1, MAX_LOGICAL_DEVICES),
        ("--grace-secs", options.grace_secs, 0, math.inf),
        ("--timeout", options.timeout_secs, 0, math.inf),
    ):
        if number is None or least <= number <= most:
            continue
        too_much = f"more than {most}" if number > most else "no number"
        raise InvalidArgument(
            asked=f"distlab launch {option} {number}",
            found=f"a number below {least}" if number < least else too_much,
            do=f"give a number from {least} on" + f", at most {most}" * (most < math.inf),
        )


def _check_devices(options: LaunchOptions) -> None:
    if options.parameter_servers and (options.devices_per_worker or 1) > 1:
        raise InvalidArgument(
            asked=f"distlab launch --ps {options.parameter_servers} "
            f"--devices-per-worker {options.devices_per_worker}",
            found="with parameter servers a worker computes on one CPU, or on its GPUs",
            do="ask for more workers instead of more devices",
        )


def _check_command(command: Sequence[str]) -> None:
    if not command or command == ["-m"]:
        raise InvalidArgument(
            asked="distlab launch",
            found="nothing to launch",
            do="name a script, `distlab launch --workers 2 train.py`, or a module, `-m train`",
        )
    asked = f"distlab launch {' '.join(command[: 1 + (command[0] == '-m')])}"
    if command[0] == "-m":
        # Only the outermost package: to look into it would run its code here.
        top = command[1].partition(".")[0]
        if importlib.machinery.PathFinder.find_spec(top, [str(Path.cwd()), *sys.path]) is None:
            raise InvalidArgument(
                asked=asked, found=f"no module {top!r}", do="run it where `python -m` finds it"
            )
        return
    script = Path(command[0])
    found = None
    if not script.exists():
        found = "no such file"
    elif not script.is_file():
        found = "a folder, not a file" if script.is_dir() else "no plain file"
    elif not os.access(script, os.R_OK):
        found = "a file that you may not read"
    if found:
        raise InvalidArgument(
            asked=asked,
            found=f"{found}: {script.absolute()}",
            do="give the path of a Python script",
        )
