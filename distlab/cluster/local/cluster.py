"""A cluster of real processes on this machine, to talk to from a notebook or a script.

    with LocalCluster(workers=2) as cluster:
        cluster.run(train, 3)                       # one result a task, in task order
        cluster.kill("worker:1")
        cluster.restart()

Each task is a Jupyter kernel in a process of its own, with its own TF_CONFIG, kept by a process
outside of this one: all end when this process does, however it ends.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from distlab.cluster.group import OPEN_SERVERS
from distlab.cluster.isolation import Isolation
from distlab.cluster.local.kernel_group import KernelGroup
from distlab.cluster.local.outputs import Output
from distlab.cluster.local.runner import Runner
from distlab.cluster.local.status import ClusterStatus, status_of
from distlab.cluster.local.task_errors import Wait, read_waits
from distlab.cluster.spec import Layout, TaskName
from distlab.devices import MAX_LOGICAL_DEVICES
from distlab.errors import InvalidArgument, ProcessError, TaskTimeout, did_you_mean

NOTICE = f"While a cluster runs, {OPEN_SERVERS} LocalCluster(isolate=True) closes that."

_MOST_RESTARTS = 1000
_MOST_TASKS = 64

_Tasks = str | Iterable[str] | None

_clusters: list[weakref.ref[LocalCluster]] = []


class LocalCluster:
    """Starts a cluster of workers and parameter servers, each a real process on this machine.

    What runs on a task prints here, under the task's name, in task order. Tasks that were ended
    by a failure, a time limit or `kill` start again with `restart`. Close the cluster, or use it in
    a `with` block, and nothing of it remains.

    Args:
        workers: Number of workers.
        parameter_servers: Number of parameter servers. With any, they and the workers start
            their TensorFlow servers at once, and a chief coordinates.
        chief: Whether there's a chief besides the workers; by default with parameter servers only.
            Without one, worker:0 is the chief.
        evaluator: Whether there's a task that evaluates checkpoints beside the training.
        devices_per_worker: Logical devices of the chief and of each worker, as `split_devices`
            makes them.
        restart: How often `run` may start all tasks and call its function again, if a task
            dies meanwhile.
        isolate: Whether the tasks run in a network of their own (Linux only), where nobody
            else reaches their servers.
        env: Environment variables for all tasks; None removes one.
        start_timeout_secs: Seconds that the tasks may take to start, counted as by `run`.

    Raises:
        InvalidArgument: An argument is invalid.
        TaskFailed: A task ended while it started.
        TaskTimeout: A task didn't start in time.
        UnsupportedEnvironment: This system has no such processes (Windows), or no such network.

    Example:
        >>> def index():
        ...     import json, os
        ...     return json.loads(os.environ["TF_CONFIG"])["task"]["index"]
        >>> with dl.LocalCluster(workers=2) as cluster:
        ...     cluster.run(index)
        [0, 1]
    """

    def __init__(
        self,
        workers: int = 2,
        parameter_servers: int = 0,
        *,
        chief: bool | None = None,
        evaluator: bool = False,
        devices_per_worker: int = 1,
        restart: int = 0,
        isolate: bool = False,
        env: Mapping[str, str | None] | None = None,
        start_timeout_secs: float = 120,
    ) -> None:
        _check_count("workers", workers, least=1, most=_MOST_TASKS)
        _check_count("parameter_servers", parameter_servers, least=0, most=_MOST_TASKS)
        _check_count("devices_per_worker", devices_per_worker, least=1, most=MAX_LOGICAL_DEVICES)
        _check_count("restart", restart, least=0, most=_MOST_RESTARTS)
        if parameter_servers and devices_per_worker > 1:
            raise InvalidArgument(
                asked=f"LocalCluster(parameter_servers={parameter_servers}, "
                f"devices_per_worker={devices_per_worker})",
                found="with parameter servers a worker computes on one CPU, or on its GPUs",
                do="ask for more workers instead of more devices",
            )
        layout = Layout(
            workers=workers,
            parameter_servers=parameter_servers,
            chief=parameter_servers > 0 if chief is None else chief,
            evaluator=evaluator,
        )
        resources = contextlib.ExitStack()
        self._close = weakref.finalize(self, _close, resources, os.getpid())
        try:
            network = resources.enter_context(Isolation()) if isolate else None
            if network is None:
                _print_once(NOTICE)
            kernels = KernelGroup(
                layout,
                devices_per_worker=devices_per_worker,
                env=env or {},
                network_of=network.pid if network else None,
                start_timeout_secs=start_timeout_secs,
            )
            self._kernels = resources.enter_context(contextlib.closing(kernels))
            kernels.start()
        except BaseException:
            self.close()
            raise
        self._runner = Runner(kernels, restarts=restart)
        _clusters[:] = [reference for reference in _clusters if reference()] + [weakref.ref(self)]

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of all tasks: chief, workers, parameter servers, evaluator."""
        return tuple(map(str, self._kernels.spec.tasks_in_order()))

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        tasks: _Tasks = None,
        timeout_secs: float = 600,
    ) -> list[Any]:
        """Calls a function on tasks at once and returns one result a task, in task order.

        The function is sent with its code, also one of a notebook or a test. Tensors and
        variables come back as NumPy arrays. What it prints is shown here, task by task.

        Args:
            function: What to call there.
            args: Its arguments.
            tasks: "worker", "worker:0" or several of these; by default all.
            timeout_secs: Seconds that it may take. While a task waits for a core of a busy machine,
                the clock stands still.

        Returns:
            The results, in task order.

        Raises:
            InvalidArgument: There's no such task, or the function can't be sent.
            TaskFailed: A task failed: the error has its name and traceback. The others were
                stopped.
            TaskTimeout: Tasks didn't finish in time: the error says where they were.
            Interrupted: This process was interrupted, and so was what the tasks ran. It's a
                KeyboardInterrupt that names the tasks that were kept, and those that didn't come
                back and were ended.
            ProcessError: A task is down or busy.

        Example:
            >>> cluster.run(divmod, 7, 2)
            [(3, 1), (3, 1)]
            >>> cluster.run(len, "abc", tasks="worker:1")
            [3]
        """
        return self._runner.call(function, args, self._select(tasks), timeout_secs=timeout_secs)

    def execute(
        self, code: str, *, tasks: _Tasks = None, timeout_secs: float = 600, show: bool = False
    ) -> dict[str, list[Output]]:
        """Runs a cell on tasks at once and returns the outputs of each.

        Args:
            code: The cell's text. Its names stay on the tasks, for the next cell.
            tasks: As for `run`.
            timeout_secs: As for `run`.
            show: Whether outputs are shown here as well, as `%%workers` does.

        Returns:
            By task, the outputs as notebooks keep them.

        Raises:
            ProcessError: As for `run`.

        Example:
            >>> outputs = cluster.execute("print(6 * 7, end='')")
            >>> outputs["worker:1"]
            [{'output_type': 'stream', 'name': 'stdout', 'text': '42'}]
        """
        names = self._select(tasks)
        outputs = self._runner.run_cell(code, names, timeout_secs=timeout_secs, show=show)
        return {str(task): lines for task, lines in outputs.items()}

    def tf_config(self, task: str) -> dict[str, Any]:
        """Returns what a task finds in its TF_CONFIG."""
        config: dict[str, Any] = json.loads(self._kernels.spec.tf_config(self._select(task)[0]))
        return config

    def kill(self, tasks: _Tasks) -> None:
        """Ends tasks at once, as SIGKILL does, so that they've no chance to save anything.

        Args:
            tasks: As for `run`; None ends all.

        Raises:
            InvalidArgument: There's no such task.

        Example:
            >>> cluster.kill("worker:1")
            >>> cluster.status().tasks[1].state
            'was ended by SIGKILL'
        """
        self._kernels.group.stop(self._select(tasks), grace_secs=0)

    def restart(self, tasks: _Tasks = None) -> None:
        """Starts tasks again, at the same addresses if these are free; what they held is lost.

        Args:
            tasks: As for `run`. By default all that are down, if there are parameter servers, and
                otherwise all, because workers that lost a peer can't go on with its successor.

        Raises:
            TaskFailed: A task ended while it started.
            TaskTimeout: A task didn't start in time.

        Example:
            >>> cluster.kill("worker:1")
            >>> cluster.restart()
            >>> cluster.run(len, "abc")
            [3, 3]
        """
        kernels, names = self._kernels, self._select(tasks)
        if tasks is None and kernels.spec.has_parameter_servers:
            names = [name for name in names if name not in kernels.group.running()]
        kernels.group.stop(names, grace_secs=0)
        if tuple(names) == kernels.spec.tasks_in_order() and not kernels.ports_are_free():
            kernels.take_other_ports()
        kernels.start(names)

    def status(self) -> ClusterStatus:
        """Returns what each task is doing, for how long, where, and the last line that it printed.

        In a notebook it shows as a table. Another thread may ask for it while tasks run.

        Returns:
            A `ClusterStatus`, whose `tasks` have a `state`, a `pid` and a `last_line` each.

        Raises:
            ProcessError: The cluster is closed.

        Example:
            >>> [(task.task, task.state) for task in cluster.status().tasks]
            [('worker:0', 'idle'), ('worker:1', 'idle')]
        """
        self._select(None)  # raises if the cluster is closed
        return status_of(self._kernels)

    def logs(self, task: str) -> str:
        """Returns what a task's native code wrote, above all TensorFlow's, and what was cut."""
        return self._kernels.group.log_of(self._select(task)[0]).read_text(errors="replace")

    def stacks(self, task: str) -> str:
        """Returns where a task's threads are, also of one that hangs."""
        return self._kernels.stacks(self._select(task)[0])

    def waits(self, error: TaskTimeout) -> tuple[Wait, ...]:
        """Returns on which line of yours each task was when the time of `run` was over.

        Args:
            error: The error of `run`.
        """
        return read_waits(error, self.tasks)

    def close(self) -> None:
        """Ends all tasks at once; nothing of the cluster remains."""
        self._close()

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LocalCluster({', '.join(self.tasks)})"

    def _select(self, tasks: _Tasks) -> list[TaskName]:
        if not self._close.alive:
            raise ProcessError(
                asked=f"tasks of {self!r}",
                found="the cluster is closed",
                do="make another: cluster = LocalCluster(...)",
            )
        all_tasks = self._kernels.spec.tasks_in_order()
        if tasks is None:
            return list(all_tasks)
        chosen = [tasks] if isinstance(tasks, str) else list(tasks)
        names = {str(task) for task in all_tasks} | {task.job for task in all_tasks}
        if unknown := [name for name in chosen if name not in names]:
            raise InvalidArgument(
                asked=f"tasks={tasks!r}",
                found=f"the cluster has no {unknown[0]!r}",
                do=did_you_mean(str(unknown[0]), sorted(names)),
            )
        return [task for task in all_tasks if str(task) in chosen or task.job in chosen]


def _check_count(name: str, value: int, *, least: int, most: int) -> None:
    """Raises if an argument of `LocalCluster` is no whole number in range."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidArgument(
            asked=f"LocalCluster({name}={value!r})",
            found=f"{name}={value!r}",
            do=f"pass a whole number from {least} to {most}; no lesson needs more than 2 workers",
        )


def kernels_of(cluster: LocalCluster, tasks: _Tasks) -> tuple[KernelGroup, list[TaskName]]:
    """Returns a cluster's kernels and the names of some tasks, for what talks to kernels itself."""
    return cluster._kernels, cluster._select(tasks)


def newest_open() -> LocalCluster | None:
    """Returns the cluster that was started last of those that are open."""
    clusters = [cluster for reference in _clusters if (cluster := reference())]
    return next((cluster for cluster in reversed(clusters) if cluster._close.alive), None)


def _close(resources: contextlib.ExitStack, owner: int) -> None:
    if os.getpid() == owner:  # and not a fork of the process whose tasks they are
        resources.close()


@functools.cache
def _print_once(text: str) -> None:
    print(text)  # noqa: T201
