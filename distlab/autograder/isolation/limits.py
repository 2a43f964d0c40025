"""Limits what an answer may use.

    limits = Limits(secs=20)
    apply_rlimits(limits)       # in the learner's process
    exceeded(limits)            # in process 1 of its namespace: None, or a Stop

Where walls are, what is written is limited by the size of the file system in memory that the
answer writes to, and process 1 counts memory and processes. Elsewhere only rlimits and the time
hold.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from distlab.course.results.stops import ANSWER_SECS, Stop, StopReason
from distlab.errors import InvalidArgument

_MIB = 2**20
_PAGE_BYTES = resource.getpagesize()
# What threads map and never use: a stack and an arena of the allocator for each.
_UNUSED_BYTES = 8 * 2**30
_THREADS_PER_PROCESS, _THREADS_PER_CORE = 8, 32  # TensorFlow starts some for each core
_MOST_OPEN_FILES = 1024


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of one answer, together with all processes that it starts."""

    secs: float = ANSWER_SECS
    memory_bytes: int = 4 * 2**30
    processes: int = 64
    printed_bytes: int = 1_000_000
    written_bytes: int = 100_000_000

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                option = {"secs": "--secs", "memory_bytes": "--memory-mib"}.get(name, name)
                raise InvalidArgument(
                    asked=f"grade with {option} {value:g}",
                    found=f"{option} {value:g}, a limit that no answer can keep",
                    do="raise it above 0",
                )


def apply_rlimits(limits: Limits) -> None:
    """Sets the rlimits of this process; all that it starts have them too."""
    cores = os.cpu_count() or 1
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_CPU, int(limits.secs * cores) + 10)
    _lower(resource.RLIMIT_FSIZE, limits.written_bytes)
    _lower(resource.RLIMIT_NOFILE, _MOST_OPEN_FILES)
    limit_memory(limits.memory_bytes + _UNUSED_BYTES)
    if os.getppid() == 1:  # in a namespace of its own the system counts its threads alone
        threads = limits.processes * _THREADS_PER_PROCESS + cores * _THREADS_PER_CORE
        _lower(resource.RLIMIT_NPROC, threads)


def limit_memory(more_bytes: int) -> None:
    """Limits what this process may map from here on; nothing where this is not Linux."""
    if sys.platform == "linux":
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE_BYTES
        _lower(resource.RLIMIT_AS, mapped + more_bytes)


def exceeded(limits: Limits) -> Stop | None:
    """Returns which limit all processes but this one exceed; None if they keep them."""
    pids = _others()
    # What is shared is counted for each process, so only a high sum asks for the exact one.
    if len(pids) <= limits.processes and _sum(_resident, pids) > limits.memory_bytes:
        used = 0
        for pid in pids:
            used += _sum(_share, [pid])
            if used > limits.memory_bytes:
                return Stop(StopReason.MEMORY, f"{limits.memory_bytes // _MIB}")
            # Each takes time, in which a process that forks for ever continues.
            if len(_others()) > limits.processes:
                break
    if len(_others()) > limits.processes:
        return Stop(StopReason.PROCESSES, f"{limits.processes}")
    return None


def _others() -> list[int]:
    names = (path.name for path in Path("/proc").iterdir())
    return [int(name) for name in names if name.isdigit() and name != "1"]


def _lower(which: int, most: int) -> None:
    _, hard = resource.getrlimit(which)
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(which, (most, most))


def _sum(measure: Callable[[int], int], pids: list[int]) -> int:
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            total += measure(pid)
    return total


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE_BYTES


def _share(pid: int) -> int:
    """Its own pages, and its share of those that several processes have."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_bytes().splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return 0
