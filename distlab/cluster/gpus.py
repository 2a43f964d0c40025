"""Which GPU each task of a cluster on this machine gets: one of its own, or none.

    share_gpus(spec)                     # GpuShare(of_task={worker:0: "0", worker:1: "1"}, note="")

Two tasks on one GPU would each take its whole memory. So where there are fewer GPUs than tasks
that compute, all of them run on the CPU: they must be alike to step together.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from distlab.cluster.spec import ClusterSpec, TaskName

_NONE = "-1"


@dataclass(frozen=True)
class GpuShare:
    """Which GPU each task gets."""

    of_task: Mapping[TaskName, str]  # CUDA_VISIBLE_DEVICES, "-1" for none; empty without any GPU
    note: str = ""  # what a user should know of it

    def device_of(self, task: TaskName) -> str:
        """Returns where a task computes, in words."""
        gpu = self.of_task.get(task, _NONE)
        return "CPU" if gpu == _NONE else f"GPU {gpu}"


def installed_gpus(root: Path = Path("/")) -> int:
    """Counts NVIDIA's GPUs without asking TensorFlow.

    Linux lists them. Under WSL2 the driver is that of Windows, and only its `nvidia-smi` knows.
    """
    listed = root / "proc/driver/nvidia/gpus"
    if listed.is_dir():
        return len(list(listed.iterdir()))
    command = root / "usr/lib/wsl/lib/nvidia-smi"
    if (root / "dev/dxg").exists() and command.exists():
        answer = subprocess.run(
            [command, "-L"], capture_output=True, text=True, timeout=30, check=False
        )
        return sum(line.startswith("GPU ") for line in answer.stdout.splitlines())
    return len(list((root / "dev").glob("nvidia[0-9]*")))


def visible_gpus(environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> list[str]:
    """Returns the GPUs that this process may use, without asking TensorFlow."""
    environ = os.environ if environ is None else environ
    installed = installed_gpus(root)
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return [str(index) for index in range(installed)]
    names = [name.strip() for name in chosen.split(",")]
    if _NONE in names:  # CUDA sees what is listed before it
        names = names[: names.index(_NONE)]
    return [name for name in names if name] if installed else []


def share_gpus(spec: ClusterSpec, gpus: list[str]) -> GpuShare:
    """Gives each task that computes a GPU of its own, if there are enough of them."""
    if not gpus:
        return GpuShare({})
    computing = ("worker",) if spec.has_parameter_servers else ("chief", "worker")
    tasks = [task for task in spec.tasks_in_order() if task.job in computing]
    share = dict.fromkeys(spec.tasks_in_order(), _NONE)
    if len(gpus) >= len(tasks):
        return GpuShare(share | dict(zip(tasks, gpus, strict=False)))
    plural = "s" if len(gpus) > 1 else ""
    return GpuShare(
        share, f"{len(gpus)} GPU{plural} for {len(tasks)} tasks: all of them run on the CPU"
    )
