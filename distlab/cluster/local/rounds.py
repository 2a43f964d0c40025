"""One piece of code on several tasks at once: sent, listened to, and stopped where one fails.

round = Round(kernels, group=group, show=InTurn(...))
round.send({TaskName("worker", 0): "1 + 1"})
if not round.wait(deadline):           # time is over, or a task failed
    round.stop()
    round.failures                     # the root cause first
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import zmq

from distlab.cluster.exit_status import has_lost_a_peer
from distlab.cluster.group import GRACE_SECS, TaskGroup
from distlab.cluster.local.kernels import TaskKernel
from distlab.cluster.local.output_recorder import Recorder
from distlab.cluster.local.showing import InTurn
from distlab.cluster.spec import TaskName

_LOOK_MS = 50

# Workers knock at the first one's door; one that finds it shut waits a second before it knocks
# again (TensorFlow's grpc_channel.cc).
_HEAD_START_SECS = 0.05

# How long others are waited for once one has failed: a task that lost a peer may tell so before
# the peer's own end is seen, and what is wrong with the code is wrong on all tasks.
_CAUSE_SECS = 1.0
_ALL_FAIL_SECS = 0.5


@dataclass(frozen=True, kw_only=True)
class TaskFailure:
    """How a task failed: by an error, or because its process ended.

    Attributes:
        task: Which.
        error: The name of the error; "" where the process ended.
        text: The error's text.
        traceback: Where it was raised, in full.
        own_traceback: The part of it that a message shows.
        returned: The type of what its code returned, where that cannot be sent back.
        code: The exit code of the process, negative for a signal; None where it still runs.
    """

    task: TaskName
    error: str = ""
    text: str = ""
    traceback: str = ""
    own_traceback: str = ""
    returned: str = ""
    code: int | None = None

    @property
    def rank(self) -> int:
        """0 for what needs no other cause; more for what another task's failure brings about."""
        if self.code is not None:
            return int(self.code == -signal.SIGABRT)  # TensorFlow may abort when a peer is lost
        # The error of `fit` is raised from TensorFlow's, of which only the traceback speaks.
        return 2 if has_lost_a_peer(f"{self.error}: {self.text}\n{self.traceback}") else 0


class Round:
    """A piece of code that runs on tasks, from its sending to its end."""

    def __init__(
        self,
        kernels: Mapping[TaskName, TaskKernel],
        *,
        group: TaskGroup,
        show: InTurn | None,
        judge: Callable[[TaskName, dict[str, Any]], TaskFailure | None],
    ) -> None:
        self._kernels, self._group, self._show, self._judge = kernels, group, show, judge
        self._down = set(group.ended())
        self._stopping = False
        self.recorders: dict[TaskName, Recorder] = {}
        self.open: dict[TaskName, TaskKernel] = {}
        self._failures: list[TaskFailure] = []

    def send(self, code: Mapping[TaskName, str], *, store_history: bool) -> None:
        """Sends each task its code, the first one a moment before the others."""
        for number, (task, text) in enumerate(code.items()):
            if number == 1:
                time.sleep(_HEAD_START_SECS)
            self.recorders[task] = Recorder(str(task), log=self._group.log_of(task))
            self.open[task] = self._kernels[task]
            self.open[task].send(text, store_history=store_history)

    @property
    def failures(self) -> list[TaskFailure]:
        """What failed, the likely cause of the rest first."""
        return sorted(self._failures, key=lambda failure: (failure.rank, self._order(failure)))

    def _order(self, failure: TaskFailure) -> int:
        return list(self._kernels).index(failure.task)

    def wait(self, deadline: float, *, tend: Callable[[], object] = lambda: None) -> bool:
        """Listens until all tasks have ended well (True), one has failed, or time is over."""
        failed_at = float("inf")
        while self.open and time.monotonic() < min(deadline, failed_at + self._patience_secs()):
            self._listen()
            if self._failures:
                failed_at = min(failed_at, time.monotonic())
            tend()
        if self._failures:
            self._add_lost_peers()
        return not self.open and not self._failures

    def _patience_secs(self) -> float:
        if not self._failures:
            return 0.0
        first = self.failures[0]
        if first.rank:
            return _CAUSE_SECS
        return 0.0 if first.code is not None else _ALL_FAIL_SECS

    def stop(self, *, grace_secs: float = GRACE_SECS) -> None:
        """Ends the code where it still runs: by SIGINT, and what does not heed it by SIGKILL."""
        if not self.open:
            return
        self._stopping = True
        try:
            self._group.send_signal(self.open, signal.SIGINT)
            deadline = time.monotonic() + grace_secs
            while self.open and time.monotonic() < deadline:
                self._listen()
        finally:
            self._group.stop(self.open, grace_secs=0)
            for task in list(self.open):
                self._end(task)

    def _listen(self) -> None:
        poller = zmq.Poller()
        for kernel in self.open.values():
            for socket in kernel.sockets():
                poller.register(socket, zmq.POLLIN)
        poller.poll(_LOOK_MS)
        ended = self._group.ended()  # before what it has written is read
        for task, kernel in list(self.open.items()):
            messages = list(kernel.messages())
            for message in messages:
                if self._stopping and message["msg_type"] == "error":
                    continue  # that it was interrupted
                outputs = self.recorders[task].add(message)
                if self._show:
                    self._show.add(str(task), outputs)
            if not kernel.is_busy:
                self._take(task, kernel.reply or {})
            elif task in ended and not messages:
                self._fail(TaskFailure(task=task, code=ended[task]))
                self._end(task)

    def _take(self, task: TaskName, reply: dict[str, Any]) -> None:
        if failure := self._judge(task, reply):
            self._fail(failure)
        self._end(task)

    def _fail(self, failure: TaskFailure) -> None:
        if not self._stopping:
            self._failures.append(failure)

    def _end(self, task: TaskName) -> None:
        outputs = self.recorders[task].end()
        if self._show:
            self._show.add(str(task), outputs)
            self._show.end(str(task))
        del self.open[task]

    def _add_lost_peers(self) -> None:
        """A task without code of its own, as a parameter server, may be the cause."""
        for task, code in self._group.ended().items():
            if task not in self.recorders and task not in self._down:
                self._failures.append(TaskFailure(task=task, code=code))


def failure_from_reply(
    task: TaskName, reply: dict[str, Any], *, is_shown: bool
) -> TaskFailure | None:
    """Returns the failure that a kernel's reply tells of, if it does."""
    if reply["status"] == "ok":
        return None
    traceback = "\n".join(reply.get("traceback", ()))
    return TaskFailure(
        task=task,
        error=reply.get("ename", reply["status"]),
        text=reply.get("evalue", ""),
        traceback=traceback,
        own_traceback="" if is_shown else traceback,
    )
