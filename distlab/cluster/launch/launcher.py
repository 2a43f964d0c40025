"""Runs a script on every task of a cluster on this machine, and starts it again where it fails.

    options = LaunchOptions(layout=Layout(workers=2), max_restarts=3)
    code = launch(["train.py", "--epochs", "3"], options)       # what `distlab launch` does

The tasks are kept by a process outside of this one, so they end with it, however it ends. The
user's limit for all, `timeout_secs`, is the clock's, as of the command `timeout`. All others are
those of a `Deadline`, so tasks have longer on a busy machine.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from distlab.cluster import exit_status
from distlab.cluster.deadline import Deadline
from distlab.cluster.gpus import share_gpus, visible_gpus
from distlab.cluster.group import GRACE_SECS, OPEN_SERVERS, Start, TaskGroup
from distlab.cluster.launch.script import STACKS_SIGNAL
from distlab.cluster.launch.task_output import TaskOutput
from distlab.cluster.ports import reserved_ports
from distlab.cluster.spec import Layout, TaskName
from distlab.devices import MAX_LOGICAL_DEVICES
from distlab.errors import InvalidArgument

TIMED_OUT = 124  # as of the command `timeout`

_LOOK_SECS = 0.02
# For how long a cause is looked for, where the task that was seen to fail had lost a peer.
_SETTLE_SECS = 1.0
_STACKS_SECS = 2.0
# What the others have to end by themselves. A worker that waits for one that is lost cannot save,
# nor does it heed SIGTERM: TensorFlow catches it. One that was told to leave saves with the others.
_LOST_SECS, _PREEMPTED_SECS = 0.3, 5.0


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """Which tasks a script is launched on, and what is done when they end, or do not."""

    layout: Layout
    devices_per_worker: int | None = None  # None leaves the devices as they are
    max_restarts: int = 0  # after failures
    timeout_secs: float | None = None  # when all is ended, restarts included; None never
    # What tasks have to save when this process is asked to end, and an evaluator after training.
    grace_secs: float = 30.0


def launch(command: Sequence[str], options: LaunchOptions) -> int:
    """Runs a command of Python on every task, and returns the exit code once all have ended."""
    _check_numbers(options)
    _check_devices(options)
    _check_command(command)
    return _Launcher(command, options).run()


class _Launcher:
    """Runs a cluster to its end."""

    def __init__(self, command: Sequence[str], options: LaunchOptions) -> None:
        self._command, self._options = command, options
        layout = options.layout
        self._output = TaskOutput(layout.on([0] * layout.ports).tasks_in_order())
        limit = options.timeout_secs
        self._deadline = time.monotonic() + (math.inf if limit is None else limit)
        self._restarts = 0
        self._signals: list[int] = []
        self._is_starting = False

    def run(self) -> int:
        """Starts all tasks and returns the exit code once there is nothing left to do."""
        with _signals_to(self._note_signal), self._processes() as self._group:
            return self._supervise()

    @contextlib.contextmanager
    def _processes(self) -> Iterator[TaskGroup]:
        """Yields the group of processes, on ports that are theirs meanwhile."""
        devices = str(self._options.devices_per_worker or 0)
        argv = ["-m", "distlab.cluster.launch.script", devices, *self._command]
        layout = self._options.layout
        with reserved_ports(layout.ports) as ports:
            spec, gpus = layout.on(ports), visible_gpus()
            share = share_gpus(spec, gpus)

            def how(task: TaskName) -> Start:
                env = {"CUDA_VISIBLE_DEVICES": share.of_task[task]} if gpus else {}
                stdout, stderr = self._output.streams(task)
                return Start(argv=argv, env=env, stdout=stdout, stderr=stderr)

            tasks, cores = spec.tasks_in_order(), os.cpu_count() or 1
            listed = ", ".join(f"{task} on {spec.address_of(task) or 'no port'}" for task in tasks)
            self._say(f"{listed}. {OPEN_SERVERS}")
            if share.note:
                self._say(share.note)
            if len(tasks) > cores:
                self._say(f"{len(tasks)} tasks share {cores} cores")
            with TaskGroup(spec, how=how, folder=Path()) as group:
                yield group

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
            if self._is_late():
                return self._on_timeout()
            if (code := self._on_failures()) is not None:
                return code
            time.sleep(_LOOK_SECS)

    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline

    def _all(self) -> tuple[TaskName, ...]:
        return self._group.spec.tasks_in_order()

    def _serves(self, task: TaskName) -> bool:
        """Whether a task does what the coordinator tells it, until SIGTERM ends it."""
        has_coordinator = self._group.spec.has_parameter_servers
        return has_coordinator and task.job in ("worker", "ps")

    def _trainers(self) -> list[TaskName]:
        """The tasks that end when the training has."""
        return [t for t in self._all() if t.job != "evaluator" and not self._serves(t)]

    def _is_over(self) -> bool:
        ended = self._group.ended()
        return all(ended.get(task) == 0 for task in self._trainers())

    def _start(self, tasks: Iterable[TaskName]) -> None:
        self._is_starting = True
        # The server may still warm for seconds: an interrupt must not wait for it.
        with contextlib.suppress(KeyboardInterrupt):
            for task in tasks:
                try:
                    self._group.start([task])
                finally:
                    self._output.started(task)
        self._is_starting = False

    def _end(self, tasks: Iterable[TaskName], number: int, grace_secs: float = GRACE_SECS) -> None:
        """Ends tasks by a signal, and by SIGKILL after a time, or when we get another signal."""
        tasks, signals = set(tasks), len(self._signals)
        self._group.send_signal(tasks, number)
        self._wait_until(
            lambda: not tasks & set(self._group.running()) or len(self._signals) > signals,
            grace_secs,
        )
        self._group.stop(tasks & set(self._group.running()), grace_secs=0)
        for task in tasks:
            self._output.finish(task)

    def _on_signal(self, number: int) -> int:
        self._output.hurry = True
        if number == signal.SIGTERM:
            secs = self._options.grace_secs
            self._say(f"SIGTERM: tasks have {secs:g} s to save; a second signal ends them at once")
            # Those that train have something to save, and need the others for it.
            self._end(self._trainers(), signal.SIGTERM, secs)
            self._end(self._all(), signal.SIGTERM, 0 if len(self._signals) > 1 else GRACE_SECS)
        else:
            self._end(self._all(), number)
        self._say(f"all tasks were ended by {signal.Signals(number).name}")
        return 128 + number

    def _on_success(self) -> int:
        evaluators = {task for task in self._all() if task.job == "evaluator"}
        self._wait_until(
            lambda: not evaluators & set(self._group.running()) or self._signals or self._is_late(),
            self._options.grace_secs,
        )
        if self._signals:
            return self._on_signal(self._signals[0])
        for task, code in self._failed().items():
            if task.job == "evaluator":
                self._say(f"{self._how_it_ended(task, code)}; training had ended before")
        self._end(self._all(), signal.SIGTERM)
        return 0

    def _on_timeout(self) -> int:
        late = self._group.running()
        self._group.send_signal(late, STACKS_SIGNAL, to_group=False)
        self._wait_until(lambda: all(map(self._has_shown_stacks, late)), _STACKS_SECS)
        self._end(self._all(), signal.SIGTERM)
        names = ", ".join(map(str, late))
        self._say(
            f"not ended after {self._options.timeout_secs:g} s: {names}; their stacks are above, "
            "all tasks were ended"
        )
        return TIMED_OUT

    def _has_shown_stacks(self, task: TaskName) -> bool:
        return "most recent call first" in self._output.tail(task)

    def _on_failures(self) -> int | None:
        """Returns the exit code if a task has failed and is not to be started again."""
        if not (failed := self._failed()):
            return None
        task, failed = self._cause(failed)
        how = self._how_it_ended(task, failed[task])
        grace_secs = _PREEMPTED_SECS if exit_status.is_preempted(failed[task]) else _LOST_SECS
        if self._restarts == self._options.max_restarts:
            self._end(self._all(), signal.SIGTERM, grace_secs)
            others = "" if len(self._all()) == 1 else "; the others were ended"
            self._say(f"{how}{others}")
            return exit_status.exit_code(failed[task]) or 1  # a server may have left with 0
        self._restarts += 1
        again = [task] if self._is_replaceable(task) else list(self._all())
        subject = "it is" if len(again) == 1 else "all are"
        number = f"restart {self._restarts} of {self._options.max_restarts}"
        self._end(again, signal.SIGTERM, grace_secs)
        self._say(f"{how}; {subject} started again ({number})")
        if not self._signals:
            self._start(again)
        return None

    def _how_it_ended(self, task: TaskName, code: int) -> str:
        """Returns how a task ended, with its error: what is said last names the cause."""
        how = f"{task} {exit_status.how_it_ended(code)}"
        if code <= 0 or exit_status.is_preempted(code):
            return how
        error = exit_status.error_in(self._output.tail(task)) or self._output.last_error(task)
        return f"{how} ({error})" if error else how

    def _failed(self) -> dict[TaskName, int]:
        ended = self._group.ended()
        in_order = [task for task in self._all() if task in ended]
        return {task: ended[task] for task in in_order if ended[task] or self._serves(task)}

    def _cause(self, failed: dict[TaskName, int]) -> tuple[TaskName, dict[TaskName, int]]:
        """Returns which task failed by itself, and all that have failed by then."""
        tail, settled = self._output.tail, Deadline(_SETTLE_SECS, self._group.pids)
        while True:
            is_over = settled.has_passed()  # before the last look
            for task in failed:
                self._output.finish(task)
            cause, is_certain = exit_status.first_cause(failed, tail)
            if is_certain:
                return cause, failed
            if is_over:
                break
            time.sleep(_LOOK_SECS)
            failed = self._failed()
        # With an error of its own a task may wait long for its peers before it ends, with 1.
        raised = [task for task in self._group.running() if exit_status.has_raised(tail(task))]
        return (raised[0], {**failed, raised[0]: 1}) if raised else (cause, failed)

    def _is_replaceable(self, task: TaskName) -> bool:
        """Whether the others can go on without a task until it is there again."""
        return task.job == "evaluator" or (task.job == "worker" and self._serves(task))

    def _wait_until(self, condition: Callable[[], object], secs: float) -> None:
        deadline = Deadline(secs, self._group.pids)
        while not deadline.has_passed():
            if condition():
                return
            time.sleep(_LOOK_SECS)

    def _note_signal(self, number: int, _: FrameType | None) -> None:
        self._signals.append(number)
        if self._is_starting:
            self._is_starting = False
            raise KeyboardInterrupt

    def _say(self, text: str) -> None:
        self._output.say(f"distlab launch: {text}")


@contextlib.contextmanager
def _signals_to(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Inside, a handler gets SIGINT and SIGTERM; what this process was told to ignore stays so."""
    numbers = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def _check_numbers(options: LaunchOptions) -> None:
    for option, number, least, most in (
        ("--workers", options.layout.workers, 1, math.inf),
        ("--ps", options.layout.parameter_servers, 0, math.inf),
        ("--max-restarts", options.max_restarts, 0, math.inf),
        ("--devices-per-worker", options.devices_per_worker, 1, MAX_LOGICAL_DEVICES),
        ("--grace-secs", options.grace_secs, 0, math.inf),
        ("--timeout", options.timeout_secs, 0, math.inf),
    ):
        if number is None or least <= number <= most:
            continue
        raise InvalidArgument(
            asked=f"distlab launch {option} {number}",
            found=f"{option} {number}",
            do=f"choose a number of at least {least}" + f" and at most {most}" * (most < math.inf),
        )


def _check_devices(options: LaunchOptions) -> None:
    servers = options.layout.parameter_servers
    if servers and (options.devices_per_worker or 1) > 1:
        raise InvalidArgument(
            asked=f"distlab launch --ps {servers} "
            f"--devices-per-worker {options.devices_per_worker}",
            found="with parameter servers a worker computes on one CPU, or on its GPUs",
            do="ask for more workers instead of more devices",
        )


def _check_command(command: Sequence[str]) -> None:
    if not command or command == ["-m"]:
        raise InvalidArgument(
            asked="distlab launch",
            found="no script and no module",
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
    if not script.is_file():
        found = "a folder, not a file" if script.is_dir() else "no such file"
        raise InvalidArgument(
            asked=asked,
            found=f"{found}: {script.absolute()}",
            do="write the path of a Python script",
        )
