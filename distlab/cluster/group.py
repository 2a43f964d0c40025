"""The processes of a cluster, one for each task: started, watched and ended together.

    how = Start(argv=["train.py"], env={})
    with TaskGroup(spec, how=lambda task: how, folder=folder) as group:
        group.start()
        group.ended()                     # {worker:1: -9}
        group.start()                     # those that have ended, again

Each is started and kept by a process outside of this one (`distlab.cluster.warm.process`), in a
process group of its own, with its TF_CONFIG in its environment. When this process ends, they end.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from distlab.cluster.deadline import Deadline
from distlab.cluster.proxies import bypass_proxies
from distlab.cluster.spec import ClusterSpec, TaskName
from distlab.cluster.warm.process import ForkedProcess, shared_server, task_environment

OPEN_SERVERS = (
    "TensorFlow's servers listen on every network interface without authentication: any program "
    "that reaches them can run code."
)

# How long a task that was asked to end may take before it is killed, not counting what it waits
# for a core (`Deadline`).
GRACE_SECS = 2.0
_LOOK_SECS = 0.005


@dataclass(frozen=True, kw_only=True)
class Start:
    """How a task is started."""

    argv: list[str]  # what follows `python`
    env: Mapping[str, str | None]  # to set besides TF_CONFIG; None takes a variable out
    # Where it writes; None is a file in the group's folder, `log_of`.
    stdout: int | IO[Any] | None = None
    stderr: int | IO[Any] | None = None
    network_of: int | None = None  # a process in whose network namespace it runs


class TaskGroup:
    """The processes of a cluster."""

    def __init__(
        self, spec: ClusterSpec, *, how: Callable[[TaskName], Start], folder: Path
    ) -> None:
        self.spec = spec
        self._how, self._folder = how, folder
        self._tasks: dict[TaskName, ForkedProcess] = {}

    def log_of(self, task: TaskName) -> Path:
        """Returns the file with what a task wrote to its own standard output and error."""
        return self._folder / f"{task.job}-{task.index}.log"

    def start(self, tasks: Iterable[TaskName] | None = None) -> None:
        """Starts tasks that do not run; all of the cluster by default."""
        for name in self.spec.tasks_in_order() if tasks is None else tasks:
            if name not in self._tasks or self._tasks[name].poll() is not None:
                self._tasks[name] = self._start(name)

    def _start(self, name: TaskName) -> ForkedProcess:
        start = self._how(name)
        env = task_environment({"TF_CONFIG": self.spec.tf_config(name), **start.env})
        env |= bypass_proxies(self.spec, env)
        streams = (start.stdout, start.stderr)
        with self.log_of(name).open("ab") if None in streams else contextlib.nullcontext() as log:
            return shared_server().spawn(
                start.argv,
                env=env,
                stdout=log if start.stdout is None else start.stdout,
                stderr=log if start.stderr is None else start.stderr,
                network_of=start.network_of,
            )

    def pid(self, task: TaskName) -> int:
        """Returns a task's process id."""
        return self._tasks[task].pid

    def pids(self) -> list[int]:
        """Returns the processes of the tasks that run."""
        return [self.pid(task) for task in self.running()]

    def exit_code(self, task: TaskName) -> int | None:
        """Returns the exit code of a task; None while it runs."""
        return self._tasks[task].poll()

    def ended(self) -> dict[TaskName, int]:
        """Returns the exit codes of the tasks that have ended; negative: the signal that did it."""
        codes = {name: task.poll() for name, task in self._tasks.items()}
        return {name: code for name, code in codes.items() if code is not None}

    def running(self) -> tuple[TaskName, ...]:
        """Returns the tasks that run, in order."""
        ended = self.ended()
        return tuple(n for n in self.spec.tasks_in_order() if n in self._tasks and n not in ended)

    def send_signal(self, tasks: Iterable[TaskName], number: int, *, to_group: bool = True) -> None:
        """Sends a signal to tasks; those that have ended are passed over."""
        for name in tasks:
            if name in self._tasks:
                self._tasks[name].send_signal(number, to_group=to_group)

    def stop(
        self, tasks: Iterable[TaskName] | None = None, *, grace_secs: float = GRACE_SECS
    ) -> dict[TaskName, int]:
        """Ends tasks, all by default: by SIGTERM, and those that do not heed it by SIGKILL."""
        names = list(self._tasks if tasks is None else tasks)
        if grace_secs > 0:
            self.send_signal(names, signal.SIGTERM)
            deadline = Deadline(grace_secs, self.pids)
            while not deadline.has_passed() and set(names) & set(self.running()):
                time.sleep(_LOOK_SECS)
        self.send_signal(names, signal.SIGKILL)
        return {name: self._tasks[name].wait() for name in names}

    def __enter__(self) -> TaskGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(grace_secs=0)
