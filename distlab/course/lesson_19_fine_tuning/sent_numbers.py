"""An all-reduce that notes how many numbers each array holds that a step sends.

sums = CountedSums()
strategy = dl.make_strategy("mirrored", devices=2, cross_device_ops=sums)
sums.of_a_step(lambda: model.fit(x, y, batch_size=len(x)))      # 8192
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


class CountedSums(tf.distribute.ReductionToOneDevice):  # type: ignore[misc]
    """TensorFlow's all-reduce for replicas of one process, which notes what passes through it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[int] = []

    def batch_reduce_implementation(self, how: Any, pairs: Any, options: Any) -> Any:
        """Notes the size of each array while the step runs, and reduces them as usual."""
        for value, _ in pairs:
            tf.numpy_function(self._note, [tf.size(value.values[0])], [])
        return super().batch_reduce_implementation(how, pairs, options)

    def of_a_step(self, step: Callable[[], object]) -> int:
        """Returns how many numbers each replica gives away while `step` runs.

        Arrays of two numbers are left out: in them the replicas tell each other their losses.
        """
        self.sent.clear()
        step()
        return sum(size for size in self.sent if size > 2)

    def _note(self, size: Any) -> None:
        self.sent.append(int(size))
