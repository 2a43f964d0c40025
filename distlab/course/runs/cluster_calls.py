"""Calls a learner's function on a real cluster of workers.

    def _job(strategy, function, inputs):        # a function of the check's own module
        return function(strategy, inputs["x"])   # on each worker

    call_on_workers(_job, function, inputs)      # one result a worker, in their order

    def _job(stage, function, inputs):           # on the coordinator of two workers
        return function(stage.coordinator, inputs["x"])

    call_on_coordinator(_job, function, inputs)  # its result

The tasks are kept for the next check. After a failure they start again: a worker that waits for
another one cannot be used again. After an error on a coordinator they stay: its workers are idle.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distlab.course.results.plain_values import Plain, decode, encode, to_plain
from distlab.course.results.tracebacks import PackedError, pack_error, pack_text, raise_packed
from distlab.errors import TaskFailed, TaskTimeout

if TYPE_CHECKING:
    from distlab.cluster.local.cluster import LocalCluster

WORKERS = 2
# A training of a check takes one or two seconds; a slow processor takes longer.
TIMEOUT_SECS = 10.0

_Job = Callable[..., Any]
_kept: dict[tuple[bool, int], LocalCluster] = {}  # whether with a coordinator, and restarts


@dataclass(frozen=True)
class Stage:
    """The cluster that a job on the coordinator works with.

    Attributes:
        coordinator: The coordinator of two workers and one parameter server.
    """

    coordinator: Any
    _processes: Mapping[str, int]

    def kill(self, task: str) -> None:
        """Ends a worker at once, and returns when nothing answers at its address."""
        from distlab.cluster.probe import probe

        job, _, index = task.partition(":")
        address = json.loads(os.environ["TF_CONFIG"])["cluster"][job][int(index)]
        os.kill(self._processes[task], signal.SIGKILL)
        while probe(address).state != "refused":
            time.sleep(0.01)  # between looks at a process that ends


def call_on_workers(
    job: _Job,
    function: Callable[..., Any],
    *args: Plain,
    timeout_secs: float = TIMEOUT_SECS,
    restarts: int = 0,
) -> list[Plain]:
    """Returns what `job(strategy, function, *args)` returns on each worker, made plain.

    What the function prints there is printed here.
    """
    kind = (False, restarts)
    return _call(job, function, args, timeout_secs=timeout_secs, kind=kind)


def call_on_coordinator(
    job: _Job, function: Callable[..., Any], *args: Plain, timeout_secs: float = TIMEOUT_SECS
) -> Plain:
    """Returns what `job(stage, function, *args)` returns on the coordinator, made plain.

    All workers are there when it begins, also those that were killed before.
    """
    (result,) = _call(job, function, args, timeout_secs=timeout_secs, kind=(True, 0))
    return result


def _call(
    job: _Job,
    function: Callable[..., Any],
    args: tuple[Plain, ...],
    *,
    timeout_secs: float,
    kind: tuple[bool, int],
) -> list[Plain]:
    coordinated, _ = kind
    with _closed_by_interrupt(kind), tempfile.TemporaryDirectory() as folder:
        cluster = _cluster(*kind)
        tasks = [task for task in cluster.tasks if not coordinated or task.startswith("chief")]
        processes = _processes(cluster) if coordinated else None
        order = (folder, job, function, args, processes)
        # All have met before a limit begins to run.
        cluster.run(_meet_on_coordinator if coordinated else _meet, tasks=tasks)
        try:
            results = cluster.run(_on_task, *order, tasks=tasks, timeout_secs=timeout_secs)
        except TaskFailed as problem:
            failure = _what_failed(problem, Path(folder), function, tasks)
            is_stub = failure["error"] == "NotImplementedError"  # it has touched nothing
            is_idle = coordinated and Path(folder, problem.task).exists()
            if not (is_stub or is_idle):
                _kept.pop(kind).close()
            raise_packed(failure, function)
    for task, (_, printed) in zip(tasks, results, strict=True):
        for line in printed.splitlines():
            print(f"{task}: {line}")  # noqa: T201
    return [decode(payload) for payload, _ in results]


@contextlib.contextmanager
def _closed_by_interrupt(kind: tuple[bool, int]) -> Iterator[None]:
    """Ends a cluster whose call is interrupted: its tasks are in the middle of theirs."""
    try:
        yield
    except KeyboardInterrupt:
        if kind in _kept:
            _kept.pop(kind).close()
        raise


def _cluster(coordinated: bool, restarts: int) -> LocalCluster:
    kind = (coordinated, restarts)
    if kind not in _kept:
        from distlab.cluster.local.cluster import LocalCluster

        servers = int(coordinated)
        with contextlib.redirect_stdout(None):  # the exercise says who may listen
            _kept[kind] = LocalCluster(WORKERS, parameter_servers=servers, restart=restarts)
    elif coordinated:
        _kept[kind].restart()  # what a check has killed
    return _kept[kind]


def _processes(cluster: LocalCluster) -> dict[str, int]:
    return {task.task: task.pid for task in cluster.status().tasks}


@functools.cache
def _strategy() -> Any:
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
    return tf.distribute.MultiWorkerMirroredStrategy()


def _meet() -> None:
    _strategy()


@functools.cache
def _coordinator() -> Any:
    import tensorflow as tf

    tf.get_logger().setLevel("CRITICAL")  # it would tell of every worker that is killed
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    return tf.distribute.coordinator.ClusterCoordinator(strategy)


def _meet_on_coordinator() -> None:
    """Waits until every worker takes steps: one that was started again is not noticed at once."""
    coordinator = _coordinator()
    meet, inside = _meeting()
    inside.assign(0)
    for _ in range(WORKERS):
        coordinator.schedule(meet)
    coordinator.join()


@functools.cache
def _meeting() -> tuple[Any, Any]:
    """A step that ends when all workers are in one, and what counts them."""
    import tensorflow as tf

    with _coordinator().strategy.scope():
        inside = tf.Variable(0)

    def meet() -> None:
        inside.assign_add(1)
        tf.while_loop(lambda now: now < WORKERS, lambda _: [_read()], [_read()])

    def _read() -> Any:
        return inside.read_value()

    return tf.function(meet, autograph=False), inside


def _on_task(
    folder: str,
    job: _Job,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    processes: Mapping[str, int] | None,
) -> tuple[bytes, str]:
    """Runs on each task; writes a failure into a file, because only its text would come back."""
    import tensorflow as tf

    given = _strategy() if processes is None else Stage(_coordinator(), processes)
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    told_at = Path(folder, f"{task['type']}:{task['index']}")
    told_at.unlink(missing_ok=True)  # what it told before it was started again
    # As in a new process: what was asked for before must not make the workers draw alike.
    tf.random.set_seed(None)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            result = job(given, function, *args)
            return encode(to_plain(result, at="what it returned")), printed.getvalue()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too
        packed = json.dumps(pack_error(error, function))
        if processes is not None:
            with contextlib.suppress(Exception):  # of steps: the next call is not to hear of them
                given.coordinator.join()
        told_at.write_text(packed, encoding="utf-8")
        raise


def _what_failed(
    problem: TaskFailed, folder: Path, function: Callable[..., Any], tasks: list[str]
) -> PackedError:
    if isinstance(problem, TaskTimeout):
        return _hang(problem, function, tasks)
    file = folder / problem.task
    if file.exists():
        packed: PackedError = json.loads(file.read_text(encoding="utf-8"))
        return packed
    return pack_text("WorkerEnded", problem.found.partition("\n")[0], function)


def _hang(problem: TaskTimeout, function: Callable[..., Any], tasks: list[str]) -> PackedError:
    """Says which workers wait, the first one's line, and which have finished."""
    from distlab.cluster.local.task_errors import read_waits

    waits = read_waits(problem, tasks)
    waiting = [wait for wait in waits if not wait.is_over]
    names = " and ".join(wait.task for wait in waiting)
    text = f"{names} still wait{'s' if len(waiting) == 1 else ''} here"
    text += "".join(f"; {wait}" for wait in waits if wait.is_over)
    text += "".join(f"\n{wait}" for wait in waiting[1:])
    first = waiting[0]
    line = (first.file, first.line, first.function) if first.function else None
    return pack_text("TimeoutError", text, function, line=line)
