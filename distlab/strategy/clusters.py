"""Strategies of several processes: who this one is, and what it then makes or does.

make_on_cluster("multi_worker", read_cluster(), timeout_secs=300, heartbeat_secs=None)

A worker waits for all others and makes the strategy; a coordinator waits for its servers; a worker
or parameter server under a coordinator makes none, but serves until SIGTERM ends it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any, NoReturn, cast

import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf.coordination_config_pb2 import CoordinatedJob
from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended
from tensorflow.python.eager import context

from distlab.cluster import heartbeat
from distlab.cluster.ports import is_free
from distlab.cluster.proxies import bypass_proxies
from distlab.cluster.spec import ClusterSpec, TaskName
from distlab.cluster.tf_config import parse_address
from distlab.errors import DeviceError, UnsupportedEnvironment
from distlab.strategy import cluster_errors
from distlab.strategy.rendezvous import SERVER_SECS, meet

_ASK_AGAIN_SECS = 0.05
_RESTART = "restart the kernel (or Python; in a LocalCluster: cluster.restart())"

# The strategy of this process's cluster: TensorFlow joins a cluster once in a process.
_joined: list[tuple[ClusterSpec, Any]] = []


class _Resolver(tf.distribute.cluster_resolver.TFConfigClusterResolver):  # type: ignore[misc]
    """Gives TensorFlow the cluster that was read and checked, from wherever it came."""

    def __init__(self, cluster: ClusterSpec) -> None:
        job, index = (cluster.task.job, cluster.task.index) if cluster.task else (None, None)
        super().__init__(task_type=job, task_id=index, rpc_layer="grpc")
        self._cluster = tf.train.ClusterSpec(cluster.addresses)

    def cluster_spec(self) -> Any:
        return self._cluster


def make_on_cluster(
    kind: str,
    cluster: ClusterSpec | None,
    *,
    timeout_secs: float,
    heartbeat_secs: float | None,
    variable_partitioner: Any = None,
) -> Any:
    """Makes a strategy, or serves another task's strategy and does not return."""
    if cluster is None and kind == "multi_worker":
        return tf.distribute.MultiWorkerMirroredStrategy()
    if cluster is None or cluster.has_parameter_servers != (kind == "parameter_server"):
        raise _other_kind(kind, cluster)
    os.environ.update(bypass_proxies(cluster))
    if doubt := cluster_errors.doubt_of_own_address(cluster):
        warnings.warn(doubt, UserWarning, stacklevel=3)
    if kind == "multi_worker":
        return _join(cluster, timeout_secs, heartbeat_secs)
    if cluster.task is not None and cluster.serves:
        _serve(cluster, cluster.task)
    return _coordinate(cluster, timeout_secs, variable_partitioner)


def _other_kind(kind: str, cluster: ClusterSpec | None) -> UnsupportedEnvironment:
    if kind == "multi_worker":
        return UnsupportedEnvironment(
            asked="make_strategy('multi_worker')",
            found="the cluster has parameter servers, which have no part in it",
            do="use 'parameter_server', or take 'ps' out of the cluster",
        )
    return UnsupportedEnvironment(
        asked="make_strategy('parameter_server')",
        found="no parameter server: "
        + ("TF_CONFIG is not set" if cluster is None else f"{cluster.source} names none"),
        do="set TF_CONFIG to a cluster with 'chief', 'worker' and 'ps' in each of its processes; "
        "the chief coordinates, and in the others make_strategy serves it",
    )


# Workers that step together


def _join(cluster: ClusterSpec, timeout_secs: float, heartbeat_secs: float | None) -> Any:
    """The strategy of this process's cluster, made once all workers are there."""
    if _joined and _joined[0][0] == cluster:
        return _joined[0][1]
    if _joined or context.context()._collective_ops_server_def is not None:
        raise DeviceError(
            asked=cluster_errors.call_text(cluster),
            found="this process has joined a cluster before, and can do so only once",
            do=f"{_RESTART}, here and in the other tasks",
        )
    if context.context()._initialized:
        raise DeviceError(
            asked=cluster_errors.call_text(cluster),
            found="TensorFlow has already been used in this process, and a worker joins its "
            "cluster when TensorFlow starts",
            do=f"{_RESTART} and make the strategy first, before any tensor, variable, model or "
            "data set",
        )
    _take_own_gpus(cluster)
    meet(cluster, replicas=count_replicas(), timeout_secs=timeout_secs)
    if heartbeat_secs is None:
        heartbeat_secs = heartbeat.default_secs(cluster)
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{cluster.leader.job}/replica:0/task:0",
        coordinated_jobs=[
            CoordinatedJob(name=job, num_tasks=cluster.jobs[job])
            for job in sorted({task.job for task in cluster.trainers})
        ],
        heartbeat_timeout_in_ms=int(heartbeat_secs * 1000),
    )
    # If a worker is lost in this moment, TensorFlow waits an hour for it, deaf to signals, with the
    # GIL held: faulthandler's thread, which needs none, then shows this line and ends the process.
    faulthandler.dump_traceback_later(SERVER_SECS, exit=True, file=2)
    try:
        with _all_cpus():
            strategy = tf.distribute.MultiWorkerMirroredStrategy(_Resolver(cluster))
    except tf.errors.OpError as error:
        raise cluster_errors.not_connected(cluster, error.message) from error
    finally:
        faulthandler.cancel_dump_traceback_later()
        _restore_sigterm()
    _joined.append((cluster, strategy))
    return strategy


def count_replicas() -> int:
    """How many replicas this worker will have; asks without starting TensorFlow."""
    gpus = tf.config.get_visible_devices("GPU")
    devices = gpus or tf.config.get_visible_devices("CPU")
    logical = map(tf.config.get_logical_device_configuration, devices)
    return sum(len(devices or [None]) for devices in logical)


@contextlib.contextmanager
def _all_cpus() -> Iterator[None]:
    """Inside, a MultiWorkerMirroredStrategy takes all logical CPUs, where TensorFlow takes one.

    A machine without GPUs could not show what several of them do, else.
    """
    original = CollectiveAllReduceExtended._initialize_local_devices

    def take(extended: Any, resolver: Any, worker_device: str) -> tuple[tuple[str, ...], str]:
        devices, kind = original(extended, resolver, worker_device)
        if kind == "CPU":
            numbers = range(count_replicas())
            devices = tuple(f"{worker_device}/device:CPU:{number}" for number in numbers)
        return devices, kind

    CollectiveAllReduceExtended._initialize_local_devices = take
    try:
        yield
    finally:
        CollectiveAllReduceExtended._initialize_local_devices = original


def _restore_sigterm() -> None:
    """Gives SIGTERM back to Python: a worker of TensorFlow catches it and does nothing."""
    handler = signal.getsignal(signal.SIGTERM)
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def _take_own_gpus(cluster: ClusterSpec) -> None:
    """Leaves this task its share where Slurm shows all GPUs of a machine to several tasks."""
    dealt_out = any(os.environ.get(name) for name in ("SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND"))
    if cluster.source != "Slurm" or dealt_out:
        return
    hosts = [str(cluster.address_of(task)).rpartition(":")[0] for task in cluster.trainers]
    own = cluster.trainers.index(cast(TaskName, cluster.task))
    on_host, first = hosts.count(hosts[own]), hosts[:own].count(hosts[own])
    gpus = tf.config.list_physical_devices("GPU")
    share = len(gpus) // on_host
    if share and on_host > 1:
        tf.config.set_visible_devices(gpus[first * share : (first + 1) * share], "GPU")


# A coordinator and its servers


def _coordinate(cluster: ClusterSpec, timeout_secs: float, variable_partitioner: Any) -> Any:
    """The strategy of a coordinator, made once all its servers answer."""
    kind = "parameter_server"
    if context.get_server_def() is None:
        _check_port(cluster)
    servers = [task for task in cluster.tasks_in_order() if task.job in ("worker", "ps")]
    deadline = time.monotonic() + timeout_secs
    while absent := list(cluster_errors.silent(cluster, servers)[0]):
        if time.monotonic() > deadline:
            raise cluster_errors.absent(cluster, absent, timeout_secs, kind=kind)
        time.sleep(_ASK_AGAIN_SECS)
    try:
        return tf.distribute.ParameterServerStrategy(
            _Resolver(cluster), variable_partitioner=variable_partitioner
        )
    except tf.errors.OpError as error:
        context.context()._server_def = None  # else the next operation would connect again
        raise cluster_errors.not_connected(cluster, error.message, kind=kind) from error


def _serve(cluster: ClusterSpec, task: TaskName) -> NoReturn:
    """Runs the server of a worker or parameter server until SIGTERM ends this process."""
    _check_port(cluster)
    with contextlib.suppress(ValueError):  # in another thread than the first
        signal.signal(signal.SIGTERM, _end)
    try:
        _server = tf.distribute.Server(
            tf.train.ClusterSpec(cluster.addresses),
            job_name=task.job,
            task_index=task.index,
            protocol="grpc",
        )
    except tf.errors.OpError as error:
        raise cluster_errors.not_connected(
            cluster, error.message, kind="parameter_server"
        ) from error
    address = cluster.address_of(task)
    print(f"{task} serves at {address} until its coordinator is done", flush=True)  # noqa: T201
    # Not server.join(), which holds the GIL: no signal would be heeded.
    while True:
        threading.Event().wait()


def _end(*_: object) -> NoReturn:
    raise SystemExit(0)


def _check_port(cluster: ClusterSpec) -> None:
    address = cluster_errors.own_address(cluster)
    if address and not is_free(parse_address(address).port):
        raise cluster_errors.port_in_use(cluster, "parameter_server")
