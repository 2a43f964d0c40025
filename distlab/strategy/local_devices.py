"""The devices of this machine on which a worker computes: all GPUs, or else all logical CPUs.

    count()                          # before TensorFlow is used: 2, after split_devices(2)
    with all_taken():
        strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)

TensorFlow by itself takes all GPUs of a worker, but one CPU, so that a machine without GPUs could
not show what several of them do. All workers must have as many: their all-reduce counts on it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended


def count() -> int:
    """Returns how many replicas this process will have; asks without starting TensorFlow."""
    gpus = tf.config.get_visible_devices("GPU")
    there = gpus or tf.config.get_visible_devices("CPU")
    return sum(len(tf.config.get_logical_device_configuration(one) or [None]) for one in there)


@contextlib.contextmanager
def all_taken() -> Iterator[None]:
    """Inside the block a MultiWorkerMirroredStrategy takes all logical CPUs of this process."""
    original = CollectiveAllReduceExtended._initialize_local_devices

    def take(extended: Any, resolver: Any, worker_device: str) -> tuple[tuple[str, ...], str]:
        devices, kind = original(extended, resolver, worker_device)
        if kind == "CPU":
            devices = tuple(f"{worker_device}/device:CPU:{index}" for index in range(count()))
        return devices, kind

    CollectiveAllReduceExtended._initialize_local_devices = take
    try:
        yield
    finally:
        CollectiveAllReduceExtended._initialize_local_devices = original
