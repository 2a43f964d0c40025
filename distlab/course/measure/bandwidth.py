"""Measures how long an all-reduce takes, by its size.

dl.split_devices(2)
for row in time_all_reduce(dl.make_strategy("mirrored"), [4, 4096, 2**22]):
    print(row.size_bytes, row.secs)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from distlab.course.measure.timing import time_in_turns

_IN_A_ROW = 8


@dataclass(frozen=True)
class AllReduceTime:
    """How long one all-reduce took.

    Attributes:
        replicas: How many replicas took part.
        size_bytes: How many bytes each replica had to add.
        secs: The median seconds of one all-reduce.
    """

    replicas: int
    size_bytes: int
    secs: float

    @property
    def bytes_per_sec(self) -> float:
        """The size divided by the time: what a program gets, its own copies included."""
        return self.size_bytes / self.secs


def time_all_reduce(
    strategy: Any, sizes_bytes: Sequence[int], *, blocks: int = 9, calls: int = 4
) -> list[AllReduceTime]:
    """Times all-reduces of float32 vectors, the sizes in turn.

    A compiled function has eight all-reduces in a row, each of the result before, so that the call
    of the function hardly counts.

    Args:
        strategy: Any strategy with replicas; on several workers all of them call this together.
        sizes_bytes: The sizes, in bytes for each replica; a float32 has 4.
        blocks: How many blocks of calls are timed; the median counts.
        calls: How many calls a block has.
    """
    import tensorflow as tf

    def of_size(size_bytes: int) -> Callable[[], Any]:
        def chain(values: Any) -> Any:
            context = tf.distribute.get_replica_context()
            for _ in range(_IN_A_ROW):
                values = context.all_reduce("MEAN", values)
            return values

        compiled = tf.function(lambda values: strategy.run(chain, args=(values,)))
        values = strategy.experimental_distribute_values_from_function(
            lambda context: tf.ones([max(1, size_bytes // 4)])
        )
        return lambda: compiled(values)

    ways = {str(size): of_size(size) for size in sizes_bytes}
    timings = time_in_turns(ways, blocks=blocks, calls=calls)
    return [
        AllReduceTime(
            replicas=strategy.num_replicas_in_sync,
            size_bytes=size,
            secs=timings[str(size)].median_secs / _IN_A_ROW,
        )
        for size in sizes_bytes
    ]
