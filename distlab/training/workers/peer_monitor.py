"""Notices when a different worker's process has ended.

    monitor = PeerMonitor(workers, on_loss=print)   # "worker:1 (10.0.0.2:2222)", once it is gone
    monitor.lost()                                  # those that refuse a connection now
    monitor.close()

Each worker keeps a connection to the server of each other one, over which nothing is sent. When a
process ends, however it ends, its system closes its connections. A machine that loses its power
or its network says nothing: that is left to TensorFlow's heartbeats.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from distlab.training.workers.exchanging import Workers

_CONNECT_SECS = 2.0

# A server closes a connection that stays silent; how long to wait before the next.
_PAUSE_SECS = 0.05


class PeerMonitor:
    """Watches the other workers until it is closed."""

    def __init__(self, workers: Workers, on_loss: Callable[[str], None]) -> None:
        there = enumerate(zip(workers.names, workers.addresses, strict=True))
        self._peers = {
            f"{name} ({address})": address
            for index, (name, address) in there
            if index != workers.index
        }
        self._on_loss = on_loss
        self._waker, self._woken = socket.socketpair()
        threading.Thread(target=self._watch, daemon=True, name="distlab-watch").start()

    def lost(self) -> list[str]:
        """Returns those whose server refuses a connection."""
        return [peer for peer, address in self._peers.items() if is_gone(address)]

    def close(self) -> None:
        """Ends the watch."""
        self._waker.close()

    def _watch(self) -> None:
        with (
            self._woken,
            selectors.DefaultSelector() as selector,
            contextlib.ExitStack() as connections,
        ):

            def connect(peer: str) -> None:
                with contextlib.suppress(OSError):
                    connection = connections.enter_context(_connection_to(self._peers[peer]))
                    selector.register(connection, selectors.EVENT_READ, peer)

            selector.register(self._woken, selectors.EVENT_READ)
            for peer in self._peers:
                connect(peer)
            while True:
                ready = [key for key, _ in selector.select()]
                if any(key.fileobj is self._woken for key in ready):
                    return
                for key in ready:
                    if _is_open(key.fileobj):
                        continue
                    selector.unregister(key.fileobj)
                    time.sleep(_PAUSE_SECS)
                    if is_gone(self._peers[key.data]):
                        self._on_loss(key.data)
                        return
                    connect(key.data)


def _connection_to(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECS)


def is_gone(address: str) -> bool:
    """Whether nobody listens there any more; what cannot be known is not taken for it."""
    try:
        _connection_to(address).close()
    except ConnectionError:
        return True
    except OSError:
        pass
    return False


def _is_open(connection: Any) -> bool:
    try:
        return bool(connection.recv(4096))  # the server's greeting
    except OSError:
        return False
