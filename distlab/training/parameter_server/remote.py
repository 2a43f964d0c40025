"""What a coordinator sends its workers: batches as work, functions, and what they hold."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf


@dataclass(frozen=True, kw_only=True)
class Work:
    """Batches that one scheduled function takes.

    Attributes:
        reading: What they are of.
        first: Number of the first of them there, from 0.
        count: How many.
        batch: The batch itself, where the coordinator hands it out; then `count` is 1.
    """

    reading: Reading
    first: int
    count: int
    batch: Any = None

    def rest(self, done: int) -> Work:
        """Returns the work without its first batches."""
        return Work(reading=self.reading, first=self.first + done, count=self.count - done)


class Reading(abc.ABC):
    """The batches of one iterator, in order. Workers may train on them in any other.

    Attributes:
        iterators: What workers read by, an iterator on each; None where the coordinator reads.
    """

    iterators: Any = None

    @abc.abstractmethod
    def take(self, batches: int, *, at_once: int) -> list[Work]:
        """Returns the next batches; fewer, or none, at the end of the data."""

    @abc.abstractmethod
    def __next__(self) -> Any:
        """Passes over a batch."""

    def begin_anew(self) -> None:  # noqa: B027 - what is handed out is never read again
        """Lets workers read from the first batch again."""


class HandedOut(Reading):
    """Batches that the coordinator reads itself, and sends to workers one by one."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = enumerate(batches)

    def take(self, batches: int, *, at_once: int) -> list[Work]:
        """As said above; each batch is sent alone."""
        some = itertools.islice(self._batches, batches)
        return [Work(reading=self, first=index, count=1, batch=batch) for index, batch in some]

    def __next__(self) -> Any:
        """Reads a batch, and drops it."""
        return next(self._batches)


def make_on_workers(
    coordinator: tf.distribute.coordinator.ClusterCoordinator,
    make: Callable[..., Any],
    *,
    spec: tf.TypeSpec,
    args: tuple[Any, ...] = (),
) -> Any:
    """Makes something on every worker, and again on a worker that comes back after a loss."""
    made = coordinator._create_per_worker_resources(make, args=args)
    for one in made._values:
        one._type_spec = spec  # a function that is called with it is traced by this
    return made


def is_ready(remote: Any, *, timeout_secs: float) -> bool:
    """Whether a scheduled function has ended, or has failed for good."""
    return bool(remote._status_available_event.wait(timeout_secs))


def addresses_of(strategy: tf.distribute.Strategy) -> dict[str, str]:
    """Returns "host:port" of each worker and parameter server, by name as in "worker:1"."""
    jobs = strategy._cluster_resolver.cluster_spec().as_dict()
    return {
        f"{job}:{index}": address
        for job in ("worker", "ps")
        for index, address in enumerate(jobs[job])
    }
