"""The workers that train one model together: what they exchange, and how all of them fail.

workers = workers_of(strategy)        # one, unless the strategy spans several processes
with fail_together(workers, "fit"):   # an exception here ends the others, who would wait forever
    workers.exchange({"stop": True})  # what each of them gave, in their order
    workers.from_chief(name)          # what the chief gave

An exchange is a collective: all workers call it, in the same order, or the others wait. A worker
that is at another method meanwhile is named to all.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from distlab import errors
from distlab.strategy.description import describe
from distlab.training.keras_private import strategies

# TensorFlow numbers its own groups of devices from 1; this is the group of the workers.
_GROUP = 1 << 30
_CALLS = itertools.count(1)

# Bytes that are sent at once. What is longer takes a second message.
_FIRST = 248

# The method that this worker is at.
_METHOD: contextvars.ContextVar[str] = contextvars.ContextVar("distlab_method", default="")

# How long a worker that fails waits to see whether the others fail too, as by the same mistake.
PATIENCE_SECS = 1.0

_BETWEEN_LOOKS_SECS = 0.5
_CONNECT_SECS = 2.0
_LONGEST = 400
_PREFIX = "[distlab] "
_REASON = re.compile(re.escape(_PREFIX) + r"(.*?)(?:\nThe error could be|\n\t|$)", re.DOTALL)

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

_BLOCKS = itertools.count()
_INSIDE = threading.local()


@contextlib.contextmanager
def at_method(method: str) -> Iterator[None]:
    """Inside the block, all workers must be at the same method."""
    before = _METHOD.set(method)
    try:
        yield
    finally:
        _METHOD.reset(before)


@dataclass(frozen=True, kw_only=True)
class Workers:
    """The workers of a strategy, and which of them this process is.

    Attributes:
        names: As in "worker:1", the chief's first.
        addresses: "host:port" of each; empty where there is one worker.
        index: Which of them this is.
    """

    names: tuple[str, ...]
    addresses: tuple[str, ...]
    index: int

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.names)

    @property
    def is_chief(self) -> bool:
        """Whether this is the one that writes for all."""
        return self.index == 0

    @property
    def name(self) -> str:
        """This worker's name."""
        return self.names[self.index]

    @property
    def peers(self) -> dict[str, str]:
        """The addresses of the other workers, by "worker:1 (10.0.0.2:2222)"."""
        pairs = zip(self.names, self.addresses, strict=True)
        return {f"{name} ({address})": address for name, address in pairs if name != self.name}

    def exchange(self, value: Any) -> list[Any]:
        """Returns the values that all workers gave, in order."""
        if self.count == 1:
            return [value]
        messages = self.gather(json.dumps([_METHOD.get(), value]).encode())
        methods, values = zip(*map(json.loads, messages), strict=True)
        if len(set(methods)) > 1:
            each = zip(self.names, methods, strict=True)
            raise errors.ProcessError(
                asked=f"{_METHOD.get()} on {self.count} workers",
                found=", ".join(f"{name} is at {method or 'none'}" for name, method in each),
                do="call fit, evaluate, predict, save and export of a distributed model on all "
                "workers, in the same order; the chief alone writes, by itself",
                pitfall="The chief hangs while it saves",
            )
        return list(values)

    def from_chief(self, value: Any) -> Any:
        """Returns the value that the chief gave."""
        return self.exchange(value if self.is_chief else None)[0]

    def gather(self, payload: bytes) -> list[bytes]:
        """The bytes of all workers, in order."""
        if self.count == 1:
            return [payload]
        head = len(payload).to_bytes(8, "little") + payload[:_FIRST]
        heads = self._gather_padded(head, 8 + _FIRST)
        lengths = [int.from_bytes(each[:8], "little") for each in heads]
        rest = max(lengths) - _FIRST
        tails = self._gather_padded(payload[_FIRST:], rest) if rest > 0 else [b""] * self.count
        whole = zip(heads, tails, lengths, strict=True)
        return [(start[8:] + tail)[:length] for start, tail, length in whole]

    def _gather_padded(self, payload: bytes, size: int) -> list[bytes]:
        """Collectives carry numbers, and the same count from each worker."""
        words = -(-size // 4)
        with tf.device("CPU:0"):
            gathered = tf.raw_ops.CollectiveGatherV2(
                input=tf.constant(np.frombuffer(payload.ljust(4 * words, b"\0"), np.int32)),
                group_size=self.count,
                group_key=_GROUP,
                instance_key=next(_CALLS),
                ordering_token=[],
                communication_hint="ring",
            )
        return [row.tobytes() for row in gathered.numpy().reshape(self.count, words)]


def workers_of(strategy: tf.distribute.Strategy) -> Workers:
    """The workers of a strategy."""
    if describe(strategy).kind != "multi_worker" or strategies.workers_in(strategy) == 1:
        return Workers(names=("worker:0",), addresses=(), index=0)
    jobs, own = strategies.cluster_of(strategy)
    tasks = [
        (f"{job}:{index}", address)
        for job in ("chief", "worker")
        for index, address in enumerate(jobs.get(job, ()))
    ]
    names, addresses = zip(*tasks, strict=True)
    return Workers(names=names, addresses=addresses, index=own)


@contextlib.contextmanager
def fail_together(workers: Workers, method: str, *, at: Callable[[], str] = str) -> Iterator[None]:
    """Inside the block, an exception of one worker ends all, and a lost worker is named.

    Where all fail within a second, each keeps its own exception. A block within a block is a part
    of it.
    """
    if workers.count == 1 or getattr(_INSIDE, "block", False):
        with at_method(method):
            yield
        return
    number = next(_BLOCKS)
    _INSIDE.block = True
    try:
        with at_method(method), _watched_peers(workers):
            yield
    except _FROM_OTHERS as error:
        raise errors.ProcessError(
            asked=f"{method} on {workers.count} workers",
            found=_reason(error, workers) + at(),
            do="look at what that worker printed, then start all workers again (`distlab launch "
            "--max-restarts` does): with dl.Resume, fit goes on from the last checkpoint",
        ) from error
    except BaseException as error:
        if not _all_failed(workers, number):
            text = f"{workers.name} stopped: {type(error).__name__}: {error}"[:_LONGEST]
            with contextlib.suppress(tf.errors.OpError):  # what others wait for fails with it
                strategies.runtime().report_error_to_cluster(tf.errors.ABORTED, _PREFIX + text)
        raise
    finally:
        _INSIDE.block = False


def _reason(error: tf.errors.OpError, workers: Workers) -> str:
    message = str(error.message)
    if reason := _REASON.search(message):
        return reason[1]
    names = {f"{job}:{index}" for job, index in _UNHEALTHY.findall(message)}
    if _CHIEF_IS_SILENT in message:
        names.add(workers.names[0])
    if silent := [peer for peer in workers.peers if peer.partition(" ")[0] in names]:
        return f"{' and '.join(silent)} fell silent: its host or its network is gone"
    deadline = time.monotonic() + PATIENCE_SECS
    while not (lost := _lost(workers)) and time.monotonic() < deadline:
        time.sleep(0.02)  # its connections end before its server does
    broken = f"the connection to another worker broke: {message.splitlines()[0]}"
    return ", ".join(f"{peer} was lost" for peer in lost) or broken


@contextlib.contextmanager
def _watched_peers(workers: Workers) -> Iterator[None]:
    """Inside the block, what waits for a worker that has ended fails soon.

    TensorFlow itself waits until it has missed heartbeats. A machine that loses its power or its
    network is left to that.
    """
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(_BETWEEN_LOOKS_SECS):
            if lost := _lost(workers):
                text = f"{_PREFIX}{', '.join(f'{peer} was lost' for peer in lost)}"
                strategies.runtime().abort_collective_ops(tf.errors.UNAVAILABLE, text)
                return

    threading.Thread(target=watch, daemon=True, name="distlab-watch").start()
    try:
        yield
    finally:
        is_over.set()


def _lost(workers: Workers) -> list[str]:
    return [peer for peer, address in workers.peers.items() if _is_gone(address)]


def _is_gone(address: str) -> bool:
    """Whether nobody listens there any more; what cannot be known is not taken for it."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECS).close()
    except ConnectionError:
        return True
    except OSError:
        pass
    return False


def _all_failed(workers: Workers, number: int) -> bool:
    """Whether every worker comes here from the same block, soon."""

    def key(index: int) -> str:
        return f"distlab/failed/{number}/{index}"

    with contextlib.suppress(tf.errors.OpError):
        strategies.runtime().set_config_key_value(key(workers.index), "failed")
        deadline = time.monotonic() + PATIENCE_SECS
        for index in range(workers.count):
            left_ms = max(int((deadline - time.monotonic()) * 1000), 1)
            strategies.runtime().get_config_key_value(key(index), left_ms)
        return True
    return False
