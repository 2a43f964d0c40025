"""How many bytes this process has sent over TCP, as Linux counts them on each connection.

before = tcp_bytes_sent()
...                                    # an all-reduce with other processes
tcp_bytes_sent() - before
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import sys
from pathlib import Path

from distlab.errors import UnsupportedEnvironment

_BYTES_ACKED_AT = 120  # in Linux's struct tcp_info: tcpi_bytes_acked, since Linux 4.1


def tcp_bytes_sent() -> int:
    """Returns the bytes that this process's open connections have sent and the peers received."""
    if not can_count():
        raise UnsupportedEnvironment(
            asked="tcp_bytes_sent()",
            found=f"the system {sys.platform}, which does not tell the bytes of a connection",
            do="use Linux, or WSL2 on Windows",
        )
    return sum(bytes_sent_on(int(file.name)) for file in Path("/proc/self/fd").iterdir())


def can_count() -> bool:
    """Returns whether this system tells how many bytes a connection has carried."""
    return sys.platform == "linux"


def bytes_sent_on(descriptor: int) -> int:
    """Returns the bytes that one connection has sent and its peer received."""
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return 0
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    except OSError:  # closed since it was listed, or a socket that is not TCP
        return 0
    (acked,) = struct.unpack_from("Q", info, _BYTES_ACKED_AT)
    return int(acked)
