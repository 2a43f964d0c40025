"""Says what a training step waits for: its input, or its own computation.

split = split_step(step, data)
print(split)         # a step takes 64.6 ms: 4.1 ms of computation; the input takes 64.2 ms
split.waits          # 0.94: the part of a step in which the replicas wait

Three loops are timed over the same batches: the real one; the step on one batch that is there
already; and the input alone, without a step.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from distlab.errors import InvalidArgument


@dataclass(frozen=True, kw_only=True)
class StepSplit:
    """How long a step takes, and how long its two parts take alone.

    Attributes:
        real_ms: A step of the real loop, its batch included, in milliseconds.
        compute_ms: The same step on one batch that is there already.
        input_ms: The input alone: a batch, without a step.
    """

    real_ms: float
    compute_ms: float
    input_ms: float

    @property
    def waits(self) -> float:
        """The part of a real step, 0 to 1, that its computation does not explain."""
        return max(0.0, 1 - self.compute_ms / self.real_ms)

    def __str__(self) -> str:
        """Returns the three times in a sentence."""
        return (
            f"a step takes {self.real_ms:.1f} ms: {self.compute_ms:.1f} ms of computation; "
            f"the input takes {self.input_ms:.1f} ms"
        )


def split_step(
    step: Callable[[Any], Any], data: Iterable[Any], *, passes: int = 3, most_steps: int = 200
) -> StepSplit:
    """Times the real loop, the step on one batch, and the input alone.

    The three are timed in turns, in passes of at most `most_steps` batches, and of each the
    fastest pass counts: the first one traces the step. A pass before them, which is not timed,
    fills caches of up to `most_steps` batches. The clock of a pass starts behind its first batch
    and stops behind its last one.

    Args:
        step: Takes one batch. A step that trains does train the model here.
        data: Gives the same number of batches in every pass, as a data set does; at least two.
        passes: Passes of each of the three.
        most_steps: Batches after which a pass is cut off. A cache of more batches never gets full,
            and the result then says that the step waits for its input.

    Returns:
        The three times.

    Raises:
        InvalidArgument: A pass has fewer than two batches, or a number is below 1.
    """
    if passes < 1:
        raise InvalidArgument(
            asked=f"split_step(passes={passes})",
            found=f"passes={passes}",
            do="time at least 1 pass",
        )

    steps, batch = _look_through(itertools.islice(data, most_steps))
    one_batch = [batch] * steps
    real, compute, alone = [], [], []
    for _ in range(passes):
        real.append(_ms_a_step(step, data, steps))
        compute.append(_ms_a_step(step, one_batch, steps))
        alone.append(_ms_a_step(lambda _: None, data, steps))
    return StepSplit(real_ms=min(real), compute_ms=min(compute), input_ms=min(alone))


def _look_through(batches: Iterable[Any]) -> tuple[int, Any]:
    """How many batches there are, and the last one."""
    steps, last = 0, None
    for batch in batches:
        steps, last = steps + 1, batch
    if steps < 2:
        raise InvalidArgument(
            asked="split_step(step, data)",
            found=f"{steps} batches in a pass over `data`",
            do="pass data of at least two batches that can be iterated again, such as a "
            "tf.data.Dataset and not an iterator of it",
        )
    return steps, last


def _ms_a_step(step: Callable[[Any], Any], batches: Iterable[Any], steps: int) -> float:
    import tensorflow as tf

    begin = 0.0
    # To ask for a batch behind the last one would take time of its own.
    for number, batch in enumerate(itertools.islice(batches, steps)):
        step(batch)
        if number == 0:
            tf.test.experimental.sync_devices()
            begin = time.perf_counter()
    tf.test.experimental.sync_devices()  # a step on a GPU returns before it is done
    return 1000 * (time.perf_counter() - begin) / (steps - 1)
