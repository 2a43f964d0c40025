"""Strategies of several processes: who this one is, and what it then makes or does.

make_on_cluster("multi_worker", read_cluster(), patience=Patience(timeout_secs=300, ...))

A coordinator makes a strategy; a worker or a parameter server under its command makes none, but
serves until it is told to end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import warnings
from typing import Any, NoReturn, cast

import tensorflow as tf
from tensorflow.python.eager import context

from distlab.cluster.ports import is_free
from distlab.cluster.reading.addresses import parse_address
from distlab.cluster.spec import ClusterSpec, TaskName
from distlab.errors import DeviceError, UnsupportedEnvironment
from distlab.strategy import meeting_errors
from distlab.strategy.calling import has_given_up
from distlab.strategy.connecting import connect
from distlab.strategy.local_devices import all_taken
from distlab.strategy.meeting import Patience, meet
from distlab.strategy.rejoining import rejoin


class _Resolver(tf.distribute.cluster_resolver.TFConfigClusterResolver):  # type: ignore[misc]
    """Gives TensorFlow the cluster that was read and checked, from wherever it came."""

    def __init__(self, cluster: ClusterSpec) -> None:
        job, index = (cluster.task.job, cluster.task.index) if cluster.task else (None, None)
        super().__init__(task_type=job, task_id=index, rpc_layer="grpc")
        self._cluster = _tensorflows(cluster)

    def cluster_spec(self) -> Any:
        return self._cluster


def _tensorflows(cluster: ClusterSpec) -> Any:
    """Returns the cluster as TensorFlow's own; tasks of which this one was not told left out."""
    return tf.train.ClusterSpec(
        {
            job: {index: address for index, address in enumerate(tasks) if address}
            for job, tasks in cluster.addresses.items()
        }
    )


def make_on_cluster(
    kind: str, cluster: ClusterSpec | None, *, patience: Patience, variable_partitioner: Any = None
) -> Any:
    """Makes a strategy, or serves another task's strategy and does not return."""
    if cluster is None and kind == "multi_worker":
        return tf.distribute.MultiWorkerMirroredStrategy()
    if cluster is None or cluster.has_parameter_servers != (kind == "parameter_server"):
        raise _other_kind(kind, cluster)
    if doubt := meeting_errors.doubt_of_own_address(cluster):
        warnings.warn(doubt, UserWarning, stacklevel=3)
    if has_given_up():
        raise meeting_errors.given_up_before(cluster, kind)
    if kind == "multi_worker":
        return _join(cluster, patience)
    if cluster.task is not None and cluster.serves:
        _serve(cluster, cluster.task)
    return _coordinate(cluster, patience.timeout_secs, variable_partitioner)


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


def _join(cluster: ClusterSpec, patience: Patience) -> Any:
    """Makes the strategy of workers that step together."""
    resolver = _Resolver(cluster)

    def make() -> Any:
        with all_taken():
            return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)

    before = context.context()._collective_ops_server_def
    if before is None:
        if context.context()._initialized:
            raise DeviceError(
                asked=meeting_errors.asked(cluster),
                found="TensorFlow has already been used in this process, and a worker joins its "
                "cluster when TensorFlow starts",
                do=f"{meeting_errors.RESTART} and make the strategy first, before any tensor, "
                "variable, model or data set",
            )
        _check_port(cluster, "multi_worker")
        _take_own_gpus(cluster)
        return meet(cluster, make, patience=patience)
    if before.cluster != resolver.cluster_spec().as_cluster_def():
        raise DeviceError(
            asked=meeting_errors.asked(cluster),
            found="this process is in another cluster, and can be in one only",
            do=f"{meeting_errors.RESTART}, here and in the other tasks",
        )
    return rejoin(cluster, make, patience=patience)


def _coordinate(cluster: ClusterSpec, secs: float, variable_partitioner: Any) -> Any:
    """Makes the strategy of a coordinator once all its servers answer."""
    if context.get_server_def() is None:
        _check_port(cluster, "parameter_server")

    def make() -> Any:
        resolver = _Resolver(cluster)
        return tf.distribute.ParameterServerStrategy(
            resolver, variable_partitioner=variable_partitioner
        )

    return connect(cluster, make, timeout_secs=secs)


def _serve(cluster: ClusterSpec, task: TaskName) -> NoReturn:
    """Runs the server of a worker or parameter server until this process is told to end."""
    _check_port(cluster, "parameter_server")
    with contextlib.suppress(ValueError):  # in another thread than the first
        signal.signal(signal.SIGTERM, _end)
    try:
        _server = tf.distribute.Server(
            _tensorflows(cluster), job_name=task.job, task_index=task.index, protocol="grpc"
        )
    except tf.errors.OpError as error:
        raise meeting_errors.refused(cluster, error.message, kind="parameter_server") from error
    address = cluster.address_of(task)
    print(f"{task} serves at {address} until its coordinator is done", flush=True)  # noqa: T201
    # Not server.join(), which holds the GIL: no signal would be heeded.
    while True:
        threading.Event().wait()


def _end(*_: object) -> NoReturn:
    raise SystemExit(0)


def _check_port(cluster: ClusterSpec, kind: str) -> None:
    address = cluster.address_of(cluster.task) if cluster.task else None
    if address and not is_free(parse_address(address).port):
        raise meeting_errors.port_in_use(cluster, kind)


def _take_own_gpus(cluster: ClusterSpec) -> None:
    """Leaves this task its share where Slurm shows all GPUs of a machine to several tasks."""
    dealt_out = any(os.environ.get(name) for name in ("SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND"))
    if cluster.source != "Slurm" or dealt_out:
        return
    hosts = [str(cluster.address_of(task)).rpartition(":")[0] for task in cluster.trainers]
    own = cluster.trainers.index(cast(TaskName, cluster.task))
    here, first = hosts.count(hosts[own]), hosts[:own].count(hosts[own])
    gpus = tf.config.list_physical_devices("GPU")
    share = len(gpus) // here
    if share and here > 1:
        tf.config.set_visible_devices(gpus[first * share : (first + 1) * share], "GPU")
