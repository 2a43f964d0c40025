"""The most memory that tensors hold during a call.

    peak_bytes(lambda: step(batch))       # 88_080_384, beside what was held before the call

On a CPU, TensorFlow counts every tensor only under `dl.memory_limit`; without a limit, tensors of
200 KB and less were missing. Operations that run side by side hold their tensors at the same time,
so a peak varies from run to run: compare ratios.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def peak_bytes(
    call: Callable[[], Any], *, warm_up: int = 1, runs: int = 3, device: str = "CPU:0"
) -> int:
    """Returns the most bytes that a call holds at once, beside those that were held before.

    Args:
        call: What is measured; the memory of its result counts, until the next run drops it.
        warm_up: How many calls come first and do not count: one traces.
        runs: How many calls are measured. The median counts, because peaks vary.
        device: The device that holds the tensors. Logical CPUs share their memory.
    """
    for _ in range(warm_up):
        call()
    peaks = sorted(_peak_of_one(call, device) for _ in range(runs))
    return peaks[len(peaks) // 2]


def _peak_of_one(call: Callable[[], Any], device: str) -> int:
    import tensorflow as tf

    tf.test.experimental.sync_devices()
    tf.config.experimental.reset_memory_stats(device)
    before = tf.config.experimental.get_memory_info(device)["current"]
    result = call()
    tf.test.experimental.sync_devices()
    peak = tf.config.experimental.get_memory_info(device)["peak"]
    del result
    return int(peak - before)
