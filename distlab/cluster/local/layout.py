"""Which tasks a cluster on this machine has.

layout = ClusterLayout(workers=2, parameter_servers=1, chief=True)
layout.spec(ports)                   # the cluster on these ports, one for each address
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distlab.cluster.spec import ClusterSpec, local_spec
from distlab.devices import MAX_LOGICAL_DEVICES
from distlab.errors import InvalidArgument

MOST_RESTARTS = 1000
_MOST_TASKS = 64


@dataclass(frozen=True, kw_only=True)
class ClusterLayout:
    """The tasks of a cluster on this machine.

    Attributes:
        workers: Number of workers.
        parameter_servers: Number of parameter servers.
        chief: Whether there is a chief of its own.
        evaluator: Whether there is an evaluator.
        devices_per_worker: Logical devices of each chief and worker.
    """

    workers: int
    parameter_servers: int = 0
    chief: bool = False
    evaluator: bool = False
    devices_per_worker: int = 1

    def __post_init__(self) -> None:
        check_count("workers", self.workers, least=1, most=_MOST_TASKS)
        check_count("parameter_servers", self.parameter_servers, least=0, most=_MOST_TASKS)
        check_count(
            "devices_per_worker", self.devices_per_worker, least=1, most=MAX_LOGICAL_DEVICES
        )
        if self.parameter_servers and self.devices_per_worker > 1:
            raise InvalidArgument(
                asked=f"LocalCluster(parameter_servers={self.parameter_servers}, "
                f"devices_per_worker={self.devices_per_worker})",
                found="with parameter servers a worker computes on one CPU, or on its GPUs",
                do="ask for more workers instead of more devices",
            )

    def spec(self, ports: Sequence[int]) -> ClusterSpec:
        """Returns the cluster on these ports."""
        return local_spec(
            workers=self.workers,
            parameter_servers=self.parameter_servers,
            chief=self.chief,
            evaluator=self.evaluator,
            ports=ports,
        )

    @property
    def addresses(self) -> int:
        """How many tasks have an address."""
        return self.workers + self.parameter_servers + int(self.chief)


def check_count(name: str, value: int, *, least: int, most: int) -> None:
    """Raises where an argument of `LocalCluster` is no number that can be meant."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidArgument(
            asked=f"LocalCluster({name}={value!r})",
            found=f"it is no whole number from {least} to {most}",
            do="give one; two workers are enough for every lesson",
        )
