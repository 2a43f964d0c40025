"""Measures the CNN of lesson 14 on the machine at hand, in about half a minute.

own = measure_here(dl.make_strategy("mirrored"))
model = fit(own.all_reduces, own.steps, shared=True)
"""

from __future__ import annotations

import datetime
import platform
from collections.abc import Callable, Sequence
from typing import Any

from distlab.course.lesson_14_scaling.recorded import Recording
from distlab.course.measure.bandwidth import time_all_reduce
from distlab.course.measure.scaling_runs import small_cnn, time_step

_SIZES_BYTES = tuple(4 * 8**power for power in range(8))  # 4 B to 8 MiB
_BATCHES_OF_DATA = 4


def measure_here(
    strategy: Any,
    *,
    build: Callable[[], Any] = small_cnn,
    global_batches: Sequence[int] = (32, 64, 128, 256),
    blocks: int = 7,
) -> Recording:
    """Returns steps and all-reduces on the replicas of a strategy, as a recording has them.

    Args:
        strategy: Any strategy.
        build: Returns a compiled Keras model for 28 x 28 grey images of ten classes. They are
            random, because times do not depend on what an image shows.
        global_batches: How many images in a step; each can be divided by the replicas.
        blocks: How many blocks are timed of each.
    """
    import numpy as np
    import tensorflow as tf

    draw = np.random.default_rng(0)
    steps = []
    for batch in global_batches:
        images = draw.random((_BATCHES_OF_DATA * batch, 28, 28, 1), dtype=np.float32)
        labels = draw.integers(0, 10, _BATCHES_OF_DATA * batch)
        data = tf.data.Dataset.from_tensor_slices((images, labels)).batch(batch).prefetch(2)
        steps.append(time_step(build, strategy, data, blocks=blocks))
    many = strategy.num_replicas_in_sync > 1
    return Recording(
        machine=platform.node(),
        recorded=datetime.date.today().isoformat(),
        steps=tuple(steps),
        all_reduces=tuple(time_all_reduce(strategy, _SIZES_BYTES, blocks=blocks) if many else ()),
    )
