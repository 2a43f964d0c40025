"""Measures how long one device and all replicas take for the same small work.

one, four = seconds_to_sum(strategy, dataset)
"""

from __future__ import annotations

from timeit import timeit
from typing import Any


def seconds_to_sum(strategy: Any, dataset: Any) -> tuple[float, float]:
    """The seconds in which a single device and the replicas sum the pixels of the first batch."""
    import tensorflow as tf

    _, whole = next(iter(dataset))
    _, shared = next(iter(strategy.experimental_distribute_dataset(dataset)))

    def on_all_replicas() -> Any:
        sums = strategy.run(tf.reduce_sum, args=(shared,))
        return strategy.reduce("SUM", sums, axis=None)

    works = (tf.function(lambda: tf.reduce_sum(whole)), tf.function(on_all_replicas))
    for work in works:
        work()  # the first call compiles
    # In turn, so that a busy moment of the machine slows down both.
    rounds = [[timeit(work, number=5) for work in works] for _ in range(100)]
    one, all_of_them = map(min, zip(*rounds, strict=True))
    return one, all_of_them
