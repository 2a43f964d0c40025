"""Makes a strategy by its name.

strategy = make_strategy("mirrored", devices=["CPU:0", "CPU:1"])
"""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Sequence
from typing import Any, Literal, cast

import tensorflow as tf

from distlab.cluster.spec import read_cluster
from distlab.errors import DeviceError, DistlabError, InvalidArgument, did_you_mean
from distlab.shipped import path_to_open
from distlab.strategy.clusters import make_on_cluster
from distlab.strategy.description import CLUSTER_KINDS, short_name
from distlab.strategy.mirrored import (
    ReductionToOneDevice,
    separate_collectives,
    wait_for_replica_threads,
)

Kind = Literal[
    "auto",
    "default",
    "one_device",
    "mirrored",
    "central_storage",
    "multi_worker",
    "parameter_server",
    "tpu",
]
KINDS: tuple[str, ...] = Kind.__args__  # type: ignore[attr-defined]

# Kinds that take their devices from the caller; the others find their own.
_TAKE_DEVICES = ("one_device", "mirrored", "central_storage")

_MAX_SECS = 7 * 24 * 60 * 60


def make_strategy(
    kind: Kind = "auto",
    *,
    devices: Sequence[str] | int | None = None,
    cross_device_ops: tf.distribute.CrossDeviceOps | None = None,
    variable_partitioner: Any = None,
    timeout_secs: float = 300,
    heartbeat_secs: float | None = None,
) -> tf.distribute.Strategy:
    """Makes the `tf.distribute` strategy of a name, or the one that fits this machine or cluster.

    "auto" looks for a cluster of more than one task (TF_CONFIG, then Slurm), a TPU and several
    GPUs, in this order, and otherwise takes one device; `describe` says why. In one process,
    "default" is what TensorFlow uses without a strategy, "one_device" computes on one device,
    "mirrored" keeps a copy of the variables on each device, and "central_storage" keeps one copy
    for all devices. In a cluster, "multi_worker" keeps a copy on each device of every worker, while
    the workers of "parameter_server" fetch variables from servers. "tpu" takes all TPU cores.

    One script serves every task of a cluster. A worker or parameter server of a "parameter_server"
    cluster doesn't return from this call, but serves the coordinator until it gets SIGTERM; the
    evaluator gets "one_device". Each worker computes on all its GPUs, or on all its logical CPUs if
    it has none. Make a cluster's strategy first in a process, before any tensor, variable, model or
    data set. A worker joins a cluster once: if you ask for "multi_worker" again, you get the
    strategy that the process has.

    Args:
        kind: The strategy's name.
        devices: Names such as "CPU:0", or how many, for "one_device", "mirrored" and
            "central_storage". None means all GPUs, or all logical CPUs where there's none.
        cross_device_ops: How replicas sum their gradients. None chooses the fastest correct
            one: NCCL between whole GPUs, `ReductionToOneDevice` between logical devices.
        variable_partitioner: For "parameter_server": splits large variables over the parameter
            servers (`tf.distribute.experimental.partitioners`). It works for raw `tf.Variable`s
            only, because those of Keras 3 can't be split.
        timeout_secs: Seconds to wait for the other tasks of a cluster. A notebook's cluster is
            there in a second; five minutes are for a batch system that starts tasks one by one.
        heartbeat_secs: For "multi_worker": seconds that a task may be silent, once it has joined,
            before the others give it up. The default is 10, or 100 where all tasks are on this
            machine, which may be too busy for one of them.

    Returns:
        The strategy, TensorFlow's own.

    Raises:
        InvalidArgument: `kind` is misspelt, or an argument is invalid or not for this kind.
        DeviceError: A device doesn't exist, there's no TPU, or TensorFlow was used, or another
            cluster joined, before a cluster's strategy was made.
        UnsupportedEnvironment: The kind needs a cluster and none is described, the description
            has a mistake, this task's port is in use, or tasks were given different clusters
            or have different numbers of devices or versions.
        TaskTimeout: Other tasks haven't come in time; it names them, and what to check.
        ProcessError: A task that had come has ended.
        SystemExit: This task has served and was asked to end.

    Example:
        >>> strategy = dl.make_strategy("mirrored", devices=dl.split_devices(4))
        >>> strategy.num_replicas_in_sync
        4
    """
    if kind not in KINDS:
        raise InvalidArgument(
            asked=f"make_strategy({kind!r})",
            found=f"kind={kind!r}, which names no strategy",
            do=did_you_mean(_snake(str(kind)), KINDS),
        )
    why = f'"{kind}" was asked for'
    if kind == "auto" or (kind in CLUSTER_KINDS and _is_evaluator()):
        kind, why = _choose_kind()
    if devices is not None and kind not in _TAKE_DEVICES:
        raise InvalidArgument(
            asked=f"make_strategy({kind!r}, devices={devices!r})",
            found=f"{kind!r} finds its own devices",
            do=f"leave devices out, or use one of {', '.join(map(repr, _TAKE_DEVICES))}",
        )
    is_partitioned = variable_partitioner is not None and not _is_evaluator()
    if is_partitioned and kind != "parameter_server":
        raise InvalidArgument(
            asked=f"make_strategy({kind!r}, variable_partitioner=...)",
            found="only parameter servers hold parts of variables",
            do="leave variable_partitioner out, or use 'parameter_server'",
        )
    wait_for_replica_threads()
    if kind in CLUSTER_KINDS:
        _check_secs("timeout_secs", timeout_secs, least=0)
        if heartbeat_secs is not None:
            _check_secs("heartbeat_secs", heartbeat_secs, least=1)
        strategy = make_on_cluster(
            kind,
            read_cluster(),
            timeout_secs=timeout_secs,
            heartbeat_secs=heartbeat_secs,
            variable_partitioner=variable_partitioner,
        )
    else:
        if kind == "mirrored" and devices is None:
            _warn_of_workers()
        strategy = _make(kind, devices, cross_device_ops)
        separate_collectives(strategy)
    if kind != "default":  # TensorFlow's default strategy is one object for everyone
        strategy._distlab_origin = (kind, why)
    return strategy


def _warn_of_workers() -> None:
    """Warns where this process is one of several workers, and would train a model of its own."""
    with contextlib.suppress(DistlabError):  # a wrong TF_CONFIG, which nobody reads here
        cluster = read_cluster()
        if cluster is not None and len(cluster.trainers) > 1:
            text = (
                "make_strategy('mirrored') takes the devices of this process alone, although "
                f"{cluster.source} names {len(cluster.trainers)} workers, each of which would "
                "train a model of its own. make_strategy('auto') joins them."
            )
            warnings.warn(text, UserWarning, stacklevel=3)


def _snake(name: str) -> str:
    """Returns "multi_worker_mirrored" for "MultiWorkerMirroredStrategy"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.removesuffix("Strategy")).lower()


def _check_secs(name: str, secs: Any, *, least: int) -> None:
    is_number = isinstance(secs, int | float) and not isinstance(secs, bool)
    if not is_number or not least <= secs <= _MAX_SECS:
        raise InvalidArgument(
            asked=f"make_strategy(..., {name}={secs!r})",
            found=f"{name}={secs!r}",
            do=f"leave it out, or pass {least} to {_MAX_SECS} seconds: 60 is a minute",
        )


def _choose_kind() -> tuple[Kind, str]:
    """Decides what "auto" means here, and says why."""
    cluster = read_cluster()
    if cluster is not None and cluster.strategy == "one_device":
        return "one_device", "this task is the evaluator, which computes alone"
    if cluster is not None and cluster.strategy is not None:
        why = f"{cluster.source} names a cluster of {cluster.tasks} tasks"
        return cast(Kind, cluster.strategy), why
    if _has_tpu():
        return "tpu", "there is a TPU"
    gpus = tf.config.list_logical_devices("GPU")
    if len(gpus) > 1:
        return "mirrored", f"there are {len(gpus)} GPUs"
    if gpus:
        return "one_device", "there is one GPU"
    return "one_device", "there is no cluster, no TPU and no GPU"


def _is_evaluator() -> bool:
    cluster = read_cluster()
    return cluster is not None and cluster.strategy == "one_device"


def _make(kind: str, devices: Sequence[str] | int | None, operations: Any) -> Any:
    if kind == "default":
        # The strategy of code that uses none: TensorFlow gives it out only outside any scope.
        with tf.init_scope():
            return tf.distribute.get_strategy()
    if kind == "tpu":
        return _make_tpu()
    names = _find_devices(kind, devices)
    if kind == "one_device":
        return tf.distribute.OneDeviceStrategy(names[0])
    if operations is None:
        operations = _choose_cross_device_ops(names)
    if kind == "mirrored":
        return tf.distribute.MirroredStrategy(names, cross_device_ops=operations)
    strategy = tf.distribute.experimental.CentralStorageStrategy(names)
    strategy.extended._cross_device_ops = operations
    return strategy


def _find_devices(kind: str, devices: Sequence[str] | int | None) -> list[str]:
    """Returns the names of the devices asked for, all of which exist."""
    gpus = [short_name(device.name) for device in tf.config.list_logical_devices("GPU")]
    cpus = [short_name(device.name) for device in tf.config.list_logical_devices("CPU")]
    defaults = gpus or cpus
    if devices is None:
        names = defaults[:1] if kind == "one_device" else defaults
    elif isinstance(devices, int):
        names = defaults[:devices]
        if not 1 <= devices <= len(defaults):
            raise _no_such_devices(kind, devices, defaults, devices)
    else:
        names = [short_name(name) for name in ([devices] if isinstance(devices, str) else devices)]
        missing = [name for name in names if name not in gpus + cpus]
        if missing or not names:
            raise _no_such_devices(kind, devices, cpus + gpus, len(names))
    if kind == "one_device" and len(names) > 1:
        raise InvalidArgument(
            asked=f"make_strategy('one_device', devices={devices!r})",
            found=f"{len(names)} devices",
            do="pass one device, or use 'mirrored' for several",
        )
    return names


def _no_such_devices(
    kind: str, devices: Sequence[str] | int, names: list[str], count: int
) -> DeviceError:
    return DeviceError(
        asked=f"make_strategy({kind!r}, devices={devices!r})",
        found=f"there {'is' if len(names) == 1 else 'are'} only {', '.join(names)}",
        do=f"choose among these, or call distlab.split_devices({max(count, 1)}) as the first thing "
        "in a fresh kernel: it makes as many logical devices",
    )


def _choose_cross_device_ops(names: list[str]) -> Any:
    """Chooses NCCL for whole GPUs only.

    On logical CPUs TensorFlow's default cannot make two strategies of different size in one
    process, and is slower.
    """
    physical = tf.config.list_physical_devices("GPU")
    logical = tf.config.list_logical_devices("GPU")
    whole_gpus = all(name.startswith("GPU") for name in names) and len(physical) == len(logical)
    if whole_gpus and len(names) > 1:
        return tf.distribute.NcclAllReduce()
    return ReductionToOneDevice()


def _has_tpu() -> bool:
    named = any(os.environ.get(name) for name in ("TPU_NAME", "COLAB_TPU_ADDR"))
    return named or bool(tf.config.list_physical_devices("TPU"))


def _make_tpu() -> Any:
    if not _has_tpu():
        raise DeviceError(
            asked="make_strategy('tpu')",
            found="no TPU: TPU_NAME is not set and TensorFlow sees none",
            do="run on a TPU host (or a Colab TPU runtime) with a TensorFlow built for TPUs; "
            "everywhere else 'mirrored' runs the same code",
        )
    # TensorFlow takes the argument "local" for this machine. In TPU_NAME alone, it would look the
    # word up in Google Cloud.
    name = os.environ.get("TPU_NAME")
    address = "local" if name == "local" else None
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(address)
    tf.config.experimental_connect_to_cluster(resolver)
    try:
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except tf.errors.NotFoundError as error:
        raise DeviceError(
            asked="make_strategy('tpu')",
            found="no TPU that TensorFlow can use" + (f", and TPU_NAME={name}" if name else ""),
            do="install tensorflow-tpu in place of tensorflow, on a TPU host "
            f"({path_to_open('docs/tpu.md')}); everywhere else 'mirrored' runs the same code",
        ) from error
    return tf.distribute.TPUStrategy(resolver)
