"""Runs code and functions on a cluster's kernels, and returns or raises what happened.

    runner = Runner(kernels, restarts=0)
    runner.run_cell("1 + 1", tasks, timeout_secs=60, show=True)      # outputs by task
    runner.call(train, (3,), tasks, timeout_secs=60)                 # one result a task

A first failure ends the rest, as does the end of time, or an interrupt of this process: by
SIGINT, and two seconds later by SIGKILL, which alone reaches a task that waits for a peer. A second
interrupt doesn't wait for the two seconds. All limits are those of a `Deadline`: on a busy machine
a task has longer to heed the SIGINT.
"""

from __future__ import annotations

import functools
import itertools
import pickle
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import zmq

from distlab.cluster.deadline import Deadline
from distlab.cluster.exit_status import how_it_ended
from distlab.cluster.group import GRACE_SECS
from distlab.cluster.local import task_errors
from distlab.cluster.local.deferred_interrupt import deferred_interrupt
from distlab.cluster.local.kernel_group import KernelGroup, TaskKernel
from distlab.cluster.local.output_columns import task_display
from distlab.cluster.local.outputs import Output, Recorder
from distlab.cluster.local.remote_calls import pack_call
from distlab.cluster.local.status import status_of
from distlab.cluster.local.task_errors import TaskFailure, join_names
from distlab.cluster.spec import TaskName
from distlab.errors import Interrupted, ProcessError, TaskFailed

_CALL = (
    "__import__('distlab.cluster.local.remote_calls', fromlist=['answer'])"
    ".answer({call!r}, {result!r})"
)
_POLL_MS = 50

# Workers connect to the first one's server; one that is refused tries again only a second later
# (TensorFlow's grpc_channel.cc).
_HEAD_START_SECS = 0.05

# How long others are waited for once one has failed: a task that lost a peer may tell so before
# the peer's own end is seen, and what is wrong with the code is wrong on all tasks.
_CAUSE_SECS = 1.0
_ALL_FAIL_SECS = 0.5


class Runner:
    """Runs code on the kernels of a cluster, and starts tasks again that are lost meanwhile."""

    def __init__(self, kernels: KernelGroup, *, restarts: int) -> None:
        self._kernels, self._restarts = kernels, restarts
        self._numbers = itertools.count()

    def run_cell(
        self, code: str, tasks: Sequence[TaskName], *, timeout_secs: float, show: bool
    ) -> dict[TaskName, list[Output]]:
        """Runs a cell on tasks and returns the outputs of each."""
        cell = _Execution(self._kernels, f"a cell on {join_names(tasks)}", show=show)
        cell.run(dict.fromkeys(tasks, code), timeout_secs=timeout_secs)
        return {task: recorder.outputs for task, recorder in cell.recorders.items()}

    def call(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        tasks: Sequence[TaskName],
        *,
        timeout_secs: float,
    ) -> list[Any]:
        """Calls a function on tasks until it is done, and returns its results in task order.

        A lost task costs a restart: all tasks are started and the function is called again.
        Where parameter servers hold the variables, only a lost worker is, and the call goes on.
        """
        packed = pack_call(function, args)
        name = getattr(function, "__name__", type(function).__name__)
        restarts_left = self._restarts

        def use_restart(why: str) -> None:
            nonlocal restarts_left
            restarts_left -= 1
            number = self._restarts - restarts_left
            print(f"{why}: started again ({number} of {self._restarts})")  # noqa: T201

        def replace_workers() -> None:
            for task, code in self._kernels.group.ended().items():
                if task not in tasks and task.job == "worker" and restarts_left:
                    use_restart(f"{task} {how_it_ended(code)}")
                    self._kernels.start([task])

        while True:
            call = _Execution(
                self._kernels,
                f"{name}() on {join_names(tasks)}",
                show=True,
                is_call=True,
                kills_at_loss=restarts_left > 0,
                on_poll=replace_workers,
            )
            try:
                return self._call_once(call, packed, tasks, timeout_secs)
            except TaskFailed as error:
                if not (restarts_left and error.is_loss):
                    raise
                use_restart(error.found)
                self._kernels.group.stop(grace_secs=0)
                self._kernels.start()

    def _call_once(
        self, call: _Execution, packed: bytes, tasks: Sequence[TaskName], timeout_secs: float
    ) -> list[Any]:
        file = self._kernels.folder / f"call-{next(self._numbers)}"
        results = {task: Path(f"{file}.{task.job}-{task.index}") for task in tasks}
        code = {task: _CALL.format(call=str(file), result=str(results[task])) for task in tasks}
        try:
            file.write_bytes(packed)
            call.run(code, timeout_secs=timeout_secs)
            return [_result(call.asked, task, path) for task, path in results.items()]
        finally:
            for path in (file, *results.values()):
                path.unlink(missing_ok=True)


def _result(asked: str, task: TaskName, file: Path) -> Any:
    try:
        return pickle.loads(file.read_bytes())
    except Exception as error:
        raise TaskFailed(
            asked=asked,
            found=f"{task} returned what this process cannot read: {error}",
            do=task_errors.RETURN_PLAIN,
            task=str(task),
        ) from error


class _Execution:
    """One piece of code on several tasks at once, from its sending to its end."""

    def __init__(
        self,
        kernels: KernelGroup,
        asked: str,
        *,
        show: bool,
        is_call: bool = False,
        kills_at_loss: bool = False,
        on_poll: Callable[[], object] = lambda: None,
    ) -> None:
        self.asked = asked
        self.recorders: dict[TaskName, Recorder] = {}
        self._kernels, self._group = kernels, kernels.group
        self._shows, self._is_call = show, is_call
        self._kills_at_loss, self._on_poll = kills_at_loss, on_poll
        self._open: dict[TaskName, TaskKernel] = {}
        self._failures: list[TaskFailure] = []
        self._down_before = set(self._group.ended())
        self._stopping = False

    def run(self, code: Mapping[TaskName, str], *, timeout_secs: float) -> None:
        """Runs each task's code, and raises where a task fails or time is over."""
        status = functools.partial(status_of, self._kernels)
        self._display = task_display([*map(str, code)], status=status) if self._shows else None
        deadline = Deadline(timeout_secs, self._group.pids)
        with self._kernels.in_use():
            try:
                with self._kernels.sending:
                    self._check_idle(list(code))
                    with deferred_interrupt():
                        self._send(code)
                self._wait(deadline)
                if self._failures:
                    failures = self._sorted_failures()
                    is_over = failures[0].is_loss and self._kills_at_loss
                    self._stop(grace_secs=0 if is_over else GRACE_SECS)
                    failed = {failure.task for failure in failures}
                    ended = set(self._group.ended()) - self._down_before - failed
                    stopped = [task for task in code if task in ended]
                    raise task_errors.failed(self.asked, failures, self._kernels, stopped=stopped)
                if self._open:
                    raise task_errors.timed_out(
                        self.asked, timeout_secs, list(self._open), self._kernels
                    )
            except KeyboardInterrupt:
                if not self.recorders:  # nothing was sent
                    raise
                raise self._interrupted() from None
            finally:
                self._stop()

    def _check_idle(self, tasks: Sequence[TaskName]) -> None:
        running = self._group.running()
        if down := [task for task in tasks if task not in running]:
            raise ProcessError(
                asked=self.asked,
                found=f"{join_names(down)} {'is' if len(down) == 1 else 'are'} down",
                do="start it again: cluster.restart(); cluster.status() tells how it ended",
            )
        if busy := [task for task in tasks if self._kernels.by_task[task].is_busy]:
            raise ProcessError(
                asked=self.asked,
                found=f"{join_names(busy)} still run{'s' if len(busy) == 1 else ''} something else",
                do=f"wait for it, or end it: cluster.kill({str(busy[0])!r})",
            )

    def _send(self, code: Mapping[TaskName, str]) -> None:
        """Sends each task its code, the first one a moment before the others."""
        for number, (task, text) in enumerate(code.items()):
            if number == 1:
                time.sleep(_HEAD_START_SECS)
            self.recorders[task] = Recorder(str(task), log=self._group.log_of(task))
            self._open[task] = self._kernels.by_task[task]
            self._open[task].send(text, store_history=not self._is_call)

    def _wait(self, deadline: Deadline) -> None:
        """Listens until all tasks have ended well, one has failed, or time is over."""
        causes: dict[float, Deadline] = {}
        is_over = False
        while self._open and not is_over:
            is_over = deadline.has_passed() or self._has_cause(causes)  # before the last look
            self._listen()
            if self._failures and not causes:
                limits = (_ALL_FAIL_SECS, _CAUSE_SECS)
                causes = {secs: Deadline(secs, self._group.pids) for secs in limits}
            self._on_poll()
        if self._failures:
            # A task without code of its own, such as a parameter server, may be the cause.
            for task, code in self._group.ended().items():
                if task not in self.recorders and task not in self._down_before:
                    self._failures.append(TaskFailure(task=task, code=code))

    def _sorted_failures(self) -> list[TaskFailure]:
        """Returns what failed, the likely cause of the rest first."""
        order = list(self._kernels.by_task)
        return sorted(self._failures, key=lambda failure: (failure.rank, order.index(failure.task)))

    def _has_cause(self, limits: Mapping[float, Deadline]) -> bool:
        """Whether a task has failed, and no other failure is waited for any more."""
        if not self._failures:
            return False
        first = self._sorted_failures()[0]
        if not first.rank and first.code is not None:
            return True
        return limits[_CAUSE_SECS if first.rank else _ALL_FAIL_SECS].has_passed()

    def _stop(self, *, grace_secs: float = GRACE_SECS) -> None:
        """Ends the code where it still runs: by SIGINT, and what does not heed it by SIGKILL."""
        if not self._open:
            return
        try:
            self._interrupt(grace_secs)
        finally:
            self._kill()

    def _interrupted(self) -> Interrupted:
        """Ends the code as `_stop` does, and returns the error that says which tasks are left."""
        stacks = {}
        try:
            self._interrupt(GRACE_SECS)
            stacks = {task: self._kernels.stacks(task) for task in self._open}
        except KeyboardInterrupt:
            pass  # a second one: no more waiting
        finally:
            self._kill()
        return task_errors.interrupted(self.asked, list(self.recorders), stacks, self._kernels)

    def _interrupt(self, grace_secs: float) -> None:
        self._stopping = True
        deadline, is_over = Deadline(grace_secs, self._group.pids), grace_secs == 0
        told: set[TaskName] = set()
        while self._open and not is_over:
            # A kernel that has not begun with what it was sent ignores the signal.
            begun = {task for task, kernel in self._open.items() if kernel.has_begun} - told
            self._group.send_signal(begun, signal.SIGINT)
            told |= begun
            is_over = deadline.has_passed()  # before the last look
            self._listen()

    def _kill(self) -> None:
        self._group.stop(self._open, grace_secs=0)
        for task in list(self._open):
            self._end(task)

    def _listen(self) -> None:
        with deferred_interrupt():  # a reply that is read and not noted would be waited for
            self._read()
        if self._display:
            self._display.refresh()

    def _read(self) -> None:
        poller = zmq.Poller()
        for kernel in self._open.values():
            for socket in kernel.sockets():
                poller.register(socket, zmq.POLLIN)
        poller.poll(_POLL_MS)
        ended = self._group.ended()  # before what it has written is read
        for task, kernel in list(self._open.items()):
            messages = list(kernel.messages())
            for message in messages:
                if message["msg_type"] == "error" and (self._stopping or self._is_call):
                    continue  # it was interrupted, or the error raised here tells it
                self._show(task, self.recorders[task].add(message))
            if messages:
                kernel.last_line = self.recorders[task].last_line or kernel.last_line
            if self._stopping and kernel.is_idle:
                kernel.forgo_reply()
            if not kernel.is_busy:
                self._end(task, self._failure(task, kernel.reply or {}))
            elif task in ended and not messages:
                self._end(task, TaskFailure(task=task, code=ended[task]))

    def _failure(self, task: TaskName, reply: dict[str, Any]) -> TaskFailure | None:
        if reply["status"] == "ok":
            return None
        frames = reply.get("traceback", [])
        full = own = "\n".join(frames)
        if self._is_call:  # its own frames and all, unless it was interrupted before the call
            own, full = frames if len(frames) == 2 else ("", full)
        return TaskFailure(
            task=task,
            error=reply.get("ename", reply["status"]),
            text=reply.get("evalue", ""),
            traceback=full,
            own_traceback="" if self._shows and not self._is_call else own,
        )

    def _end(self, task: TaskName, failure: TaskFailure | None = None) -> None:
        if failure and not self._stopping:
            self._failures.append(failure)
        self._show(task, self.recorders[task].end(), is_last=True)
        del self._open[task]

    def _show(self, task: TaskName, outputs: list[Output], *, is_last: bool = False) -> None:
        if self._display:
            self._display.add(str(task), outputs, is_last=is_last)
