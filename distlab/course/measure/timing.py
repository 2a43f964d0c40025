"""Times a call, without its first calls, until the devices have finished, and with its spread.

    timing = time_call(lambda: step(batch))
    timing.median_secs                       # 0.0123
    differ(timing, time_call(other))         # False: within the noise

A first call of a `tf.function` traces it, and a call for a GPU returns before the GPU is done.
Both make a plain stopwatch wrong, in opposite directions.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from distlab.errors import InvalidArgument


@dataclass(frozen=True)
class Timing:
    """How long one call takes, measured in blocks of calls.

    Attributes:
        block_secs: For each block the mean seconds of one call.
    """

    block_secs: tuple[float, ...]

    @property
    def median_secs(self) -> float:
        """The median of the blocks, in seconds for one call."""
        return statistics.median(self.block_secs)

    @property
    def middle_half_secs(self) -> tuple[float, float]:
        """The quartiles of the blocks, in seconds: half of all blocks are between them."""
        low, _, high = statistics.quantiles(self.block_secs, n=4, method="inclusive")
        return low, high


class Spread(Protocol):
    """Times measured in blocks: a `Timing`, or a recorded step."""

    @property
    def middle_half_secs(self) -> tuple[float, float]:
        """The quartiles of the blocks, in seconds."""


def wait_for_devices() -> None:
    """Returns when every device of TensorFlow has finished what it was given."""
    import tensorflow as tf

    tf.test.experimental.sync_devices()


def time_call(
    call: Callable[[], Any],
    *,
    blocks: int = 7,
    calls: int = 5,
    warm_up: int = 2,
    clock: Callable[[], float] = time.perf_counter,
    wait: Callable[[], None] = wait_for_devices,
) -> Timing:
    """Times a call in blocks, after calls that do not count.

    Args:
        call: What is timed; its result is dropped.
        blocks: How many blocks, at least 2.
        calls: How many calls a block has. The clock is read, and the devices are waited for, once
            a block, so many calls make both cheap.
        warm_up: How many calls come first and do not count: one traces, one warms the caches.
        clock: Returns the time in seconds.
        wait: Returns when all devices are done.

    Raises:
        InvalidArgument: There are fewer than 2 blocks, or less than 1 call.
    """
    return time_in_turns(
        {"call": call}, blocks=blocks, calls=calls, warm_up=warm_up, clock=clock, wait=wait
    )["call"]


def time_in_turns(
    ways: Mapping[str, Callable[[], Any]],
    *,
    blocks: int = 7,
    calls: int = 5,
    warm_up: int = 2,
    clock: Callable[[], float] = time.perf_counter,
    wait: Callable[[], None] = wait_for_devices,
) -> dict[str, Timing]:
    """Times several calls, a block of each in turn, so that what disturbs one disturbs all.

    Args:
        ways: What is timed, by name.
        blocks: As for `time_call`; likewise `calls`, `warm_up`, `clock` and `wait`.
        calls: How many calls a block has.
        warm_up: How many calls of each way do not count.
        clock: Returns the time in seconds.
        wait: Returns when all devices are done.

    Raises:
        InvalidArgument: There are fewer than 2 blocks, or less than 1 call.
    """
    if blocks < 2 or calls < 1:
        raise InvalidArgument(
            asked=f"a timing with blocks={blocks}, calls={calls}",
            found=f"blocks={blocks}, calls={calls}, too few to tell how far the times scatter",
            do="time at least 2 blocks of at least 1 call",
        )
    for call in ways.values():
        for _ in range(warm_up):
            call()
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for block in range(blocks):
        # Every other round backwards, so that no way always follows the same one.
        for name in list(ways)[:: -1 if block % 2 else 1]:
            wait()
            start = clock()
            for _ in range(calls):
                ways[name]()
            wait()
            taken[name].append((clock() - start) / calls)
    return {name: Timing(tuple(secs)) for name, secs in taken.items()}


def differ(one: Spread, other: Spread) -> bool:
    """Returns whether the middle halves of two timings lie apart; if not, it may be noise.

    Args:
        one: A timing, or a recorded step.
        other: What it is compared with.
    """
    (low, high), (other_low, other_high) = one.middle_half_secs, other.middle_half_secs
    return high < other_low or other_high < low
