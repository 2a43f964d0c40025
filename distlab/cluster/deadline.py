"""Limits that a busy machine does not shorten: waiting for a core does not count.

    deadline = Deadline(2.0, group.pids)     # 2 s, for each process of the group
    while not deadline.has_passed():
        ...

A process that hangs sleeps, and one that computes has a core: for both, the time is the clock's. A
process that could run and isn't let run is slow by no fault of its own, so its time stands still
meanwhile. Linux says of each thread how long it has waited for a core. On other systems the load
of the machine says how long an average process has.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

# Between looks at processes whose time is nearly over: a look takes milliseconds.
_LOOK_SECS = 0.05


class Deadline:
    """Has passed when a machine has given each of some processes so many seconds.

    Args:
        secs: How many.
        pids: Returns the processes, which may change meanwhile.
    """

    def __init__(self, secs: float, pids: Callable[[], Iterable[int]]) -> None:
        self._secs = self._look_at = secs
        self._pids = pids
        self._start = time.monotonic()
        self._before = {pid: _times_of_threads(pid) for pid in pids()}

    def has_passed(self) -> bool:
        """Whether it has; what is waited for may have come just before, so look again."""
        elapsed = time.monotonic() - self._start
        if elapsed < self._look_at:  # nothing is given more time than the clock's
            return False
        given = elapsed * (1 - self._share_starved(elapsed))
        self._look_at = elapsed + _LOOK_SECS
        return given >= self._secs

    def _share_starved(self, elapsed: float) -> float:
        """How much of the time the process that fared worst could have run and was not let."""
        if not _tells_of_threads():
            load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
            return 1 - 1 / max(load / (os.cpu_count() or 1), 1.0)
        return max((self._share_of(pid, elapsed) for pid in self._pids()), default=0.0)

    def _share_of(self, pid: int, elapsed: float) -> float:
        before, ran, waited = self._before.get(pid, {}), 0.0, 0.0
        for thread, (ran_secs, waited_secs) in _times_of_threads(pid).items():
            ran_before, waited_before = before.get(thread, (0.0, 0.0))
            ran += ran_secs - ran_before
            waited += waited_secs - waited_before
        # Threads that crowd each other out give their process no more time: it has had that core.
        most = max(1 - ran / elapsed, 0.0)
        # A wait is counted when it ends, and not at all where a container has used up its quota.
        return most if _wants_core(pid) else min(waited / max(elapsed, ran + waited), most)


def _tells_of_threads() -> bool:
    return Path("/proc/self/schedstat").exists()


def _times_of_threads(pid: int) -> dict[str, tuple[float, float]]:
    """For how many seconds each thread has run, and waited for a core; nothing if all has ended."""
    times = {}
    for thread, text in _read_of_threads(pid, "schedstat"):
        ran, waited, _ = text.split()
        times[thread] = int(ran) / 1e9, int(waited) / 1e9
    return times


def computes(pid: int) -> bool:
    """Whether a thread of a process runs at this moment, or waits for a core to run on.

    Where the system doesn't say, each process is taken to compute.
    """
    return not _tells_of_threads() or _wants_core(pid)


def _wants_core(pid: int) -> bool:
    """Whether a thread, other than the one that asks, runs or waits for a core at this moment."""
    own = str(threading.get_native_id())
    texts = (text for thread, text in _read_of_threads(pid, "stat") if thread != own)
    return any(text.rpartition(")")[2].split()[0] == "R" for text in texts)


def _read_of_threads(pid: int, name: str) -> Iterator[tuple[str, str]]:
    try:
        folders = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:  # it has ended
        return
    for folder in folders:
        with contextlib.suppress(OSError):  # a thread that ends
            yield folder.name, (folder / name).read_text()
