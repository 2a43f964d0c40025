"""The one process that starts and keeps the tasks of clusters that this process makes.

keeper = shared_keeper()                 # warms in the background from the first call on
task = keeper.spawn(["train.py"], env=env, stdout=log)

It is a warm process where tasks may be forked, and else one that imported nothing and starts each
task as a new Python. Either way it lives outside of this process, and ends the tasks when this
process ends, also by SIGKILL.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distlab import environment
from distlab.errors import ProcessError
from distlab.warm.client import ForkedProcess, ForkRefused, WarmClient
from distlab.warm.process import ADDRESS_VARIABLE, PRELOAD, WarmProcess, can_fork

# What every task of a cluster needs; data sets and pictures only some do.
_PRELOAD = tuple(
    name for name in PRELOAD if name.partition(".")[0] in ("tensorflow", "keras", "ipykernel")
)

# With a cold disk and other work on the machine the imports take that much longer.
_WARMING_SECS = 300.0

_OWN: dict[int, Keeper] = {}  # by process: a fork must not speak on its parent's connection
_MAKING = threading.Lock()


class Keeper:
    """Starts tasks outside of this process, and ends them with it."""

    def __init__(self, client: WarmClient, *, can_fork: bool) -> None:
        self._client, self._can_fork = client, can_fork

    @property
    def address(self) -> str:
        """Where other processes of this user reach it, as `DISTLAB_WARM_ADDRESS`."""
        return self._client.address

    @property
    def folder(self) -> Path:
        """A private folder that is removed when the process that keeps the tasks ends."""
        return Path(self._client.address).parent

    def spawn(
        self, argv: list[str] | None = None, *, env: Mapping[str, str], **options: Any
    ) -> ForkedProcess:
        """Starts a task: forked where that is the same as a new Python, else a new Python."""
        options.setdefault("timeout_secs", _WARMING_SECS)
        if not self._can_fork:
            return self._client.spawn(argv, env=env, fresh=True, **options)
        try:
            return self._client.spawn(argv, env=env, **options)
        except ForkRefused:
            return self._client.spawn(argv, env=env, fresh=True, **options)


def shared_keeper() -> Keeper:
    """Returns this process's keeper; started with the first call, it answers once it is warm.

    A warm process that was named to this process by `DISTLAB_WARM_ADDRESS` is taken, if it answers.
    """
    here = os.getpid()
    with _MAKING:
        if here not in _OWN:
            _OWN[here] = _named() or _started()
        return _OWN[here]


def task_environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    """Returns the environment for a task: this process's, with some variables changed."""
    env = dict(os.environ)
    environment.prepare(env)
    return {name: value for name, value in {**env, **changes}.items() if value is not None}


def _named() -> Keeper | None:
    address = os.environ.get(ADDRESS_VARIABLE)
    if not address or not can_fork():
        return None
    client = WarmClient(address)
    try:
        client.spawn(["-c", ""], env={}, fresh=True).wait(timeout_secs=30)
    except (ProcessError, TimeoutError):
        return None
    return Keeper(client, can_fork=True)


def _started() -> Keeper:
    preload = _PRELOAD if can_fork() else ()
    process = WarmProcess(preload=preload, env=task_environment({})).start()
    atexit.register(_close, process, os.getpid())
    return Keeper(WarmClient(process.address), can_fork=bool(preload))


def _close(process: WarmProcess, owner: int) -> None:
    if os.getpid() == owner:  # and not a fork of it
        process.close()
