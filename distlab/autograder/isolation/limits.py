"""Limits what an answer may use: rlimits, and samples of all its processes.

    limits = Limits(secs=20)
    hold(limits)                                    # in the process that is asked: rlimits
    sampler = Sampler(limits, folder)               # in the process that watches over it
    sampler.exceeded()                              # None, or Stop(StopReason.MEMORY, "4096")

Sampling reads /proc, so it holds on Linux only. Elsewhere memory and processes have no limit, and
the time, what is printed and the size of one file have.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from distlab.autograder.isolation.process_tree import below
from distlab.autograder.isolation.stops import Stop, StopReason
from distlab.errors import InvalidArgument

_MIB = 2**20
_PAGE_BYTES = resource.getpagesize()
_MOST_FILES = 10_000
_WRITTEN_ANYWHERE = 8  # times what may be written into files
_SAMPLES_PER_LOOK = 4  # a folder is looked through more rarely than processes are counted
# What threads map and never use: a stack and an arena of the allocator for each.
_UNUSED_BYTES = 8 * 2**30
_MOST_THREADS_EACH = 64
_MOST_OPEN_FILES = 1024


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the answer to one question may use, with all processes that it starts."""

    secs: float = 60.0
    memory_bytes: int = 4 * 2**30
    processes: int = 64
    printed_bytes: int = 1_000_000
    written_bytes: int = 100_000_000

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise InvalidArgument(
                    asked=f"Limits({name}={value!r})",
                    found=f"{name}={value!r}",
                    do="give a number above 0",
                )

    @property
    def too_long(self) -> Stop:
        """Why an answer that takes too long is ended; likewise below."""
        return Stop(StopReason.TIME, f"{self.secs:g}")

    @property
    def too_much_printed(self) -> Stop:
        """For one that prints for ever."""
        return Stop(StopReason.PRINTED, f"{self.printed_bytes:,}")

    @property
    def too_many_processes(self) -> Stop:
        """For one that forks for ever."""
        return Stop(StopReason.PROCESSES, f"{self.processes}")


def hold(limits: Limits) -> None:
    """Sets the rlimits of this process; all that it starts have them too.

    They are the second line: what the samples see a moment too late ends here. Root is above some.
    """
    cores = os.cpu_count() or 1
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_CPU, int(limits.secs * cores) + 10)
    _lower(resource.RLIMIT_FSIZE, limits.written_bytes)
    _lower(resource.RLIMIT_NOFILE, _MOST_OPEN_FILES)
    hold_memory(limits.memory_bytes + _UNUSED_BYTES)
    if sys.platform == "linux":
        _lower(resource.RLIMIT_NPROC, _threads_of_user() + limits.processes * _MOST_THREADS_EACH)


def hold_memory(more_bytes: int) -> None:
    """Limits what this process may map from here on; nothing where this is not Linux."""
    if sys.platform == "linux":
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE_BYTES
        _lower(resource.RLIMIT_AS, mapped + more_bytes)


def _lower(which: int, most: int) -> None:
    _, hard = resource.getrlimit(which)
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(which, (most, most))


def _threads_of_user() -> int:
    """Returns how many threads this user has: the system counts them, and not processes."""
    threads, user = 0, os.getuid()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.stat().st_uid == user:
                stat = (process / "stat").read_bytes()
                threads += int(stat.rpartition(b")")[2].split()[17])
    return threads


class Sampler:
    """Counts what all processes below this one use."""

    def __init__(self, limits: Limits, folder: Path) -> None:
        self._limits, self._folder = limits, folder
        self._deadline = time.monotonic() + limits.secs
        self._samples = 0
        self._written_before = _written_by_all(below(os.getpid()))

    def exceeded(self) -> Stop | None:
        """Takes a sample and returns which limit does not hold; None if all do."""
        limits = self._limits
        if time.monotonic() > self._deadline:
            return limits.too_long
        pids = self._processes()
        if len(pids) > limits.processes:
            return limits.too_many_processes
        # What is shared is counted for each process, so a high sum asks for the exact one.
        if _sum(_resident, pids) > limits.memory_bytes and (stop := self._exact(pids)):
            return stop
        return self._too_much_written(pids)

    def _processes(self) -> list[int]:
        return below(os.getpid(), most=self._limits.processes + 1)

    def _exact(self, pids: list[int]) -> Stop | None:
        limits, total = self._limits, 0
        for pid in pids:
            total += _sum(_own_share, [pid])
            if total > limits.memory_bytes:
                return Stop(StopReason.MEMORY, f"{limits.memory_bytes // _MIB}")
            # Each takes time, in which a process that forks for ever continues.
            if len(self._processes()) > limits.processes:
                return limits.too_many_processes
        return None

    def _too_much_written(self, pids: list[int]) -> Stop | None:
        most = self._limits.written_bytes
        written = _written_by_all(pids) - self._written_before
        self._samples += 1
        if self._samples % _SAMPLES_PER_LOOK == 0:
            files, size = _size_of(self._folder)
            written = max(written, size)
            if files > _MOST_FILES:
                return Stop(StopReason.FILES, f"{_MOST_FILES:,}")
        return Stop(StopReason.WRITTEN, f"{most / 1e6:g}") if written > most else None


def _sum(measure: Callable[[int], int], pids: list[int]) -> int:
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            total += measure(pid)
    return total


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE_BYTES


def _own_share(pid: int) -> int:
    return _number(f"/proc/{pid}/smaps_rollup", b"Pss:") * 1024


def _written(pid: int) -> int:
    told, on_disk = f"/proc/{pid}/io", b"write_bytes:"
    # A file system in memory is no disk; all that is written includes pipes and sockets, though.
    return max(_number(told, on_disk), _number(told, b"wchar:") // _WRITTEN_ANYWHERE)


def _written_by_all(pids: list[int]) -> int:
    # What ended processes wrote counts with the one that waited for them: maybe this one.
    return _sum(_written, [os.getpid(), *pids])


def _number(file: str, label: bytes) -> int:
    with contextlib.suppress(OSError):
        for line in Path(file).read_bytes().splitlines():
            if line.startswith(label):
                return int(line.split()[1])
    return 0


def _size_of(folder: Path) -> tuple[int, int]:
    """Returns how many files a folder holds, and their bytes; stops counting at very many."""
    files, size, todo = 0, 0, [str(folder)]
    while todo and files <= _MOST_FILES:
        with contextlib.suppress(OSError), os.scandir(todo.pop()) as entries:
            for entry in entries:
                files += 1
                if entry.is_dir(follow_symlinks=False):
                    todo.append(entry.path)
                else:
                    size += entry.stat(follow_symlinks=False).st_size
    return files, size
