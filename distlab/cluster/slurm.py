"""Reads the cluster that Slurm describes: one worker for each task of a step of `srun`.

parse_slurm({"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "node[1-2]",
             "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_PROCID": "0"})

As TensorFlow's own resolver does, but in the order of the nodes (that one sorts their names as
text, which puts node10 before node9, where Slurm's ranks do not), and without asking nvidia-smi.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping

from distlab.cluster.tf_config import ClusterMistake, Description, check_cluster, shown

# The first port on a node: as in TensorFlow's resolver, where the job is not told. Else each step
# has a block of ports: jobs that share a node, and steps of a job, must not meet there.
_FIRST_PORT = 8888
_FIRST_OF_BLOCKS, _BLOCK_PORTS, _BLOCKS, _BLOCKS_OF_A_JOB = 10_000, 16, 1249, 8


def parse_slurm(environ: Mapping[str, str]) -> Description | None:
    """Reads Slurm's variables; None outside of a step, and in a step of one task."""
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "")
    if not (tasks.isascii() and tasks.isdigit()) or int(tasks) < 2:
        return None
    total = int(tasks)
    hosts = list(_nodes(_variable(environ, "SLURM_STEP_NODELIST")))
    counts = list(_counts(_variable(environ, "SLURM_STEP_TASKS_PER_NODE")))
    if len(hosts) != len(counts) or sum(counts) != total:
        raise ClusterMistake(
            f"{total} tasks, {len(hosts)} nodes, and {counts} tasks on them",
            "start the tasks with srun, and leave its variables as they are",
        )
    places = [(node, local) for node, count in enumerate(counts) for local in range(count)]
    rank = _number(environ, "SLURM_PROCID")
    if not rank < total:
        raise ClusterMistake(
            f"SLURM_PROCID={rank} of {total} tasks", "leave srun's variables as they are"
        )
    _check_order(environ, places[rank])
    ports = _ports(environ, max(counts))
    addresses = {"worker": tuple(f"{hosts[node]}:{ports[local]}" for node, local in places)}
    check_cluster(addresses, ("worker", rank))
    return Description(addresses=addresses, task=("worker", rank))


def _variable(environ: Mapping[str, str], name: str) -> str:
    if not environ.get(name):
        raise ClusterMistake(f"{name} is not set", "start the tasks with srun, which sets it")
    return environ[name]


def _number(environ: Mapping[str, str], name: str) -> int:
    text = _variable(environ, name)
    if not (text.isascii() and text.isdigit()):
        raise ClusterMistake(
            f"{name}={shown(text)} is no number", "leave srun's variables as they are"
        )
    return int(text)


def _check_order(environ: Mapping[str, str], place: tuple[int, int]) -> None:
    """Raises ClusterMistake where ranks were dealt out to the nodes in turn."""
    if "SLURM_NODEID" in environ and "SLURM_LOCALID" in environ:
        node, local = _number(environ, "SLURM_NODEID"), _number(environ, "SLURM_LOCALID")
        if (node, local) != place:
            raise ClusterMistake(
                f"task {environ['SLURM_PROCID']} runs as number {local} on node {node}; "
                f"counting node by node it is number {place[1]} on node {place[0]}",
                "start the tasks with srun --distribution=block",
            )


def _ports(environ: Mapping[str, str], count: int) -> list[str]:
    reserved = environ.get("SLURM_STEP_RESV_PORTS", "")
    if not reserved:
        first = _first_port(environ)
        return [str(first + local) for local in range(count)]
    ports = list(itertools.islice(_ranges(reserved.strip("[]"), reserved), count))
    if len(ports) < count:
        raise ClusterMistake(
            f"SLURM_STEP_RESV_PORTS={shown(reserved)}, and {count} tasks on a node",
            f"start the tasks with srun --resv-ports={count}",
        )
    return ports


def _first_port(environ: Mapping[str, str]) -> int:
    if not environ.get("SLURM_JOB_ID"):
        return _FIRST_PORT
    job = _number(environ, "SLURM_JOB_ID")
    step = _number(environ, "SLURM_STEP_ID") if environ.get("SLURM_STEP_ID") else 0
    return _FIRST_OF_BLOCKS + _BLOCK_PORTS * ((_BLOCKS_OF_A_JOB * job + step) % _BLOCKS)


def _nodes(text: str) -> Iterator[str]:
    """Yields node1, node2, big7 of "node[1-2],big7"; several brackets in a name multiply."""
    for name in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text):
        pieces = re.findall(r"\[[^\]]*\]|[^\[\]]+", name)
        parts = [_ranges(p[1:-1], text) if p.startswith("[") else [p] for p in pieces]
        yield from map("".join, itertools.product(*parts))


def _ranges(ranges: str, text: str) -> Iterator[str]:
    """Yields 08, 09, 10 and 12 of "08-10,12"."""
    for part in ranges.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part, re.ASCII)
        if match is None:
            raise ClusterMistake(
                f"{shown(part)} in {shown(text)}", "leave srun's variables as they are"
            )
        first, last = match[1], match[2] or match[1]
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))


def _counts(text: str) -> Iterator[int]:
    """Yields 2, 2, 1 of "2(x2),1"."""
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part, re.ASCII)
        if match is None:
            raise ClusterMistake(
                f"SLURM_STEP_TASKS_PER_NODE={shown(text)}", "leave srun's variables as they are"
            )
        yield from [int(match[1])] * int(match[2] or 1)
