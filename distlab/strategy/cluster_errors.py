"""Errors of tasks that don't come, disagree or end while a cluster's strategy is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from distlab.cluster.probe import doubt_of, unanswering
from distlab.cluster.spec import ClusterSpec, TaskName, count_tasks
from distlab.errors import DistlabError, ProcessError, TaskTimeout, UnsupportedEnvironment

_SAME_CLUSTER = "give all tasks the same 'cluster'; only 'task' differs"


def call_text(cluster: ClusterSpec, kind: str = "multi_worker") -> str:
    """The call, as an error quotes it."""
    return f"make_strategy({kind!r}) on {cluster.task or 'the coordinator'}"


def absent(
    cluster: ClusterSpec, tasks: Sequence[TaskName], secs: float, *, kind: str = "multi_worker"
) -> TaskTimeout:
    """The error of tasks that haven't come in time, each with what its address says now."""
    texts, check = silent(cluster, tasks)
    others = {t for t in cluster.tasks_in_order() if t != cluster.task and cluster.address_of(t)}
    if len(texts) < len(tasks):
        check.append(
            "does it make this strategy, too, or has it met others before? "
            f"If it makes it, {_SAME_CLUSTER}."
        )
    elif texts.keys() == others:
        check.append(
            "if all others have ended because the training is done, don't start this task again "
            "(Kubernetes: restartPolicy: OnFailure)"
        )
    check += [
        doubt_of_own_address(cluster),
        f"a task that comes later needs a timeout_secs above {secs:g}",
    ]
    return TaskTimeout(
        asked=call_text(cluster, kind),
        found="; ".join(texts.get(task, f"{task} answers and has not joined") for task in tasks),
        do=_sentences(check),
        task=str(tasks[0]),
    )


def silent(
    cluster: ClusterSpec, tasks: Iterable[TaskName]
) -> tuple[dict[TaskName, str], list[str]]:
    """The tasks at whose address no TensorFlow answers, each in words, and what to check."""
    addresses = {task: cluster.address_of(task) for task in tasks if task != cluster.task}
    probes = unanswering({task: address for task, address in addresses.items() if address})
    texts = {
        task: f"{task} at {probe.address} does not answer: {probe.found}"
        for task, probe in probes.items()
    }
    return texts, [probe.check for probe in probes.values()]


def ended(cluster: ClusterSpec, evidence: str, *, kind: str = "multi_worker") -> ProcessError:
    """The error of a task that had come and has ended, as the evidence shows."""
    texts, check = silent(cluster, cluster.trainers)
    return ProcessError(
        asked=call_text(cluster, kind),
        found="; ".join([*texts.values(), evidence]),
        do=_sentences([*check, "start all tasks again"]),
    )


def not_connected(
    cluster: ClusterSpec, message: str, *, kind: str = "multi_worker"
) -> DistlabError:
    """The error for one that TensorFlow raised once all tasks were there."""
    if "Could not start gRPC server" in message:
        return port_in_use(cluster, kind)
    first = (message.strip().splitlines() or ["nothing"])[0]
    return ended(cluster, f"all tasks were there, and TensorFlow says: {first}", kind=kind)


def disagreement(
    cluster: ClusterSpec, *, theirs: Mapping[str, Any], ours: Mapping[str, Any]
) -> UnsupportedEnvironment | None:
    """The error of a worker whose cluster, devices or versions aren't the leader's, or None."""
    task, leader = theirs["task"], cluster.task
    if theirs["cluster"] != ours["cluster"]:
        found, do = _difference(task, theirs["cluster"], cluster), _SAME_CLUSTER
    elif theirs["replicas"] != ours["replicas"]:
        count = f"{theirs['replicas']} device{'s' if theirs['replicas'] > 1 else ''}"
        found = f"{task} computes on {count}, and {leader} on {ours['replicas']}"
        do = (
            "give all workers as many: GPUs (CUDA_VISIBLE_DEVICES), or logical devices "
            "(distlab.split_devices, `distlab launch --devices-per-worker`)"
        )
    elif theirs["versions"] != ours["versions"]:
        found = f"{task} runs {theirs['versions']}, and {leader} {ours['versions']}"
        do = "install the same versions on every machine"
    else:
        return None
    return UnsupportedEnvironment(asked=call_text(cluster), found=found, do=do)


def _difference(task: Any, theirs: Mapping[str, list[str]], cluster: ClusterSpec) -> str:
    counts = {job: len(tasks) for job, tasks in theirs.items()}
    own_counts = {job: len(tasks) for job, tasks in cluster.addresses.items()}
    if counts != own_counts:
        return (
            f"{task} was told of {count_tasks(counts)}, and {cluster.task} of "
            f"{count_tasks(own_counts)}"
        )
    name, address, own_address = next(
        (f"{job}:{index}", address, own_address)
        for job, own_tasks in cluster.addresses.items()
        for index, (address, own_address) in enumerate(zip(theirs[job], own_tasks, strict=True))
        if address != own_address
    )
    return (
        f"{task} was told that {name} is at {address}, and {cluster.task} that it is at "
        f"{own_address}"
    )


def duplicate_task(cluster: ClusterSpec, task: str, hosts: Sequence[str]) -> UnsupportedEnvironment:
    """The error of two processes that are the same task."""
    return UnsupportedEnvironment(
        asked=call_text(cluster),
        found=f"two processes are {task}, one on {hosts[0]} and one on {hosts[1]}",
        do="name a 'task' of its own in each process's TF_CONFIG, and end those of an earlier run",
    )


def port_in_use(cluster: ClusterSpec, kind: str) -> UnsupportedEnvironment:
    """The error of a task whose port another process holds."""
    return UnsupportedEnvironment(
        asked=call_text(cluster, kind),
        found=f"its port is in use, {own_address(cluster)} (Address already in use): "
        "another process listens there, perhaps this very task, started twice",
        do="end that process (ss -ltnp names it), or give this task another port in every "
        "task's TF_CONFIG",
    )


def doubt_of_own_address(cluster: ClusterSpec) -> str:
    """A doubt where this process's address is no address of this machine; else ""."""
    address = own_address(cluster)
    return doubt_of(address) if address else ""


def own_address(cluster: ClusterSpec) -> str | None:
    """This process's "host:port"; None where it coordinates from outside."""
    return cluster.address_of(cluster.task) if cluster.task else None


def _sentences(texts: Sequence[str]) -> str:
    first, *others = dict.fromkeys(filter(None, texts))
    return " ".join([first, *(text[0].upper() + text[1:] for text in others)])
