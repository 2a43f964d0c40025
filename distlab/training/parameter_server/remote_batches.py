"""Turns the batches of one iterator into work for the workers."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


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
