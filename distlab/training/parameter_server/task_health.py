"""Notices lost tasks of a parameter-server cluster, and says what to do.

with explained(strategy):             # a lost parameter server, in words
    ...
health = TaskHealth(strategy)
health.note_result()                  # whenever a worker has done something
health.look()                         # while nothing comes: raises when it has been too long
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator

import tensorflow as tf

from distlab.cluster.probe import unanswering
from distlab.errors import ProcessError

# A worker is given this long to come back, if no other does its work meanwhile. A scheduler that
# starts it on another machine may need minutes.
WORKER_SECS = 300.0

# A parameter server does not come back with what it held. This only rules out a short break.
SERVER_SECS = 30.0

_RESTART = (
    "start all tasks again; with dl.Resume(folder) among the callbacks, fit goes on from the "
    "newest checkpoint"
)
_BETWEEN_LOOKS_SECS = 2.0
_SERVER = re.compile(r"/job:ps/(?:replica:0/)?task:(\d+)")


@contextlib.contextmanager
def explained(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Inside the block a lost parameter server is told as a `ProcessError`."""
    try:
        yield
    except (tf.errors.UnavailableError, tf.errors.AbortedError) as error:
        lost = _SERVER.search(str(error))
        if lost is None:
            raise
        name = f"ps:{lost[1]}"
        raise _server_lost(name, _addresses_of(strategy)[name]) from error


class TaskHealth:
    """Looks after the tasks of a strategy while the coordinator waits for a result."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._addresses = _addresses_of(strategy)
        self._silent_since: dict[str, float] = {}
        self._looked = 0.0

    def note_result(self) -> None:
        """Notes that some worker works: who is silent is not missed."""
        self._silent_since.clear()

    def look(self) -> None:
        """Asks every task whether it is there, at most every other second."""
        now = time.monotonic()
        if now - self._looked < _BETWEEN_LOOKS_SECS:
            return
        silent = unanswering(self._addresses)
        self._looked = time.monotonic()
        self._silent_since = {name: self._silent_since.get(name, now) for name in silent}
        for name, since in self._silent_since.items():
            if name.startswith("ps") and now - since >= SERVER_SECS:
                raise _server_lost(name, self._addresses[name])
            if name.startswith("worker") and now - since >= WORKER_SECS:
                raise ProcessError(
                    asked="train on parameter servers",
                    found=f"{name} at {self._addresses[name]} has not answered for "
                    f"{now - since:.0f} s ({silent[name]}), and no worker does its steps",
                    do=_RESTART,
                )


def _addresses_of(strategy: tf.distribute.Strategy) -> dict[str, str]:
    """The "host:port" of each worker and parameter server, by name as in "worker:1"."""
    jobs = strategy._cluster_resolver.cluster_spec().as_dict()
    return {
        f"{job}:{index}": address
        for job in ("worker", "ps")
        for index, address in enumerate(jobs[job])
    }


def _server_lost(name: str, address: str) -> ProcessError:
    return ProcessError(
        asked="train on parameter servers",
        found=f"the parameter server {name} at {address} was lost, and with it the variables "
        "that it held",
        do=_RESTART,
    )
