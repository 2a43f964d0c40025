"""Calls a function on a cluster's tasks until it is done, also where tasks are lost meanwhile.

    persist = Persistence(runner, kernels, restarts=2, start_timeout_secs=60)
    persist.call(train, (3,), tasks, timeout_secs=600)

A lost task costs a restart: all tasks are started again and the function is called anew. Where
parameter servers hold the variables, a lost worker is started again and the call goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from distlab.cluster.exit_status import how_it_ended
from distlab.cluster.group import GRACE_SECS
from distlab.cluster.local.kernel_group import KernelGroup
from distlab.cluster.local.kernel_runner import Runner
from distlab.cluster.local.task_errors import PortTaken
from distlab.cluster.spec import TaskName
from distlab.errors import TaskFailed

_TIMES_OTHER_PORTS = 3


class Persistence:
    """Calls functions, and starts tasks again that are lost."""

    def __init__(
        self, runner: Runner, kernels: KernelGroup, *, restarts: int, start_timeout_secs: float
    ) -> None:
        self._runner, self._kernels = runner, kernels
        self._restarts, self._start_timeout_secs = restarts, start_timeout_secs

    def call(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        tasks: Sequence[TaskName],
        *,
        timeout_secs: float,
        may_move: bool,
    ) -> list[Any]:
        """Calls a function on tasks and returns its results."""
        lives = _Lives(self._restarts)
        moves = _TIMES_OTHER_PORTS if may_move else 0

        def tend() -> None:
            for task, code in self._kernels.group.ended().items():
                if task not in tasks and task.job == "worker" and lives.left:
                    lives.take(f"{task} {how_it_ended(code)}")
                    self._kernels.start([task], timeout_secs=self._start_timeout_secs)

        def grace_secs(problem: TaskFailed) -> float:
            return 0 if lives.left and problem.is_loss else GRACE_SECS

        while True:
            try:
                return self._runner.call(
                    function,
                    args,
                    tasks,
                    timeout_secs=timeout_secs,
                    tend=tend,
                    grace_secs=grace_secs,
                )
            except TaskFailed as problem:
                if moves and isinstance(problem, PortTaken):
                    moves -= 1
                    self._kernels.take_other_ports()
                elif lives.left and problem.is_loss:
                    lives.take(problem.found)
                    self._kernels.group.stop(grace_secs=0)
                else:
                    raise
                self._kernels.start(timeout_secs=self._start_timeout_secs)


class _Lives:
    def __init__(self, total: int) -> None:
        self._total, self.left = total, total

    def take(self, why: str) -> None:
        self.left -= 1
        number = self._total - self.left
        print(f"{why}: started again ({number} of {self._total})")  # noqa: T201
