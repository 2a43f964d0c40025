"""Describes a strategy in words.

describe(strategy)                # kind, replicas, workers, devices, variables, all-reduce, why
describe(strategy).is_chief       # whether this process is the one that prints and writes for all
"""

from __future__ import annotations

import html
from dataclasses import dataclass, field, fields
from typing import Any

import tensorflow as tf

from distlab.errors import InvalidArgument

CLUSTER_KINDS = ("multi_worker", "parameter_server")

_VARIABLES = {
    "default": "one copy, on the default device",
    "one_device": "one copy, on that device",
    "mirrored": "a copy on every device, kept equal",
    "central_storage": "one copy, on the CPU (or on the only GPU)",
    "multi_worker": "a copy on every device of every worker, kept equal",
    "parameter_server": "spread over the parameter servers",
    "tpu": "a copy on every TPU core, kept equal",
}
_NO_REDUCE = {"parameter_server": "none: each worker applies its own gradients", "tpu": "XLA"}


@dataclass(frozen=True, kw_only=True)
class StrategyDescription:
    """The description of a strategy, in words.

    Attributes:
        kind: The name that `make_strategy` takes.
        replicas: Copies of the model that step together.
        workers: Processes that train.
        devices: Where the replicas compute.
        variables: Where the variables are.
        all_reduce: What adds the gradients up.
        why: Why this kind was chosen.
        whole_batch: Of a model that has taken a step under `distribute`, the layers that get the
            whole batch, since they look at it as a whole; None where a strategy was described.
        is_chief: Whether this process prints and writes for all workers. On parameter servers
            that's the coordinator, and in a single process it is always true.
    """

    kind: str
    replicas: int
    workers: int
    devices: tuple[str, ...]
    variables: str
    all_reduce: str
    why: str
    whole_batch: tuple[str, ...] | None = None
    is_chief: bool = field(default=True, repr=False)

    def _rows(self) -> list[tuple[str, str]]:
        shown = [each.name for each in fields(self) if each.repr]
        if self.whole_batch is None:
            shown.remove("whole_batch")
        rows = [(name.replace("_", "-"), getattr(self, name)) for name in shown]
        return [
            (name, ", ".join(value) or "no layer" if isinstance(value, tuple) else str(value))
            for name, value in rows
        ]

    def __repr__(self) -> str:
        return "\n".join(f"{name:<10} {value}" for name, value in self._rows())

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
            f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
            for name, value in self._rows()
        )
        return f"<table>{cells}</table>"


def describe(what: Any) -> StrategyDescription:
    """Says in words which replicas, devices and variables a strategy has, and why it was chosen.

    It takes any `tf.distribute` strategy, also one that distlab didn't make. Where several
    processes train, `describe(strategy).is_chief` says which of them prints and writes for all.

    Args:
        what: The strategy, or a model that `distribute` has returned. Once the model has taken a
            step, the description also lists the layers that get the whole batch.

    Returns:
        A `StrategyDescription`, which shows as a table and has each row as an attribute.

    Raises:
        InvalidArgument: It's neither a strategy nor a model that has one.

    Example:
        >>> devices = dl.split_devices(2, kind="cpu")
        >>> dl.describe(dl.make_strategy("mirrored", devices=devices))
        kind       mirrored
        replicas   2
        workers    1
        devices    CPU:0, CPU:1
        variables  a copy on every device, kept equal
        all-reduce ReductionToOneDevice
        why        "mirrored" was asked for
    """
    strategy, whole_batch = what, None
    if not isinstance(what, tf.distribute.Strategy):
        strategy = getattr(what, "distribute_strategy", None)
        if strategy is None:
            raise InvalidArgument(
                asked=f"describe({what!r})",
                found=f"a {type(what).__name__}, no strategy and no model that has one",
                do="pass what make_strategy or distribute has returned",
            )
        seen = (each for each in what._flatten_layers() if _gets_whole_batch(each))
        whole_batch = tuple(layer.name for layer in seen)
    kind, why = getattr(strategy, "_distlab_origin", (_kind_of(strategy), "made elsewhere"))
    if kind == "default":
        why = "no other strategy was asked for"
    extended = strategy.extended
    devices: tuple[str, ...] = ("the default device",)
    if kind != "default":
        devices = tuple(short_name(device) for device in extended.worker_devices)
    workers = getattr(extended, "_num_workers", 1) if kind in CLUSTER_KINDS else 1
    operations = getattr(extended, "_cross_device_ops", None)
    reduces = strategy.num_replicas_in_sync > 1 and operations is not None
    return StrategyDescription(
        kind=kind,
        replicas=strategy.num_replicas_in_sync,
        workers=workers,
        devices=devices,
        variables=_VARIABLES[kind],
        all_reduce=type(operations).__name__ if reduces else _NO_REDUCE.get(kind, "not needed"),
        why=why,
        whole_batch=whole_batch,
        is_chief=kind not in CLUSTER_KINDS or _is_first_task(strategy.cluster_resolver),
    )


def _gets_whole_batch(layer: Any) -> bool:
    return bool(vars(layer).get("_distlab_sees_whole"))


def _is_first_task(resolver: tf.distribute.cluster_resolver.ClusterResolver | None) -> bool:
    if resolver is None:
        return True
    jobs = resolver.cluster_spec().as_dict()
    first = ("chief" if "chief" in jobs else "worker", 0)
    return not jobs or (resolver.task_type, resolver.task_id) == first


def _kind_of(strategy: Any) -> str:
    kinds = {
        "OneDeviceStrategy": "one_device",
        "MirroredStrategy": "mirrored",
        "CentralStorageStrategy": "central_storage",
        "CollectiveAllReduceStrategy": "multi_worker",
        "MultiWorkerMirroredStrategy": "multi_worker",
        "ParameterServerStrategyV2": "parameter_server",
        "TPUStrategyV2": "tpu",
        "TPUStrategy": "tpu",
    }
    return kinds.get(type(strategy).__name__, "default")


def short_name(device: str) -> str:
    """Returns 'CPU:1' for '/job:localhost/replica:0/task:0/device:CPU:1', and for '/cpu:1'."""
    return device.rpartition("device:")[2].lstrip("/").upper()
