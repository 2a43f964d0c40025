"""Checks that all workers got the same arguments, number of batches, and batches.

What differs is told to all of them. Unnoticed, one would wait for another for ever, or each would
train on its part of what is not one data set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras

from distlab.errors import DatasetError, InvalidArgument
from distlab.training.workers.exchanging import Workers

# What each worker may choose for itself.
_OWN = ("callbacks", "verbose")

_SAME_DATA = (
    "give every worker the same data set, with batches of the global size: each takes its own part "
    "of every batch"
)


@dataclass(frozen=True, kw_only=True)
class Read:
    """What one execution has read.

    Attributes:
        mark: Follows from its first batch; empty where that is not known.
        more: Whether there was one more batch, which could not be used: not all workers had one.
    """

    mark: str = ""
    more: bool = False


class ReadTogether:
    """What all executions of one `evaluate` have read, to compare it once."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._marks = hashlib.blake2b(digest_size=8)
        self._more = False

    def see(self, read: Read) -> None:
        """Takes note of an execution."""
        self._marks.update(read.mark.encode())
        self._more |= read.more

    def compare(self, method: str) -> None:
        """Asks the others, if there are any."""
        if self._workers.count > 1:
            said = self._workers.exchange([self._marks.hexdigest(), self._more])
            read = [Read(mark=mark, more=more) for mark, more in said]
            check_read(self._workers, read, method=method)


def check_arguments(
    workers: Workers, arguments: dict[str, Any], callbacks: list[keras.callbacks.Callback]
) -> None:
    """Raises on all workers where one was given other arguments than the chief."""
    given = {name: _plain(value) for name, value in arguments.items() if name not in _OWN}
    given["dl.Resume"] = sum(type(one).__name__ == "Resume" for one in callbacks)
    chief, *others = workers.exchange(given)
    for name, other in zip(workers.names[1:], others, strict=True):
        for argument in chief | other:
            if chief.get(argument) != other.get(argument):
                raise InvalidArgument(
                    asked=f"fit(..., {argument}={other.get(argument)}) on {name}",
                    found=f"{argument}={chief.get(argument)} on {workers.names[0]}",
                    do="call fit with the same arguments on every worker; callbacks and verbose "
                    "may differ, dl.Resume may not",
                )


def check_lengths(
    workers: Workers,
    batches: int | None,
    *,
    steps: int | None,
    seeds: Sequence[tuple[int, int]] = (),
) -> None:
    """Raises on all workers where one has more or fewer batches than the chief, or other seeds."""
    asked = f"train or evaluate on {workers.count} workers"
    (*chief, order), *others = workers.exchange([batches, steps, list(seeds)])
    for name, (*other, other_order) in zip(workers.names[1:], others, strict=True):
        if other_order != order:
            raise DatasetError(
                asked=asked,
                found=f"a shuffle with a different seed on {name} than on {workers.names[0]}: each "
                "takes its part of what should be one batch, so of all examples some are read "
                "twice and others never",
                do="give the shuffle, or the function that makes the data set, one seed= on all "
                "workers (image_dataset_from_directory and its like draw one otherwise), or call "
                "distlab.set_seed with one number on each before",
                pitfall="A shuffle that differs on each worker: examples read twice",
            )
        if other != chief:
            there, here = (f"{b} batches" if s is None else f"{s} steps" for b, s in (other, chief))
            raise DatasetError(
                asked=asked,
                found=f"{there} on {name} and {here} on {workers.names[0]}",
                do=_SAME_DATA,
            )


def check_read(workers: Workers, read: list[Read], *, method: str = "train") -> None:
    """Raises where workers have read different batches."""
    by_name = dict(zip(workers.names, read, strict=True))
    longer = [name for name, one in by_name.items() if one.more]
    if longer:
        shorter = [name for name in workers.names if name not in longer]
        raise DatasetError(
            asked=f"{method} on {workers.count} workers",
            found=f"data that end on {' and '.join(shorter)} before they do on "
            f"{' and '.join(longer)}",
            do=_SAME_DATA,
        )
    for name, one in by_name.items():
        if one.mark != read[0].mark:
            raise other_batch(workers, name, method=method, what="targets")


def other_batch(workers: Workers, name: str, *, method: str, what: str) -> DatasetError:
    """Returns the error of workers that have read different batches."""
    return DatasetError(
        asked=f"{method} on {workers.count} workers",
        found=f"a batch whose {what} are others on {name} than on {workers.names[0]}: each takes "
        "its part of what should be one batch, so some examples are read twice and others never",
        do="give every worker the same examples in the same order: call distlab.set_seed with one "
        "number on each before any array is shuffled or split, and seed what targets are drawn by",
        pitfall="A shuffle that differs on each worker: examples read twice",
    )


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | str | None) else type(value).__name__
