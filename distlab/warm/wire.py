"""The messages between the warm process and its clients: a length, then JSON.

send(connection, {"argv": ["-m", "json.tool"], "env": {}, "cwd": "/"}, fds=[0, 1, 2])
inbox = Inbox(); inbox.read(connection); inbox.pop(); inbox.fds
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

_LENGTH = struct.Struct("!I")


def send(connection: socket.socket, message: dict[str, Any], *, fds: Sequence[int] = ()) -> None:
    """Sends one message, and with its first byte the file descriptors that go with it."""
    body = json.dumps(message).encode()
    frame = _LENGTH.pack(len(body)) + body
    sent = socket.send_fds(connection, [frame], list(fds)) if fds else 0
    connection.sendall(frame[sent:])


class Inbox:
    """What has arrived on one connection, whole messages or not."""

    def __init__(self) -> None:
        self.fds: list[int] = []
        self._bytes = b""

    def read(self, connection: socket.socket) -> bool:
        """Takes what the connection has; returns False once the other side has closed it."""
        try:
            data, fds, _, _ = socket.recv_fds(connection, 1 << 16, 16)
        except BlockingIOError:
            return True
        except OSError:
            return False
        for fd in fds:
            os.set_inheritable(fd, False)
        self.fds += fds
        self._bytes += data
        return bool(data)

    def pop(self) -> dict[str, Any] | None:
        """Returns the next whole message, or None while there is none."""
        if len(self._bytes) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(self._bytes)[0]
        if len(self._bytes) < end:
            return None
        body, self._bytes = self._bytes[_LENGTH.size : end], self._bytes[end:]
        message: dict[str, Any] = json.loads(body)
        return message

    def close_fds(self) -> None:
        """Closes the file descriptors that nobody took."""
        while self.fds:
            os.close(self.fds.pop())
