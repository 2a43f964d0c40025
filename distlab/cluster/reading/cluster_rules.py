"""Rules that every description of a cluster must follow.

check_cluster({"worker": ("host1:2222", "host2:2222")}, task=("worker", 0))  # or ClusterMistake
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from distlab.cluster.reading.addresses import ClusterMistake, parse_address, shown
from distlab.errors import did_you_mean

# In the order in which tasks are listed, numbered and shown.
JOBS = ("chief", "worker", "ps", "evaluator")

# What people, and systems of TensorFlow 1, call them.
_RENAMED = {
    "master": "chief",
    "coordinator": "chief",
    "leader": "chief",
    "workers": "worker",
    "server": "ps",
    "servers": "ps",
    "parameter_server": "ps",
    "parameter_servers": "ps",
    "eval": "evaluator",
}


@dataclass(frozen=True, kw_only=True)
class Description:
    """A cluster as it was described.

    Attributes:
        addresses: "host:port" of each task by job; "" for a task that this one was not told of.
        task: Job and index of this process; None where it coordinates from outside.
    """

    addresses: Mapping[str, tuple[str, ...]]
    task: tuple[str, int] | None


def check_job(job: str) -> None:
    """Raises ClusterMistake for a job that TensorFlow does not know."""
    if job not in JOBS:
        known = _RENAMED.get(job.lower().replace("-", "_"), job.lower())
        cure = f"call it {known!r}" if known in JOBS else did_you_mean(job, JOBS)
        raise ClusterMistake(f"{shown(job)} is no job of a cluster", cure)


def check_cluster(addresses: Mapping[str, tuple[str, ...]], task: tuple[str, int] | None) -> None:
    """Raises ClusterMistake for jobs, addresses or a task that do not go together."""
    _check_jobs(addresses, task)
    _check_addresses(addresses)
    if task is not None:
        _check_task(addresses, *task)


def _check_jobs(addresses: Mapping[str, tuple[str, ...]], task: tuple[str, int] | None) -> None:
    if "evaluator" in addresses:
        raise ClusterMistake(
            "'evaluator' is in the cluster; it evaluates checkpoints and meets no other task",
            "take it out of 'cluster', and keep it as the 'task' of the process that evaluates",
        )
    for job, tasks in addresses.items():
        if not tasks:
            raise ClusterMistake(f"{job!r} has no task", f"give its addresses, or take {job!r} out")
    chiefs = len(addresses.get("chief", ()))
    if chiefs > 1:
        raise ClusterMistake(
            f"there are {chiefs} chiefs", "keep one, and make the others tasks of 'worker'"
        )
    told_all = all(one for tasks in addresses.values() for one in tasks)
    if "ps" not in addresses:
        if not told_all:
            raise ClusterMistake(
                "some indices are left out, and workers must all know each other",
                "give the address of every task, from index 0",
            )
        return
    if "worker" not in addresses:
        raise ClusterMistake(
            "there are parameter servers and no worker", "add 'worker' with its addresses"
        )
    if task is not None and "chief" not in addresses and told_all:
        raise ClusterMistake(
            "there are parameter servers and no chief: every task would wait to be told what to do",
            'add the process that coordinates, "chief": ["host:port"] in \'cluster\' and '
            '{"type": "chief", "index": 0} as its \'task\'',
        )


def _check_addresses(addresses: Mapping[str, tuple[str, ...]]) -> None:
    seen: dict[tuple[str, int], tuple[str, str]] = {}
    hosts: dict[str, str] = {}
    for job, tasks in addresses.items():
        for index, text in enumerate(tasks):
            if not text:
                continue
            name = f"{job}:{index}"
            try:
                address = parse_address(text)
            except ClusterMistake as mistake:
                raise ClusterMistake(f"{name}: {mistake.found}", mistake.do) from mistake
            other, same = seen.setdefault((address.machine, address.port), (name, text))
            if other != name:
                raise ClusterMistake(
                    f"{other} at {same} and {name} at {text} have the same address",
                    "give each task its own; tasks on one machine differ by their ports",
                )
            hosts.setdefault(address.machine, f"{name} is at {text}")
    if "localhost" in hosts and len(hosts) > 1:
        local = hosts.pop("localhost")
        raise ClusterMistake(
            f"{local}, which means another machine on each, and {next(iter(hosts.values()))}",
            "give every task the name or the IP address by which the other machines reach it",
        )


def _check_task(addresses: Mapping[str, tuple[str, ...]], job: str, index: int) -> None:
    check_job(job)
    if job != "evaluator" and job not in addresses:
        there = " and ".join(repr(job) for job in addresses)
        raise ClusterMistake(
            f"this task is of {job!r}, and the cluster has only {there}",
            f"add {job!r} to 'cluster' on every task, or change 'type'",
        )
    count = 1 if job == "evaluator" else len(addresses[job])
    if not 0 <= index < count:
        last = f"0 to {count - 1}" if count > 1 else "0 only"
        raise ClusterMistake(
            f"this task is {job}:{shown(index)}, and {job!r} has the indices {last}",
            "count the tasks of a job from 0, each process its own number",
        )
    if job != "evaluator" and not addresses[job][index]:
        raise ClusterMistake(
            f"this task is {job}:{index}, and the cluster does not say its address",
            "add it: a task may be left out only of what others are told",
        )
