"""Ports of this machine: chosen for a cluster, and kept from other clusters of distlab.

with reserved_ports(3) as ports:        # below the range from which systems give ports away
    ...                                 # a port is reserved by a lock on a file, not by a socket

A socket that holds a port would keep TensorFlow's server from it, also with SO_REUSEPORT. So a
program that knows nothing of distlab can still take one first: the server then says that it
cannot start, and its owner takes others (`is_port_taken`).
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from distlab.errors import ProcessError

# Linux and macOS give away ports from 32768 and 49152 on.
_FIRST, _LAST = 20000, 32000

# What TensorFlow, and gRPC below it, say of a port that another process holds.
_TAKEN = ("Could not start gRPC server", "Address already in use", "could not start grpc server")


@contextlib.contextmanager
def reserved_ports(count: int) -> Iterator[list[int]]:
    """Yields free ports that no other cluster of this user takes inside the block."""
    folder = Path(tempfile.gettempdir(), f"distlab-ports-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    with contextlib.ExitStack() as locks:
        ports: list[int] = []
        # A generator of its own: nobody's seed decides, and nobody's draws are used up.
        for port in random.Random().sample(range(_FIRST, _LAST), _LAST - _FIRST):
            if len(ports) == count:
                break
            lock = _lock(folder / str(port))
            if lock is None:
                continue
            locks.callback(os.close, lock)
            if is_free(port):
                ports.append(port)
        if len(ports) < count:
            raise ProcessError(
                asked=f"{count} free ports on this machine",
                found=f"{len(ports)} between {_FIRST} and {_LAST}",
                do="end processes that hold ports (ss -ltnp lists them)",
            )
        yield ports


def is_free(port: int) -> bool:
    """Whether no process of this machine listens on a port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def is_port_taken(text: str) -> bool:
    """Whether what a task said means that another process was first on its port."""
    return any(sign in text for sign in _TAKEN)


def _lock(path: Path) -> int | None:
    """Returns the descriptor of a file that only we have locked, or None."""
    import fcntl  # Windows has none, and another check says so

    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd
