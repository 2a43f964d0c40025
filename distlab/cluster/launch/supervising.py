"""Watches over the tasks of a cluster that run one command, and acts when one of them ends.

    code = Supervisor(cluster, output, policy=RestartPolicy(max_restarts=3)).run()

`cluster` makes the group of processes, on new ports each time it is called; what they say passes
through `output`, and the supervisor's own lines go between.
"""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import FrameType

from distlab.cluster import exit_status
from distlab.cluster.group import GRACE_SECS, TaskGroup
from distlab.cluster.launch.script import STACKS_SIGNAL
from distlab.cluster.launch.task_output import TaskOutput
from distlab.cluster.ports import is_port_taken
from distlab.cluster.spec import TaskName

TIMED_OUT = 124  # as of the command `timeout`

_LOOK_SECS = 0.02
# For how long a cause is looked for, where the task that was seen to fail had lost a peer.
_SETTLE_SECS = 1.0
# Until when a task may say that its port is taken, and how often others are tried.
_FIRST_SECS, _MOST_LOST_PORTS = 20.0, 5
_STACKS_SECS = 2.0
# What the others have to end by themselves. A worker that waits for one that is lost cannot save,
# nor does it heed SIGTERM: TensorFlow catches it. One that was told to leave saves with the others.
_LOST_SECS, _PREEMPTED_SECS = 0.3, 5.0


@dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    """What is done when tasks end, or do not.

    Attributes:
        max_restarts: How often tasks are started again after a failure.
        timeout_secs: When all is ended, restarts included; None never.
        grace_secs: How long tasks may take to save when this process is told to end, and how
            long an evaluator may go on when training has ended.
    """

    max_restarts: int = 0
    timeout_secs: float | None = None
    grace_secs: float = 30.0


class _PortLostError(Exception):
    """Another process was first on a port of the cluster."""


class Supervisor:
    """Runs a cluster to its end."""

    def __init__(
        self,
        cluster: Callable[[], AbstractContextManager[TaskGroup]],
        output: TaskOutput,
        *,
        policy: RestartPolicy,
    ) -> None:
        self._cluster, self._output, self._policy = cluster, output, policy
        limit = policy.timeout_secs
        self._deadline = time.monotonic() + (math.inf if limit is None else limit)
        self._restarts = self._lost_ports = 0
        self._signals: list[int] = []
        self._is_starting = False
        self._started_at: dict[TaskName, float] = {}

    def run(self) -> int:
        """Starts all tasks and returns the exit code once there is nothing left to do."""
        with _heard(self._hear):
            while True:
                with contextlib.suppress(_PortLostError), self._cluster() as self._group:
                    return self._supervise()

    def _supervise(self) -> int:
        self._start(self._group.spec.tasks_in_order())
        while True:
            if self._signals:
                return self._on_signal(self._signals[0])
            if self._output.broken:
                self._end(self._all(), signal.SIGTERM)
                return 128 + signal.SIGPIPE
            if self._is_over():
                return self._on_success()
            if time.monotonic() > self._deadline:
                return self._on_timeout()
            if (code := self._on_failures()) is not None:
                return code
            time.sleep(_LOOK_SECS)

    # What there is.

    def _all(self) -> tuple[TaskName, ...]:
        return self._group.spec.tasks_in_order()

    def _serves(self, task: TaskName) -> bool:
        """Whether a task does what the coordinator tells it, until it is told to end."""
        has_coordinator = self._group.spec.has_parameter_servers
        return has_coordinator and task.job in ("worker", "ps")

    def _trainers(self) -> list[TaskName]:
        """The tasks that end when the training has."""
        return [t for t in self._all() if t.job != "evaluator" and not self._serves(t)]

    def _is_over(self) -> bool:
        ended = self._group.ended()
        return all(ended.get(task) == 0 for task in self._trainers())

    # What is done.

    def _start(self, tasks: Iterable[TaskName]) -> None:
        self._is_starting = True
        # The server may still warm for seconds: an interrupt must not wait for it.
        with contextlib.suppress(KeyboardInterrupt):
            for task in tasks:
                try:
                    self._group.start([task])
                finally:
                    self._output.started(str(task))
                self._started_at[task] = time.monotonic()
        self._is_starting = False

    def _end(
        self,
        tasks: Iterable[TaskName],
        number: int,
        grace_secs: float = GRACE_SECS,
        *,
        waits_for: Iterable[TaskName] | None = None,
    ) -> None:
        """Ends tasks by a signal, and by SIGKILL after a time, or when we get another signal.

        They have less than that time where all that it waits for have ended (all, if not said).
        """
        tasks, heard = list(tasks), len(self._signals)
        awaited = set(tasks if waits_for is None else waits_for)
        self._group.send_signal(tasks, number)
        deadline = time.monotonic() + grace_secs
        while set(self._group.running()) & awaited and time.monotonic() < deadline:
            if len(self._signals) > heard:
                break
            time.sleep(_LOOK_SECS)
        self._group.stop(set(self._group.running()) & set(tasks), grace_secs=0)
        for task in tasks:
            self._output.finish(str(task))

    def _on_signal(self, number: int) -> int:
        self._output.hurry = True
        if number == signal.SIGTERM:
            secs = self._policy.grace_secs
            self._say(f"SIGTERM: tasks have {secs:g} s to save; a second signal ends them at once")
            # Those that train have something to save, and need the others for it.
            self._end(self._trainers(), signal.SIGTERM, secs)
            self._end(self._all(), signal.SIGTERM, 0 if len(self._signals) > 1 else GRACE_SECS)
        else:
            self._end(self._all(), number)
        self._say(f"all tasks were ended by {signal.Signals(number).name}")
        return 128 + number

    def _on_success(self) -> int:
        if evaluators := [task for task in self._all() if task.job == "evaluator"]:
            until = min(time.monotonic() + self._policy.grace_secs, self._deadline)
            while set(self._group.running()) & set(evaluators) and time.monotonic() < until:
                if self._signals:
                    return self._on_signal(self._signals[0])
                time.sleep(_LOOK_SECS)
        for task, code in self._failed().items():
            if task.job == "evaluator":
                self._say(f"{task} {exit_status.how_it_ended(code)}; training had ended before")
        self._end(self._all(), signal.SIGTERM)
        return 0

    def _on_timeout(self) -> int:
        late = self._group.running()
        self._group.send_signal(late, STACKS_SIGNAL, to_group=False)
        until = time.monotonic() + _STACKS_SECS
        while time.monotonic() < until and not all(map(self._has_shown_stacks, late)):
            time.sleep(_LOOK_SECS)
        self._end(self._all(), signal.SIGTERM)
        names = ", ".join(map(str, late))
        self._say(
            f"not ended after {self._policy.timeout_secs:g} s: {names}; their stacks are above, "
            "all tasks were ended"
        )
        return TIMED_OUT

    def _has_shown_stacks(self, task: TaskName) -> bool:
        return "most recent call first" in self._output.said(str(task))

    def _on_failures(self) -> int | None:
        """Returns the exit code if a task has failed and is not to be started again."""
        if not (failed := self._failed()):
            return None
        task, failed = self._cause(failed)
        if any(map(self._has_lost_its_port, failed)) and self._lost_ports < _MOST_LOST_PORTS:
            self._lost_ports += 1
            self._say("another process was first on a port; all start again on other ports")
            raise _PortLostError
        how = f"{task} {exit_status.how_it_ended(failed[task])}"
        grace_secs = _PREEMPTED_SECS if exit_status.is_preempted(failed[task]) else _LOST_SECS
        if self._restarts == self._policy.max_restarts:
            self._end(self._all(), signal.SIGTERM, grace_secs)
            others = "" if len(self._all()) == 1 else "; the others were ended"
            self._say(f"{how}{others}")
            return exit_status.exit_code(failed[task]) or 1  # a server may have left with 0
        self._restarts += 1
        again = [task] if self._is_replaceable(task) else list(self._all())
        what = "it is" if len(again) == 1 else "all are"
        number = f"restart {self._restarts} of {self._policy.max_restarts}"
        # Servers have nothing to save, and TensorFlow takes a second to end one.
        savers = [one for one in again if not self._serves(one)]
        self._end(again, signal.SIGTERM, grace_secs, waits_for=savers)
        self._say(f"{how}; {what} started again ({number})")
        if not self._signals:
            self._start(again)
        return None

    def _failed(self) -> dict[TaskName, int]:
        ended = self._group.ended()
        in_order = [task for task in self._all() if task in ended]
        return {task: ended[task] for task in in_order if ended[task] or self._serves(task)}

    def _cause(self, failed: dict[TaskName, int]) -> tuple[TaskName, dict[TaskName, int]]:
        """Returns which task failed by itself, and all that have failed by then."""

        def said(task: TaskName) -> str:
            return self._output.said(str(task))

        until = time.monotonic() + _SETTLE_SECS
        while True:
            for task in failed:
                self._output.finish(str(task))
            cause, is_certain = exit_status.first_cause(failed, said)
            if is_certain:
                return cause, failed
            if time.monotonic() > until:
                break
            time.sleep(_LOOK_SECS)
            failed = self._failed()
        # With an error of its own a task may wait long for its peers before it ends, with 1.
        raised = [task for task in self._group.running() if exit_status.has_raised(said(task))]
        return (raised[0], {**failed, raised[0]: 1}) if raised else (cause, failed)

    def _has_lost_its_port(self, task: TaskName) -> bool:
        is_new = time.monotonic() - self._started_at[task] < _FIRST_SECS
        return is_new and is_port_taken(self._output.said(str(task)))

    def _is_replaceable(self, task: TaskName) -> bool:
        """Whether the others can go on without a task until it is there again."""
        return task.job == "evaluator" or (task.job == "worker" and self._serves(task))

    def _hear(self, number: int, _: FrameType | None) -> None:
        self._signals.append(number)
        if self._is_starting:
            self._is_starting = False
            raise KeyboardInterrupt

    def _say(self, text: str) -> None:
        self._output.say(f"distlab launch: {text}")


@contextlib.contextmanager
def _heard(hear: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Has SIGINT and SIGTERM heard; one that this process was started to ignore stays so."""
    numbers = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, hear) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
