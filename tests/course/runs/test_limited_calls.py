"""Functions in processes of little memory: how they run out, wait and fail, and leave nothing."""

import os
import sys
import threading

import cloudpickle
import numpy as np
import pytest

from distlab.course.runs import limited_calls
from distlab.course.runs.limited_calls import call_together, call_with_limit
from distlab.errors import ProcessError, UnsupportedEnvironment
from distlab.memory import LIMIT_VARIABLE

# A process that gets a function is spared the import of this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def sum_of_ones(megabytes):
    import tensorflow as tf

    return float(tf.reduce_sum(tf.ones([megabytes, 2**18])))


def test_what_fits_comes_back_plain_and_what_does_not_is_tensorflows_own_error():
    assert call_with_limit(sum_of_ones, 4, megabytes=8) == 4 * 2**18
    assert call_with_limit(lambda: np.arange(2), megabytes=8).tolist() == [0, 1]
    assert LIMIT_VARIABLE not in os.environ
    with pytest.raises(Exception, match="OOM when allocating tensor with shape") as caught:
        call_with_limit(sum_of_ones, 16, megabytes=8)
    assert type(caught.value).__name__ == "ResourceExhaustedError"


def test_one_that_waits_for_one_that_failed_is_ended_with_the_reason():
    def meet(index):
        if index == 1:
            raise ValueError("no memory")
        threading.Event().wait()

    waits, failed = call_together(meet, processes=2, megabytes=8, timeout_secs=2)
    assert failed.error == "ValueError: no memory"
    assert waits.error == (
        "TimeoutError: it has not come to an end after 2 seconds; near the limit of its memory, a "
        "replica may have failed for which the others wait"
    )


def test_each_process_has_a_limit_of_its_own():
    ended = call_together(lambda index: [index, sum_of_ones(6)], processes=2, megabytes=8)
    assert [each.result for each in ended] == [[0, 6 * 2**18], [1, 6 * 2**18]]


def test_a_process_that_ends_by_itself_is_an_error():
    with pytest.raises(ProcessError, match="it ended by itself with code 3"):
        call_with_limit(lambda: os._exit(3), megabytes=8)


def test_a_tensorflow_that_keeps_to_no_limit_is_named(monkeypatch):
    monkeypatch.setattr(limited_calls, "_SERVE", f"{__name__}:serve_without_a_limit")
    with pytest.raises(UnsupportedEnvironment, match="a process with 8 MB for its tensors"):
        call_with_limit(sum_of_ones, 1, megabytes=8)


def serve_without_a_limit(folder, megabytes):
    limited_calls.memory_limit = lambda megabytes: None
    limited_calls.serve(folder, megabytes)
