"""What this process is told of a cluster: TF_CONFIG, or Slurm's variables.

    spec = read_cluster()      # None where this process stands alone
    spec.tasks                 # 3

TensorFlow is not needed to read it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

from distlab.errors import UnsupportedEnvironment


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """The tasks of a cluster, and where it was read.

    Attributes:
        jobs: Number of tasks of each job: "chief", "worker", "ps", "evaluator".
        source: "TF_CONFIG" or "Slurm".
    """

    jobs: Mapping[str, int]
    source: str

    @property
    def tasks(self) -> int:
        """Tasks that train or hold variables; an evaluator does neither."""
        return sum(count for job, count in self.jobs.items() if job != "evaluator")

    @property
    def has_parameter_servers(self) -> bool:
        """Whether some tasks only hold variables."""
        return self.jobs.get("ps", 0) > 0


def read_cluster(environ: Mapping[str, str] | None = None) -> ClusterSpec | None:
    """Reads the cluster from the environment; None where nothing is set.

    TF_CONFIG comes first (TensorFlow, "Distributed training with TensorFlow: setting up
    TF_CONFIG"), then Slurm's SLURM_STEP_NUM_TASKS, as TensorFlow's own resolver reads it.

    Args:
        environ: Environment variables; the process's own when None.

    Raises:
        UnsupportedEnvironment: TF_CONFIG is not the JSON that it must be.
    """
    environ = os.environ if environ is None else environ
    text = environ.get("TF_CONFIG", "").strip()
    if text:
        jobs = _jobs(text)
        return ClusterSpec(jobs=jobs, source="TF_CONFIG") if jobs else None
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "")
    if tasks.isdigit():
        return ClusterSpec(jobs={"worker": int(tasks)}, source="Slurm")
    return None


def _jobs(text: str) -> dict[str, int]:
    example = '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, ' + (
        '"task": {"type": "worker", "index": 0}}'
    )
    try:
        cluster = json.loads(text).get("cluster", {})
        return {job: len(addresses) for job, addresses in cluster.items()}
    except (json.JSONDecodeError, AttributeError, TypeError) as error:
        raise UnsupportedEnvironment(
            asked=f"TF_CONFIG={text[:80]!r}",
            found=f"it does not describe a cluster ({error})",
            do=f"set it as in {example}, or unset it",
        ) from error
