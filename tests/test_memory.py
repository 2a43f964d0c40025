"""A limit for a CPU's memory: what it allows, what it refuses, and when it is too late for it."""

import re

import pytest

import distlab as dl
from distlab.errors import DeviceError, InvalidArgument
from distlab.memory import ALLOCATOR_VARIABLE, LIMIT_VARIABLE

NONE = {ALLOCATOR_VARIABLE: None, LIMIT_VARIABLE: None}
TRAIN = """
import distlab as dl
dl.memory_limit(1)
dl.split_devices(2)
import keras, numpy as np
x, y = np.ones((64, 64), "float32"), np.ones((64, 10), "float32")
model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10), keras.layers.Dropout(0.1)])
model.compile("adam", "mse")
model.fit(x, y, batch_size=32, verbose=0)
dl.memory_limit(1)
import tensorflow as tf
print(tf.config.experimental.get_memory_info("CPU:0")["peak"] < 2**20)
try:
    tf.zeros([2**20 + 1], tf.int8)
except tf.errors.ResourceExhaustedError as error:
    print("OOM when allocating tensor" in str(error))
try:
    dl.memory_limit(64)
except dl.errors.DeviceError as error:
    print(error)
"""


def test_one_megabyte_is_enough_for_a_small_model_and_is_kept_to(run_python):
    """In a fork of a process that has imported TensorFlow, as kernels of `make regression` are."""
    peak_fits, raises, *refused = run_python(TRAIN, environ=NONE, warm=True).splitlines()[-5:]
    assert (peak_fits, raises) == ("True", "True")
    assert refused == [
        "memory_limit(64)",
        f"  found: a limit of 1 MB, which this process already has ({LIMIT_VARIABLE})",
        f"  to do: keep that limit, or restart the kernel (or Python) without {LIMIT_VARIABLE}",
    ]


def test_too_late_says_restart_the_kernel(monkeypatch):
    monkeypatch.delenv(LIMIT_VARIABLE, raising=False)
    dl.make_strategy("one_device")  # wakes the devices
    with pytest.raises(DeviceError) as error:
        dl.memory_limit(64)
    assert (
        error.value.found == "TensorFlow is already running, and its memory is fixed once it runs"
    )
    assert error.value.do == (
        "restart the kernel (or Python) and call memory_limit first, before any other use of "
        "TensorFlow"
    )


def test_limits_that_cannot_be_meant_are_refused():
    for limit in (0, -64, 1.5, True, "64"):
        with pytest.raises(InvalidArgument, match=re.escape(f"found: megabytes={limit!r}\n")):
            dl.memory_limit(limit)
