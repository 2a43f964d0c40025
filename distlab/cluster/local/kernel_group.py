"""The kernels of a `LocalCluster` and their processes: started, started again and ended together.

kernels = KernelGroup(ClusterLayout(workers=2), env={}, network_of=None)
kernels.start(timeout_secs=60)       # all of them, until each answers
kernels.by_task[TaskName("worker", 0)]
kernels.close()
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import zmq

from distlab.cluster.exit_status import how_it_ended
from distlab.cluster.gpus import share_gpus, visible_gpus
from distlab.cluster.group import Start, TaskGroup
from distlab.cluster.isolation import unanswering_inside
from distlab.cluster.local.kernels import TaskKernel
from distlab.cluster.local.layout import ClusterLayout
from distlab.cluster.local.stacks import read_stacks
from distlab.cluster.ports import is_free, is_port_taken, reserved_ports
from distlab.cluster.probing import unanswering
from distlab.cluster.spec import ClusterSpec, TaskName
from distlab.errors import TaskFailed, TaskTimeout
from distlab.warm.process import shared_server

_LOOK_SECS = 0.005
_LOG_LINES = 8
_TIMES_OTHER_PORTS = 3
_LAST_LOOK_SECS = 2.0


class KernelGroup:
    """The kernels of a cluster."""

    def __init__(
        self,
        layout: ClusterLayout,
        *,
        env: Mapping[str, str | None],
        network_of: int | None,
    ) -> None:
        self.by_task: dict[TaskName, TaskKernel] = {}
        self._layout, self._env, self._network_of = layout, env, network_of
        self._started, self._starting = 0, threading.Lock()
        self._users, self._listening = threading.Condition(), 0
        self._ports = contextlib.ExitStack()
        spec = self._spec_on_new_ports()  # may fail: nothing was made yet
        # There it does not outlive a process that is killed.
        self.folder = Path(tempfile.mkdtemp(prefix="c-", dir=shared_server().folder))
        self._context: zmq.Context[Any] = zmq.Context()
        self.group = self._group(spec)
        self.gpus = share_gpus(spec, visible_gpus())
        if self.gpus.note:  # it tells of this machine: to the terminal, not to a cell's output
            print(self.gpus.note, file=sys.__stderr__)

    @property
    def spec(self) -> ClusterSpec:
        """The tasks and their addresses."""
        return self.group.spec

    def _spec_on_new_ports(self) -> ClusterSpec:
        former, self._ports = self._ports, contextlib.ExitStack()
        ports = self._ports.enter_context(reserved_ports(self._layout.addresses))
        former.close()  # only now, so that the new ones are others
        return self._layout.spec(ports)

    def _group(self, spec: ClusterSpec) -> TaskGroup:
        return TaskGroup(spec, how=self._how, folder=self.folder, network_of=self._network_of)

    def ports_are_free(self) -> bool:
        """Whether no process listens at any task's address."""
        addresses = [text for texts in self.spec.addresses.values() for text in texts]
        return all(is_free(int(text.rpartition(":")[2])) for text in addresses)

    def take_other_ports(self) -> None:
        """Ends all tasks; those that are started from now on listen elsewhere."""
        self.group.stop(grace_secs=0)
        self.group = self._group(self._spec_on_new_ports())

    def start(self, tasks: Iterable[TaskName] | None = None, *, timeout_secs: float) -> None:
        """Starts tasks that do not run, and returns when each of their kernels answers.

        Where a task finds that another program was first on its port, all get other ports.
        """
        for left in reversed(range(_TIMES_OTHER_PORTS)):
            try:
                with self._starting:
                    return self._start(tasks, timeout_secs)
            except TaskFailed as problem:
                taken = is_port_taken(self.group.log_of(_named(problem.task)).read_text())
                if not (taken and left) or tasks is not None:
                    raise
                self.take_other_ports()
        return None

    def _start(self, tasks: Iterable[TaskName] | None, timeout_secs: float) -> None:
        starting = [
            task
            for task in (self.spec.tasks_in_order() if tasks is None else tasks)
            if task not in self.group.running()
        ]
        for task in starting:
            if former := self.by_task.get(task):
                former.close()
            self._started += 1
            self.by_task[task] = TaskKernel(
                task, folder=self.folder, context=self._context, number=self._started
            )
        self.by_task = {task: self.by_task[task] for task in self.spec.tasks_in_order()}
        self.group.start(starting)
        deadline = time.monotonic() + timeout_secs
        asked = f"{', '.join(map(str, starting))} to start"
        while waited := [task for task in starting if not self.by_task[task].is_ready()]:
            ended = self.group.ended()
            for task in waited:
                if task in ended:
                    raise self._ended_too_soon(task, ended[task], asked=asked)
            if time.monotonic() > deadline:
                raise TaskTimeout(
                    asked=f"{asked} within {timeout_secs:g} s",
                    found=f"{', '.join(map(str, waited))} did not answer",
                    do="give start_timeout_secs more, or end other work on this machine",
                    task=str(waited[0]),
                )
            time.sleep(_LOOK_SECS)

    def _ended_too_soon(self, task: TaskName, code: int, *, asked: str) -> TaskFailed:
        return TaskFailed(
            asked=asked,
            found=f"{task} {how_it_ended(code)}; its last words:\n{self.last_words(task)}",
            do="repair what they tell of",
            task=str(task),
        )

    def _how(self, task: TaskName) -> Start:
        kernel, layout = self.by_task[task], self._layout
        command = ["-m", "distlab.cluster.local.task_process", "--stacks", str(kernel.stacks)]
        is_worker = task.job in ("chief", "worker")
        command += ["--devices", str(layout.devices_per_worker if is_worker else 1)]
        if layout.parameter_servers and task.job in ("worker", "ps"):
            command.append("--server")
        env: dict[str, str | None] = {
            "IPYTHONDIR": str(self.folder / "ipython"),
            "JPY_PARENT_PID": None,  # of this process, where it is a kernel
            "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        }
        if self.gpus.of_task:
            env["CUDA_VISIBLE_DEVICES"] = self.gpus.of_task[task]
        return Start(
            argv=[*command, "--", *kernel.arguments(), *_looks()], env=env | dict(self._env)
        )

    def stacks(self, task: TaskName) -> str:
        """Returns where the threads of a task are."""
        return read_stacks(
            self.by_task[task].stacks,
            ask=lambda: self.group.send_signal([task], signal.SIGUSR1, to_group=False),
        )

    def unanswering(self) -> Mapping[TaskName, object]:
        """Returns the tasks that others wait for: their server does not answer, some other's does.

        Told is what came back instead.
        """
        tasks = [(task, self.spec.address_of(task)) for task in self.spec.tasks_in_order()]
        coordinator = "chief" if self.spec.has_parameter_servers else None
        asked = {task: text for task, text in tasks if text and task.job != coordinator}
        if self._network_of is None:
            silent: Mapping[TaskName, object] = unanswering(asked)
        else:
            silent = unanswering_inside(self._network_of, asked)
        return silent if len(silent) < len(asked) else {}

    def last_words(self, task: TaskName) -> str:
        """Returns the last lines of a task's log, indented."""
        lines = self.group.log_of(task).read_text(errors="replace").splitlines()
        return "\n".join(f"    {line}" for line in lines[-_LOG_LINES:])

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside, the connections to the kernels stay open."""
        with self._users:
            self._listening += 1
        try:
            yield
        finally:
            with self._users:
                self._listening -= 1
                self._users.notify_all()

    def close(self) -> None:
        """Ends every task and leaves nothing."""
        try:
            self.group.stop(grace_secs=0)
            with self._users:  # who listens to a kernel in another thread sees that it has ended
                self._users.wait_for(lambda: not self._listening, timeout=_LAST_LOOK_SECS)
        finally:
            for kernel in self.by_task.values():
                kernel.close()
            self._context.destroy(linger=0)
            self._ports.close()
            shutil.rmtree(self.folder, ignore_errors=True)


def _named(task: str) -> TaskName:
    job, _, index = task.partition(":")
    return TaskName(job, int(index))


def _looks() -> list[str]:
    """Kernels show errors as this process does."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    looks = ["--HistoryManager.enabled=False"]
    if shell is None:
        return [*looks, "--InteractiveShell.colors=nocolor"]
    mode = shell.InteractiveTB.mode
    return [*looks, f"--InteractiveShell.colors={shell.colors}", f"--InteractiveShell.xmode={mode}"]
