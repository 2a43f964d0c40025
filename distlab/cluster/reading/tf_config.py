"""Reads TF_CONFIG, and explains every mistake in it.

parse_tf_config('{"cluster": {"worker": ["host1:2222", "host2:2222"]},
                  "task": {"type": "worker", "index": 0}}')
"""

from __future__ import annotations

import difflib
import json
from typing import Any

from distlab.cluster.reading.addresses import ClusterMistake, shown
from distlab.cluster.reading.cluster_rules import Description, check_cluster, check_job
from distlab.errors import UnsupportedEnvironment

_EXAMPLE = (
    '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'
)
# Far beyond any cluster; a job written as a mapping may name any index.
_MOST_TASKS = 10_000


def parse_tf_config(text: str) -> Description | None:
    """Reads the value of TF_CONFIG; None where it describes no cluster.

    What TensorFlow does not read is passed over: "environment" and the like.
    """
    try:
        return _parse(text)
    except ClusterMistake as mistake:
        raise UnsupportedEnvironment(
            asked=f"TF_CONFIG={text[:80]!r}{'...' if len(text) > 80 else ''}",
            found=mistake.found,
            do=mistake.do,
        ) from mistake


def _parse(text: str) -> Description | None:
    config = _load(text)
    if not isinstance(config, dict):
        twice = ": was json.dumps called twice?" if isinstance(config, str) else ""
        raise _no_cluster(f"it is {_kind(config)}, no object{twice}")
    _check_keys(config)
    cluster, task = config.get("cluster", {}), config.get("task", {})
    if not isinstance(cluster, dict):
        raise _no_cluster(f"'cluster' is {_kind(cluster)}, no object of jobs")
    if not isinstance(task, dict):
        raise _no_cluster(f"'task' is {_kind(task)}, no object with 'type' and 'index'")
    if not cluster:
        if task and "cluster" not in config:
            raise _no_cluster("there is a 'task' and no 'cluster': each would train alone")
        return None
    for job in cluster:
        check_job(job)
    addresses = {job: _tasks(job, tasks) for job, tasks in cluster.items()}
    name = _task(task, addresses)
    check_cluster(addresses, name)
    return Description(addresses=addresses, task=name)


def _load(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        place = text[error.pos : error.pos + 30]
        at = f"at character {error.pos + 1}, {place!r}" if place else "at its end"
        raise _no_cluster(f"no JSON {at} ({error.msg})", do=_cure_of_quotes(text)) from error
    except RecursionError as error:
        raise _no_cluster("it is nested too deeply") from error
    except ValueError as error:  # a number of thousands of digits
        raise _no_cluster(str(error)) from error


def _cure_of_quotes(text: str) -> str | None:
    if text[:1] == "'" == text[-1:]:
        return "take away the quotes around it"
    if "'" in text and '"' not in text:
        return "write \" for ', or let Python write it: json.dumps({...})"
    return None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object whose names are all different; JSON's own reader keeps the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise _no_cluster(f"{shown(twice)} is there twice")
    return found


def _check_keys(config: dict[str, Any]) -> None:
    if "sparseCluster" in config and "cluster" not in config:
        raise ClusterMistake(
            "it has 'sparseCluster', which TensorFlow does not read: each task would train alone",
            "set enableDynamicWorker: false in the TFJob",
        )
    lowered = {key.lower(): key for key in config}
    for wanted in [key for key in ("cluster", "task") if key not in config]:
        if near := difflib.get_close_matches(wanted, lowered, n=1):
            raise _no_cluster(f"it has {shown(lowered[near[0]])} and no {wanted!r}")
    layer = config.get("rpc_layer")
    if layer not in (None, "", "grpc"):
        raise ClusterMistake(
            f"'rpc_layer' is {shown(layer)}", "take it out: TensorFlow speaks 'grpc'"
        )


def _tasks(job: str, tasks: Any) -> tuple[str, ...]:
    """Returns the addresses of a job, "" where an index is left out."""
    if isinstance(tasks, dict):
        indices = {_index(key, f"a task of {job!r} has"): one for key, one in tasks.items()}
        if len(indices) < len(tasks):
            raise _no_cluster(f"an index of {job!r} is there twice")
        if any(not 0 <= index < _MOST_TASKS for index in indices):
            raise _no_cluster(f"the indices of {job!r} are not 0, 1, 2, ...")
        tasks = [indices.get(index, "") for index in range(max(indices, default=-1) + 1)]
        if "" in indices.values():
            raise _no_cluster(f"an address of {job!r} is empty")
    elif not isinstance(tasks, list):
        raise _no_cluster(f"{job!r} is {_kind(tasks)}, no list of addresses")
    elif "" in tasks:
        raise _no_cluster(f"{job}:{tasks.index('')} has an empty address")
    for index, one in enumerate(tasks):
        if not isinstance(one, str):
            raise _no_cluster(f"the address of {job}:{index} is {_kind(one)}, no string")
    return tuple(tasks)


def _task(task: dict[str, Any], addresses: dict[str, tuple[str, ...]]) -> tuple[str, int] | None:
    """Returns the job and index of this process; None where it coordinates from outside."""
    if not task and "ps" in addresses and "chief" not in addresses:
        return None
    count = sum(map(len, addresses.values()))
    for key in ("type", "index"):
        if key not in task:
            missing = f"'task' has no {key!r}" if task else "there is no 'task'"
            raise ClusterMistake(
                f"{missing}: this process cannot know which of the {count} tasks it is",
                'add "task": {"type": "worker", "index": 0}, in each process its own',
            )
    if not isinstance(task["type"], str):
        raise _no_cluster(f"the task's 'type' is {_kind(task['type'])}, no string")
    return task["type"], _index(task["index"], "this task has")


def _index(value: Any, whose: str) -> int:
    """Returns a number, also from its digits in a string: TensorFlow reads both."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)
    raise ClusterMistake(f"{whose} the index {shown(value)}", "give a whole number, from 0")


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
    kind = kinds.get(type(value), "a number" if value is not None else "null")
    return f"{kind} ({shown(value)})"


def _no_cluster(what: str, *, do: str | None = None) -> ClusterMistake:
    do = do or f"set it as in {_EXAMPLE}, or unset it"
    return ClusterMistake(f"it does not describe a cluster: {what}", do)
