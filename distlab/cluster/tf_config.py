"""Reads TF_CONFIG, and explains every mistake in it.

parse_tf_config('{"cluster": {"worker": ["host1:2222", "host2:2222"]},
                  "task": {"type": "worker", "index": 0}}')
parse_address("host1:2222")              # Address(host='host1', port=2222)
"""

from __future__ import annotations

import ipaddress
import json
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distlab.errors import did_you_mean

# In the order in which tasks are listed, numbered and shown.
JOBS = ("chief", "worker", "ps", "evaluator")

_EXAMPLE = (
    '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'
)

_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?")
_FORM = "write host:port, as 'host1:2222'"
_LOCAL_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60


class ClusterMistake(Exception):
    """A mistake in a description; the reader of the description adds in an error where it was."""

    def __init__(self, found: str, do: str) -> None:
        self.found, self.do = found, do
        super().__init__(found, do)


@dataclass(frozen=True, kw_only=True)
class Description:
    """A cluster as it was described."""

    addresses: Mapping[str, tuple[str, ...]]  # by job, in index order
    task: tuple[str, int] | None  # job and index; None where it coordinates from outside


@dataclass(frozen=True)
class Address:
    """The host and port on which a task listens."""

    host: str  # a name or an IP address, without brackets
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def machine(self) -> str:
        """The host, the same for each of its spellings; "localhost" for this machine."""
        name = self.host.lower().rstrip(".")
        try:
            ip = ipaddress.ip_address(name)
        except ValueError:
            return "localhost" if name in _LOCAL_NAMES else name
        return "localhost" if ip.is_loopback or ip.is_unspecified else name


def shown(value: Any) -> str:
    """A value as an error shows it: in quotes, and short."""
    return _SHORT.repr(value)


# One address


def parse_address(text: str) -> Address:
    """Splits "host:port", or raises ClusterMistake."""
    host, colon, port = text.rpartition(":")
    digits = port.lstrip("0") if port.isascii() and port.isdigit() else ""
    has_brackets = host.startswith("[") and host.endswith("]")
    cure = _FORM
    if not text.strip():
        raise ClusterMistake(f"the address {shown(text)} is empty", cure)
    if "/" in text or text.split() != [text]:
        found = "more than a host and a port"
    elif not colon or (text.startswith("[") and text.endswith("]")):
        found = "no port"
    elif ":" in host and not has_brackets:
        found = "several colons"
        cure = "write host:port, and an IPv6 address in brackets, as '[::1]:2222'"
    elif not digits or len(digits) > 5 or int(digits) > 65535:
        found = f"the port {shown(port)}"
        cure = "give a port of 1 to 65535 that is free on that machine"
    else:
        return Address(_host(host, text), int(digits))
    raise ClusterMistake(f"the address {shown(text)} has {found}", cure)


def _host(host: str, text: str) -> str:
    """A host without brackets, in the one spelling that an IP address has."""
    cure = "give the name or the IP address of the machine: letters, digits, dots and dashes"
    bare = host[1:-1] if host.startswith("[") else host
    try:
        if bare != host or re.fullmatch(r"[0-9.]+", host):
            return str(ipaddress.ip_address(bare))
    except ValueError as error:
        raise ClusterMistake(f"the address {shown(text)} has no host: {error}", cure) from error
    if len(host) > 253 or not all(_NAME.fullmatch(p) for p in host.removesuffix(".").split(".")):
        raise ClusterMistake(f"the address {shown(text)} has the host {shown(host)}", cure)
    return host


# The text


def parse_tf_config(text: str) -> Description | None:
    """Reads the value of TF_CONFIG; None where it describes no cluster.

    What TensorFlow does not read is passed over: "environment" and the like.
    """
    config = _load(text)
    if not isinstance(config, dict):
        twice = ": was json.dumps called twice?" if isinstance(config, str) else ""
        raise _no_cluster(f"it is {shown(config)}, no object{twice}")
    cluster, task = config.get("cluster", {}), config.get("task", {})
    if not isinstance(cluster, dict):
        raise _no_cluster(f"'cluster' is {shown(cluster)}, no object of jobs")
    if not isinstance(task, dict):
        raise _no_cluster(f"'task' is {shown(task)}, no object with 'type' and 'index'")
    if not cluster:
        if task and "cluster" not in config:
            raise _no_cluster("there is a 'task' and no 'cluster': each would train alone")
        return None
    for job in cluster:
        _check_job(job)
    addresses = {job: _tasks(job, tasks) for job, tasks in cluster.items()}
    name = _task(task, addresses)
    check_cluster(addresses, name)
    return Description(addresses=addresses, task=name)


def _load(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = text[error.pos : error.pos + 30]
        at = f"at character {error.pos + 1}, {place!r}" if place else "at its end"
        is_python = "'" in text and '"' not in text
        cure = "write \" for ', or let Python write it: json.dumps({...})" if is_python else None
        raise _no_cluster(f"no JSON {at} ({error.msg})", do=cure) from error
    except (RecursionError, ValueError) as error:  # nested too deeply; thousands of digits
        raise _no_cluster(str(error)) from error


def _tasks(job: str, tasks: Any) -> tuple[str, ...]:
    """The addresses of a job."""
    if not isinstance(tasks, list):
        raise _no_cluster(f"{job!r} is {shown(tasks)}, no list of addresses")
    for index, text in enumerate(tasks):
        if not isinstance(text, str):
            raise _no_cluster(f"the address of {job}:{index} is {shown(text)}, no string")
    return tuple(tasks)


def _task(task: dict[str, Any], addresses: dict[str, tuple[str, ...]]) -> tuple[str, int] | None:
    """The job and index of this process; None where it coordinates from outside."""
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
        raise _no_cluster(f"the task's 'type' is {shown(task['type'])}, no string")
    return task["type"], _index(task["index"])


def _index(value: Any) -> int:
    """A number, also from its digits in a string: TensorFlow reads both."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)
    raise ClusterMistake(f"this task has the index {shown(value)}", "give a whole number, from 0")


def _no_cluster(problem: str, *, do: str | None = None) -> ClusterMistake:
    do = do or f"set it as in {_EXAMPLE}, or unset it"
    return ClusterMistake(f"it does not describe a cluster: {problem}", do)


# Rules of every cluster, however it was described


def check_cluster(addresses: Mapping[str, tuple[str, ...]], task: tuple[str, int] | None) -> None:
    """Raises ClusterMistake for jobs, addresses or a task that do not go together."""
    _check_jobs(addresses, task)
    _check_addresses(addresses)
    if task is not None:
        _check_task(addresses, *task)


def _check_job(job: str) -> None:
    if job not in JOBS:
        raise ClusterMistake(f"{shown(job)} is no job of a cluster", did_you_mean(job, JOBS))


def _check_jobs(addresses: Mapping[str, tuple[str, ...]], task: tuple[str, int] | None) -> None:
    if "evaluator" in addresses:
        raise ClusterMistake(
            "'evaluator' is in the cluster; it evaluates checkpoints and meets no other task",
            "take it out of 'cluster', and keep it as the 'task' of the process that evaluates",
        )
    for job, tasks in addresses.items():
        if not tasks:
            raise ClusterMistake(f"{job!r} has no task", f"give its addresses, or take {job!r} out")
    if (chiefs := len(addresses.get("chief", ()))) > 1:
        raise ClusterMistake(
            f"there are {chiefs} chiefs", "keep one, and make the others tasks of 'worker'"
        )
    if "ps" in addresses and "worker" not in addresses:
        raise ClusterMistake(
            "there are parameter servers and no worker", "add 'worker' with its addresses"
        )
    if "ps" in addresses and task is not None and "chief" not in addresses:
        raise ClusterMistake(
            "there are parameter servers and no chief: every task would wait to be told what to do",
            'add the process that coordinates, "chief": ["host:port"] in \'cluster\' and '
            '{"type": "chief", "index": 0} as its \'task\'',
        )


def _check_addresses(addresses: Mapping[str, tuple[str, ...]]) -> None:
    texts = {
        f"{job}:{index}": text
        for job, tasks in addresses.items()
        for index, text in enumerate(tasks)
    }
    holders: dict[tuple[str, int], str] = {}
    hosts: dict[str, str] = {}
    for name, text in texts.items():
        try:
            address = parse_address(text)
        except ClusterMistake as mistake:
            raise ClusterMistake(f"{name}: {mistake.found}", mistake.do) from mistake
        other = holders.setdefault((address.machine, address.port), name)
        if other != name:
            raise ClusterMistake(
                f"{other} at {texts[other]} and {name} at {text} have the same address",
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
    _check_job(job)
    tasks = ("nowhere",) if job == "evaluator" else addresses.get(job, ())
    if not tasks:
        jobs = " and ".join(map(repr, addresses))
        raise ClusterMistake(
            f"this task is of {job!r}, and the cluster has only {jobs}",
            f"add {job!r} to 'cluster' on every task, or change 'type'",
        )
    if not 0 <= index < len(tasks):
        last = f"0 to {len(tasks) - 1}" if len(tasks) > 1 else "0 only"
        raise ClusterMistake(
            f"this task is {job}:{shown(index)}, and {job!r} has the indices {last}",
            "count the tasks of a job from 0, each process its own number",
        )
