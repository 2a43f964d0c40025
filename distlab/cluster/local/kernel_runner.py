"""Runs code and functions on a cluster's kernels, and returns or raises what happened.

    runner = Runner(kernels)
    runner.run_cell("1 + 1", tasks, timeout_secs=60, show=True)      # outputs by task
    runner.call(train, (3,), tasks, timeout_secs=60, ...)            # one result a task

A first failure ends the rest, as does the end of time, or an interrupt of this process: by
SIGINT, and two seconds later by SIGKILL, which alone reaches a task that waits for a peer.
"""

from __future__ import annotations

import itertools
import pickle
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from distlab.cluster.group import GRACE_SECS
from distlab.cluster.local import task_errors
from distlab.cluster.local.kernel_group import KernelGroup
from distlab.cluster.local.output_recorder import Output
from distlab.cluster.local.remote_calls import CallResult, pack_call, read_answer
from distlab.cluster.local.rounds import Round, TaskFailure, failure_from_reply
from distlab.cluster.local.showing import InTurn
from distlab.cluster.spec import TaskName
from distlab.errors import ProcessError, TaskFailed

_CALL = (
    "__import__('distlab.cluster.local.remote_calls', fromlist=['answer'])"
    ".answer({call!r}, {result!r})"
)


class Runner:
    """Runs code on the kernels of a cluster."""

    def __init__(self, kernels: KernelGroup) -> None:
        self._kernels = kernels
        self._sending = threading.Lock()
        self._numbers = itertools.count()

    def run_cell(
        self, code: str, tasks: Sequence[TaskName], *, timeout_secs: float, show: bool
    ) -> dict[TaskName, list[Output]]:
        """Runs a cell on tasks and returns the outputs of each."""

        def judge(task: TaskName, reply: dict[str, Any]) -> TaskFailure | None:
            return failure_from_reply(task, reply, is_shown=show)

        done = self._round(
            f"a cell on {_listed(tasks)}",
            dict.fromkeys(tasks, code),
            timeout_secs=timeout_secs,
            show=show,
            judge=judge,
            is_cell=True,
        )
        return {task: recorder.outputs for task, recorder in done.recorders.items()}

    def call(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        tasks: Sequence[TaskName],
        *,
        timeout_secs: float,
        tend: Callable[[], object],
        grace_secs: Callable[[TaskFailed], float],
    ) -> list[Any]:
        """Calls a function on tasks and returns its results, in the order of tasks."""
        packed = pack_call(function, args)
        name = getattr(function, "__name__", type(function).__name__)
        asked = f"{name}() on {_listed(tasks)}"
        call_file = self._kernels.folder / f"call-{next(self._numbers)}"
        results = {task: Path(f"{call_file}.{task.job}-{task.index}") for task in tasks}

        def judge(task: TaskName, reply: dict[str, Any]) -> TaskFailure | None:
            if not results[task].exists():  # it was interrupted before it could write one
                return failure_from_reply(task, reply, is_shown=False)
            return _failure_from_answer(task, read_answer(results[task]))

        try:
            call_file.write_bytes(packed)
            self._round(
                asked,
                {
                    task: _CALL.format(call=str(call_file), result=str(results[task]))
                    for task in tasks
                },
                timeout_secs=timeout_secs,
                show=True,
                judge=judge,
                is_cell=False,
                tend=tend,
                grace_secs=grace_secs,
            )
            return [_result(asked, task, read_answer(file)) for task, file in results.items()]
        finally:
            for file in (call_file, *results.values()):
                file.unlink(missing_ok=True)

    def _round(
        self,
        asked: str,
        code: Mapping[TaskName, str],
        *,
        timeout_secs: float,
        show: bool,
        judge: Callable[[TaskName, dict[str, Any]], TaskFailure | None],
        is_cell: bool,
        tend: Callable[[], object] = lambda: None,
        grace_secs: Callable[[TaskFailed], float] = lambda _: GRACE_SECS,
    ) -> Round:
        kernels = self._kernels
        with kernels.in_use():
            one = Round(
                kernels.by_task,
                group=kernels.group,
                show=InTurn(map(str, code)) if show else None,
                judge=judge,
            )
            try:
                with self._sending:
                    self._check_idle(asked, list(code))
                    one.send(code, store_history=is_cell)
                if one.wait(time.monotonic() + timeout_secs, tend=tend):
                    return one
                if one.failures:
                    problem = task_errors.failed(asked, one.failures, kernels)
                else:
                    problem = task_errors.late(asked, timeout_secs, list(one.open), kernels)
                one.stop(grace_secs=grace_secs(problem))
                raise problem
            finally:  # also after an interrupt of this process
                one.stop()

    def _check_idle(self, asked: str, tasks: Sequence[TaskName]) -> None:
        running = self._kernels.group.running()
        if down := [task for task in tasks if task not in running]:
            raise ProcessError(
                asked=asked,
                found=f"{_listed(down)} {'is' if len(down) == 1 else 'are'} down",
                do="start it again: cluster.restart(); cluster.status() tells how it ended",
            )
        if busy := [task for task in tasks if self._kernels.by_task[task].is_busy]:
            raise ProcessError(
                asked=asked,
                found=f"{_listed(busy)} still run{'s' if len(busy) == 1 else ''} something else",
                do="wait for it, or end it: cluster.interrupt()",
            )


def _failure_from_answer(task: TaskName, answer: CallResult) -> TaskFailure | None:
    if answer.result is not None:
        return None
    return TaskFailure(
        task=task,
        error=answer.error,
        text=answer.text,
        traceback=answer.traceback,
        own_traceback=answer.own_traceback,
        returned=answer.unpicklable,
    )


def _result(asked: str, task: TaskName, answer: CallResult) -> Any:
    assert answer.result is not None
    try:
        return pickle.loads(answer.result)
    except Exception as problem:
        raise TaskFailed(
            asked=asked,
            found=f"{task} returned what this process cannot read: {problem}",
            do=task_errors.RETURN_PLAIN,
            task=str(task),
        ) from problem


def _listed(tasks: Sequence[TaskName]) -> str:
    return ", ".join(map(str, tasks))
