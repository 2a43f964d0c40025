"""What ends one worker ends all of them, and each says why.

with ended_together(workers, "fit"):
    ...                       # an exception here is told to the others, who would wait for ever

A worker that dies is noticed by its connections, which the system closes at that moment:
TensorFlow itself may take ten seconds, until it misses a heartbeat.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from distlab.errors import ProcessError
from distlab.training.workers.exchanging import Workers, doing

# How long a worker that fails waits to see whether the others fail too, as by the same mistake.
PATIENCE_SECS = 1.0

_MARK = "[distlab] "
_TOLD = re.compile(re.escape(_MARK) + r"(.*?)(?:\nThe error could be|\n\t|$)", re.DOTALL)
_LONGEST = 400

# What TensorFlow raises in an operation that waited for another worker.
_FROM_OTHERS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)

# What it says of workers that are silent: the chief of others, and others of the chief.
_UNHEALTHY = re.compile(r"^/job:(\w+)/replica:0/task:(\d+)$", re.MULTILINE)
_CHIEF_IS_SILENT = "CoordinationService/Heartbeat"

_DO = (
    "look at what that worker printed, then start all workers again (`distlab launch "
    "--max-restarts` does): with dl.Resume, fit goes on from the last checkpoint"
)

_BLOCKS = itertools.count()
_INSIDE = threading.local()


@contextlib.contextmanager
def ended_together(workers: Workers, method: str, *, at: Callable[[], str] = str) -> Iterator[None]:
    """Inside the block, an exception of one worker ends all, and a lost worker is named.

    Where all fail within a second, each keeps its own exception. A block within a block is a part
    of it.
    """
    if workers.count == 1 or getattr(_INSIDE, "block", False):
        with doing(method):
            yield
        return
    number = next(_BLOCKS)
    _INSIDE.block = True
    monitor = PeerMonitor(workers, on_loss=lambda name: _abort(f"{name} was lost"))
    try:
        with doing(method):
            yield
    except _FROM_OTHERS as error:
        found = _reason(error, workers, monitor) + at()
        asked = f"{method} on {workers.count} workers"
        raise ProcessError(asked=asked, found=found, do=_DO) from error
    except BaseException as error:
        if not _all_failed(workers, number):
            text = f"{type(error).__name__}: {error}"[:_LONGEST]
            _tell(f"{workers.name} stopped: {text}")
        raise
    finally:
        monitor.close()
        _INSIDE.block = False


def _reason(error: tf.errors.OpError, workers: Workers, monitor: PeerMonitor) -> str:
    told = _TOLD.search(str(error.message))
    if told is not None:
        return told[1]
    if silent := _silent(str(error.message), workers):
        return f"{' and '.join(silent)} fell silent: its host or its network is gone"
    deadline = time.monotonic() + PATIENCE_SECS
    while not (lost := monitor.lost()) and time.monotonic() < deadline:
        time.sleep(0.02)  # its connections end before its server does
    broken = f"the connection to another worker broke: {str(error.message).splitlines()[0]}"
    return ", ".join(f"{name} was lost" for name in lost) or broken


def _silent(message: str, workers: Workers) -> list[str]:
    """Returns the workers whose heartbeats TensorFlow misses."""
    names = {f"{job}:{index}" for job, index in _UNHEALTHY.findall(message)}
    if _CHIEF_IS_SILENT in message:
        names.add(workers.names[0])
    there = zip(workers.names, workers.addresses, strict=True)
    return [f"{name} ({address})" for name, address in there if name in names]


def _all_failed(workers: Workers, number: int) -> bool:
    """Whether every worker comes here from the same block, soon."""

    def key(index: int) -> str:
        return f"distlab/failed/{number}/{index}"

    with contextlib.suppress(tf.errors.OpError):
        context.context().set_config_key_value(key(workers.index), "failed")
        deadline = time.monotonic() + PATIENCE_SECS
        for index in range(workers.count):
            left_ms = max(int((deadline - time.monotonic()) * 1000), 1)
            context.context().get_config_key_value(key(index), left_ms)
        return True
    return False


def _tell(text: str) -> None:
    """Lets whatever the other workers wait for fail with this text."""
    with contextlib.suppress(tf.errors.OpError):
        context.context().report_error_to_cluster(tf.errors.ABORTED, _MARK + text)


def _abort(text: str) -> None:
    """Lets what this worker waits for fail with this text."""
    context.context().abort_collective_ops(tf.errors.UNAVAILABLE, _MARK + text)


_CONNECT_SECS = 2.0

# A server closes a connection that stays silent; how long to wait before the next.
_PAUSE_SECS = 0.05


class PeerMonitor:
    """Watches the other workers until it is closed.

    Each worker keeps a connection to the server of each other one, over which nothing is sent. When
    a process ends, however it ends, its system closes its connections. A machine that loses its
    power or its network says nothing: that is left to TensorFlow's heartbeats.
    """

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
