"""Three repairs of TensorFlow's MirroredStrategy: all-reduce, its numbers, its threads.

strategy = tf.distribute.MirroredStrategy(names, cross_device_ops=ReductionToOneDevice())
separate_collectives(strategy)
wait_for_replica_threads()
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import mirrored_run
from tensorflow.python.training import coordinator

# More than the groups of devices of one strategy, and than those of strategies that were never
# separated: they count from 1.
_GROUPS = 1000
_starts = itertools.count(_GROUPS, _GROUPS)

_LOOK_SECS = 1.0  # between looks whether a replica has asked all others to stop


class ReductionToOneDevice(tf.distribute.ReductionToOneDevice):  # type: ignore[misc]
    """TensorFlow's own, which traces fifty synchronised layers in seconds instead of minutes.

    TensorFlow wraps each all-reduce of a replica in a `custom_gradient`, which looks for variables
    behind the result, and finds the whole graph of all replicas each time. At these sums the search
    ends; the gradient of a replica's all-reduce is its own all-reduce, whatever is inside.
    `strategy.reduce` can be differentiated as before.
    """

    def __init__(self) -> None:
        super().__init__()
        self._of_constants = tf.distribute.ReductionToOneDevice(accumulation_fn=_sum_of_constants)

    def batch_reduce_implementation(self, *args: Any, **kwargs: Any) -> Any:
        """Sums as the base class does."""
        return self._of_constants.batch_reduce_implementation(*args, **kwargs)


def _sum_of_constants(values: list[tf.Tensor]) -> tf.Tensor:
    return tf.add_n([tf.stop_gradient(value) for value in values])


def separate_collectives(strategy: tf.distribute.Strategy) -> None:
    """Numbers the all-reduces of a MirroredStrategy as those of no other strategy.

    TensorFlow finds an all-reduce by two numbers, which every strategy counts from the same start:
    the first of a second strategy is taken for the first one's ("Shape mismatch in the collective
    instance 100"). What is already traced keeps its numbers; a second call changes nothing.
    """
    extended = strategy.extended
    if not isinstance(strategy, tf.distribute.MirroredStrategy) or extended._collective_key_base:
        return
    extended._collective_key_base = next(_starts)
    before = extended._collective_ops
    extended._collective_ops = extended._make_collective_ops_with_fallbacks()
    if extended._cross_device_ops is before:
        extended._cross_device_ops = extended._collective_ops


def wait_for_replica_threads() -> None:
    """Has `strategy.run` return when its replicas' threads have ended, in all of this process.

    TensorFlow looks whether they have, and if one needs a moment more, again a second later: on
    Python 3.13 about every fifth call then takes a second. Its function takes no coordinator.
    """
    mirrored_run.coordinator = SimpleNamespace(Coordinator=Coordinator)


class Coordinator(coordinator.Coordinator):  # type: ignore[misc]
    """TensorFlow's coordinator of threads, whose `join` returns as soon as they have ended."""

    def join(self, threads: Sequence[threading.Thread] | None = None, **options: Any) -> None:
        """Waits until the threads have ended, or one asked all to stop."""
        for thread in threads or ():
            while thread.is_alive() and not self.should_stop():
                thread.join(_LOOK_SECS)
        super().join(threads, **options)
