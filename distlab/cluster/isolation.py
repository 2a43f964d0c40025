"""A network of its own for a cluster: nobody outside of it reaches the servers inside.

    with Isolation() as network:
        shared_server().spawn(argv, env=env, network_of=network.pid)

Linux calls it a network namespace: its only interface is its own loopback. A process holds it
open, kept like a task; who may not make one as root makes it in a user namespace.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distlab.cluster.probe import unanswering
from distlab.cluster.spec import TaskName
from distlab.cluster.warm.process import ForkedProcess, shared_server, task_environment
from distlab.errors import UnsupportedEnvironment

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_IFREQ = struct.Struct("16sH14s")


class Isolation:
    """A network namespace, open until it is closed."""

    def __init__(self) -> None:
        asked = "a network of a cluster's own (isolate=True)"
        without = (
            "leave isolate out; any program that reaches this machine can then use the servers"
        )
        if sys.platform != "linux":
            raise UnsupportedEnvironment(
                asked=asked, found=f"{sys.platform}, which has no network namespaces", do=without
            )
        self._holder, said = _start("hold")
        if said != "ready":
            self.close()
            raise UnsupportedEnvironment(
                asked=asked,
                found=f"the system does not let this user make one ({said or 'no reason given'})",
                do=without,
            )

    @property
    def pid(self) -> int:
        """The process that holds it."""
        return self._holder.pid

    def close(self) -> None:
        """Lets it go; the system removes it once no process is in it."""
        self._holder.kill()
        self._holder.wait(10)

    def __enter__(self) -> Isolation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def unanswering_inside(pid: int, addresses: Mapping[TaskName, str]) -> dict[TaskName, str]:
    """Returns the tasks whose server doesn't answer in a namespace, and what comes back instead."""
    names = {str(task): task for task in addresses}
    asked = {name: addresses[task] for name, task in names.items()}
    _, unanswered = _start("tell_unanswering", args=[asked], network_of=pid)
    return {names[name]: text for name, text in json.loads(unanswered or "{}").items()}


def tell_unanswering(addresses: dict[str, str]) -> None:
    """Prints what `unanswering_inside` returns; runs inside."""
    print(json.dumps({name: str(probe) for name, probe in unanswering(addresses).items()}))  # noqa: T201


def _start(name: str, **options: Any) -> tuple[ForkedProcess, str]:
    """Starts a function of this module in a process, and returns what it printed first."""
    read, write = os.pipe()
    try:
        call, env = f"{__name__}:{name}", task_environment({})
        task = shared_server().spawn(call=call, env=env, stdout=write, **options)
    finally:
        os.close(write)
    with os.fdopen(read) as told:
        return task, told.readline().strip()


def hold() -> None:
    """Makes the namespace, says so, and holds it until this process is ended."""
    try:
        _enter_new()
        _bring_up("lo")
    except OSError as problem:
        print(os.strerror(problem.errno or errno.EPERM), flush=True)  # noqa: T201
        return
    print("ready", flush=True)  # noqa: T201
    while True:
        signal.pause()


def _enter_new() -> None:
    user, group = os.getuid(), os.getgid()
    with contextlib.suppress(PermissionError):
        _unshare(_CLONE_NEWNET)
        return
    _unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _unshare(flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags):
        raise OSError(ctypes.get_errno(), "unshare")


def _bring_up(interface: str) -> None:
    import fcntl  # Windows has none

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = _IFREQ.pack(interface.encode(), 0, b"")
        _, flags, _ = _IFREQ.unpack(fcntl.ioctl(control, _SIOCGIFFLAGS, request))
        fcntl.ioctl(control, _SIOCSIFFLAGS, _IFREQ.pack(interface.encode(), flags | _IFF_UP, b""))
