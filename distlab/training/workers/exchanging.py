"""The workers that train one model together, and what they tell each other.

workers = workers_of(strategy)        # one of one, unless the strategy spans several processes
with doing("fit"):
    workers.exchange({"stop": True})  # what each of them said, in their order
    workers.from_chief(name)          # what the chief said

Each of these is a collective: all workers call it, in the same order, or the others wait. One that
does something else meanwhile is told to all.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from distlab import errors
from distlab.strategy.describing import describe

_Result = TypeVar("_Result")

# TensorFlow numbers its own groups of devices from 1; this is the group of the workers.
_GROUP = 1 << 30
_CALLS = itertools.count(1)

# The method that this worker is at.
_DOING: contextvars.ContextVar[str] = contextvars.ContextVar("distlab_doing", default="")

# Bytes that are sent at once. What is longer takes a second message.
_FIRST = 248


@contextlib.contextmanager
def doing(method: str) -> Iterator[None]:
    """Inside the block, all workers must be at the same method."""
    before = _DOING.set(method)
    try:
        yield
    finally:
        _DOING.reset(before)


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

    def exchange(self, value: Any) -> list[Any]:
        """Returns what all workers gave, in order."""
        if self.count == 1:
            return [value]
        said = self.gather(json.dumps([_DOING.get(), value]).encode())
        methods, values = zip(*map(json.loads, said), strict=True)
        if len(set(methods)) > 1:
            each = zip(self.names, methods, strict=True)
            raise errors.ProcessError(
                asked=f"{_DOING.get()} on {self.count} workers",
                found=", ".join(f"{name} is at {method or 'none'}" for name, method in each),
                do="call fit, evaluate, predict, save and export of a distributed model on all "
                "workers, in the same order; the chief alone writes, without being asked to",
                pitfall="The chief hangs while it saves",
            )
        return list(values)

    def from_chief(self, value: Any) -> Any:
        """Returns what the chief gave."""
        return self.exchange(value if self.is_chief else None)[0]

    def attempt(self, work: Callable[[], _Result]) -> _Result:
        """Returns what `work` returns here, once it has gone well on all workers."""
        if self.count == 1:
            return work()
        try:
            result, failure = work(), None
        except Exception as error:
            failure = error
        told = self.exchange(_told(failure))
        if failure is not None:
            raise failure
        for name, one in zip(self.names, told, strict=True):
            if one is not None:
                raise _retold(one, name)
        return result

    def gather(self, payload: bytes) -> list[bytes]:
        """Returns the bytes of all workers, in order."""
        if self.count == 1:
            return [payload]
        head = len(payload).to_bytes(8, "little") + payload[:_FIRST]
        heads = self._gather_padded(head, 8 + _FIRST)
        lengths = [int.from_bytes(one[:8], "little") for one in heads]
        rest = max(lengths) - _FIRST
        tails = self._gather_padded(payload[_FIRST:], rest) if rest > 0 else [b""] * self.count
        whole = zip(heads, tails, lengths, strict=True)
        return [(one[8:] + tail)[:length] for one, tail, length in whole]

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


def _told(failure: Exception | None) -> tuple[str, dict[str, Any]] | None:
    if failure is None:
        return None
    if isinstance(failure, errors.DistlabError):
        return type(failure).__name__, failure.parts
    return f"{type(failure).__name__}: {failure}", {}


def _retold(told: tuple[str, dict[str, Any]], name: str) -> errors.DistlabError:
    kind, parts = told
    if parts:
        error: errors.DistlabError = getattr(errors, kind)(**parts)
        return error
    return errors.ProcessError(
        asked="go on with all workers",
        found=f"{name} failed: {kind}",
        do=f"look at what {name} printed",
    )


def workers_of(strategy: tf.distribute.Strategy) -> Workers:
    """Returns the workers of a strategy."""
    extended = strategy.extended
    if describe(strategy).kind != "multi_worker" or extended._num_workers == 1:
        return Workers(names=("worker:0",), addresses=(), index=0)
    jobs = extended._cluster_spec.as_dict()
    there = [
        (f"{job}:{index}", address)
        for job in ("chief", "worker")
        for index, address in enumerate(jobs.get(job, ()))
    ]
    names, addresses = zip(*there, strict=True)
    return Workers(names=names, addresses=addresses, index=extended._id_in_cluster)
