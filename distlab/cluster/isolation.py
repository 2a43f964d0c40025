"""A network of its own for a cluster: nobody outside of it reaches the servers inside.

    with Isolation() as network:
        shared_server().spawn(argv, env=env, network_of=network.pid)

Linux calls it a network namespace: its only interface is its own loopback. A process holds it
open, kept like a task; who may not make one as root makes it in a user namespace.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import socket
import struct
import sys
from pathlib import Path

from distlab.cluster.warm.process import shared_server, task_environment
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
        read, write = os.pipe()
        try:
            self._holder = shared_server().spawn(
                call=f"{__name__}:hold", env=task_environment({}), stdout=write
            )
        finally:
            os.close(write)
        with os.fdopen(read) as printed:
            status = printed.readline().strip()
        if status != "ready":
            self.close()
            raise UnsupportedEnvironment(
                asked=asked,
                found=f"the system does not let this user make one ({status or 'no reason given'})",
                do=without,
            )

    @property
    def pid(self) -> int:
        """The process that holds it."""
        return self._holder.pid

    def close(self) -> None:
        """Lets it go; the system removes it once no process is in it."""
        self._holder.kill()
        self._holder.wait()

    def __enter__(self) -> Isolation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def hold() -> None:
    """Makes the namespace, says so, and holds it until this process is ended."""
    try:
        _enter_new()
        raise_loopback()
    except OSError as problem:
        print(os.strerror(problem.errno or errno.EPERM), flush=True)  # noqa: T201
        return
    print("ready", flush=True)  # noqa: T201
    while True:
        signal.pause()


def _enter_new() -> None:
    try:
        _unshare(_CLONE_NEWNET)
    except PermissionError:
        enter_user_namespace(_CLONE_NEWNET)


def enter_user_namespace(others: int) -> None:
    """Gives this process a user namespace in which it keeps its ids, and other namespaces."""
    user, group = os.geteuid(), os.getegid()
    _unshare(_CLONE_NEWUSER | others)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _unshare(flags: int) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(flags):
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")


def raise_loopback() -> None:
    """Lets this process's network namespace reach itself."""
    import fcntl  # Windows has none

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = _IFREQ.pack(b"lo", 0, b"")
        _, flags, _ = _IFREQ.unpack(fcntl.ioctl(control, _SIOCGIFFLAGS, request))
        fcntl.ioctl(control, _SIOCSIFFLAGS, _IFREQ.pack(b"lo", flags | _IFF_UP, b""))
