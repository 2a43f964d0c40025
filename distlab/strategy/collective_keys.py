"""Each strategy of a process has all-reduces of its own.

TensorFlow's runtime finds an all-reduce by two numbers, of the group of devices and of the call.
Every strategy counts both from the same start. So the first all-reduce of a second strategy
is taken for the first one's: "Shape mismatch in the collective instance 100", or for two numbers
of devices a group of the wrong size.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

import tensorflow as tf

# More than the groups of devices that one strategy makes, and than those of strategies that were
# never separated: they count from 1.
_GROUPS = 1000
_starts = itertools.count(_GROUPS, _GROUPS)

# Workers must all use the same numbers, however many other strategies each has made.
_GROUPS_OF_A_ROUND = 1_000_000


def separate(strategy: tf.distribute.Strategy) -> None:
    """Numbers the all-reduces of a MirroredStrategy as those of no other; others stay as they are.

    What is already traced keeps its numbers. A second call changes nothing.
    """
    extended = strategy.extended
    if not isinstance(strategy, tf.distribute.MirroredStrategy) or extended._collective_key_base:
        return
    extended._collective_key_base = next(_starts)
    before = extended._collective_ops
    extended._collective_ops = extended._make_collective_ops_with_fallbacks()
    if extended._cross_device_ops is before:
        extended._cross_device_ops = extended._collective_ops


@contextlib.contextmanager
def separate_workers(round_number: int) -> Iterator[None]:
    """Numbers the all-reduces of a MultiWorkerMirroredStrategy made within as those of no other."""
    strategies = tf.distribute.MultiWorkerMirroredStrategy
    before = strategies._collective_key_base
    strategies._collective_key_base = round_number * _GROUPS_OF_A_ROUND
    try:
        yield
    finally:
        strategies._collective_key_base = before
