"""A cluster of TensorFlow: its tasks, their addresses, and which of them this process is.

    spec = Layout(workers=2, parameter_servers=1).on([20001, 20002, 20003])
    spec.tasks_in_order()                 # (worker:0, worker:1, ps:0)
    spec.tf_config(TaskName("worker", 1)) # the TF_CONFIG of that task
    spec = read_cluster()                 # this process's cluster; None where it stands alone

TensorFlow is not needed for any of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distlab.cluster.slurm import parse_slurm
from distlab.cluster.tf_config import JOBS, ClusterMistake, parse_address, parse_tf_config
from distlab.errors import UnsupportedEnvironment

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class TaskName:
    """One task of a cluster: `TaskName("worker", 0)` is shown as worker:0."""

    job: str  # one of `JOBS`
    index: int

    def __str__(self) -> str:
        return f"{self.job}:{self.index}"


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """The tasks of a cluster."""

    jobs: Mapping[str, int]  # number of tasks, evaluators included
    source: str  # where it was read: "TF_CONFIG", "Slurm", or "here" where it was built
    addresses: Mapping[str, tuple[str, ...]]  # "host:port" by job, in index order
    task: TaskName | None = None  # this process; None where it coordinates from outside

    @property
    def tasks(self) -> int:
        """Number of tasks that train or hold variables; an evaluator does neither."""
        return sum(count for job, count in self.jobs.items() if job != "evaluator")

    @property
    def has_parameter_servers(self) -> bool:
        """Whether some tasks only hold variables."""
        return self.jobs.get("ps", 0) > 0

    @property
    def leader(self) -> TaskName:
        """The task that saves for all: the chief, or else worker:0."""
        return TaskName("chief" if self.jobs.get("chief") else "worker", 0)

    @property
    def trainers(self) -> tuple[TaskName, ...]:
        """The tasks that step together where all of them train: chief and workers."""
        return tuple(task for task in self.tasks_in_order() if task.job in ("chief", "worker"))

    @property
    def is_here(self) -> bool:
        """Whether all tasks are told to be on this machine."""
        texts = [text for texts in self.addresses.values() for text in texts]
        return all(parse_address(text).host in _LOOPBACK for text in texts)

    @property
    def strategy(self) -> str | None:
        """The strategy of this process; None for a task alone in its cluster.

        A worker or parameter server under a coordinator has its coordinator's.
        """
        if self.task is not None and self.task.job == "evaluator":
            return "one_device"
        if self.has_parameter_servers:
            return "parameter_server"
        return "multi_worker" if self.tasks > 1 else None

    @property
    def serves(self) -> bool:
        """Whether this process only does what a coordinator tells it."""
        is_worker = self.task is not None and self.task.job in ("worker", "ps")
        return is_worker and self.has_parameter_servers

    def tasks_in_order(self) -> tuple[TaskName, ...]:
        """Returns every task: chief, workers, parameter servers, evaluators."""
        return tuple(TaskName(job, index) for job in JOBS for index in range(self.jobs.get(job, 0)))

    def address_of(self, task: TaskName) -> str | None:
        """Returns a task's "host:port"; None for an evaluator."""
        return None if task.job == "evaluator" else self.addresses[task.job][task.index]

    def tf_config(self, task: TaskName) -> str:
        """Returns the text of a task's TF_CONFIG."""
        cluster = {job: self.addresses[job] for job in JOBS if job in self.addresses}
        return json.dumps({"cluster": cluster, "task": {"type": task.job, "index": task.index}})


def count_tasks(jobs: Mapping[str, int]) -> str:
    """Returns how many tasks of each job there are, in words: "2 workers, 1 parameter server"."""
    names = {"ps": "parameter server"}
    counts = [(jobs[job], names.get(job, job)) for job in JOBS if jobs.get(job)]
    return ", ".join(f"{count} {name}{'s' if count > 1 else ''}" for count, name in counts)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How many tasks of each job a cluster on this machine has."""

    workers: int = 1
    parameter_servers: int = 0
    chief: bool = False
    evaluator: bool = False

    @property
    def jobs(self) -> dict[str, int]:
        """Number of tasks by job, of those jobs that have any."""
        counts = (int(self.chief), self.workers, self.parameter_servers, int(self.evaluator))
        return {job: count for job, count in zip(JOBS, counts, strict=True) if count}

    @property
    def ports(self) -> int:
        """How many tasks listen on a port: all but the evaluator."""
        return sum(count for job, count in self.jobs.items() if job != "evaluator")

    def on(self, ports: Sequence[int]) -> ClusterSpec:
        """Returns the cluster whose tasks listen on these ports."""
        rest = iter(ports)
        addresses = {
            job: tuple(f"127.0.0.1:{next(rest)}" for _ in range(count))
            for job, count in self.jobs.items()
            if job != "evaluator"
        }
        return ClusterSpec(jobs=self.jobs, addresses=addresses, source="here")


def read_cluster(environ: Mapping[str, str] | None = None) -> ClusterSpec | None:
    """Reads the cluster from the environment; None where nothing is set.

    TF_CONFIG comes first (TensorFlow, "Distributed training with TensorFlow: setting up
    TF_CONFIG"), then the variables of a Slurm step.
    """
    environ = os.environ if environ is None else environ
    text = environ.get("TF_CONFIG", "").strip()
    source = "TF_CONFIG" if text else "Slurm"
    try:
        described = parse_tf_config(text) if text else parse_slurm(environ)
    except ClusterMistake as mistake:
        tasks = environ.get("SLURM_STEP_NUM_TASKS", "")
        raise UnsupportedEnvironment(
            asked=f"TF_CONFIG={text[:80]!r}{'...' if len(text) > 80 else ''}"
            if text
            else f"the cluster of Slurm, SLURM_STEP_NUM_TASKS={tasks}",
            found=mistake.found,
            do=mistake.do,
        ) from mistake
    if described is None:
        return None
    jobs = {job: len(tasks) for job, tasks in described.addresses.items()}
    task = None if described.task is None else TaskName(*described.task)
    if task is not None and task.job == "evaluator":
        jobs["evaluator"] = 1
    return ClusterSpec(jobs=jobs, addresses=described.addresses, task=task, source=source)
