"""A function in a process of its own: what it returns, raises and prints; and how it is killed."""

import os
import re
import signal
import sys
import threading

import numpy as np
import pytest

from distlab.coursework.process_calls import call_in_process
from distlab.errors import InvalidArgument, UnsupportedEnvironment
from distlab.results.failures import FailureKind, failure_of


def failure_in_process(function, *args, **options):
    with pytest.raises(Exception) as caught:  # of whatever name it has there
        call_in_process(function, *args, **options)
    return failure_of(caught.value, function)


def test_a_result_comes_back_plain_from_another_process():
    ended = call_in_process(lambda x: {"double": 2 * x, "pid": os.getpid()}, np.arange(3))
    assert ended.code == 0
    np.testing.assert_array_equal(ended.result["double"], [0, 2, 4])
    assert ended.result["pid"] != os.getpid()


def test_tensorflow_is_not_there_unless_asked_for():
    assert call_in_process(lambda: "tensorflow" in sys.modules).result is False


def test_what_is_printed_there_is_printed_here(capsys):
    call_in_process(lambda: sys.stdout.write("there\n"))
    assert capsys.readouterr().out == "there\n"


def test_a_job_gets_the_function():
    assert call_in_process(lambda x: x + 1, 5, job=twice).result == [6, 7]


def twice(function, x):
    return [function(x), function(x + 1)]


def test_an_error_comes_with_the_learners_line():
    def divide(x):
        return x // 0

    failure = failure_in_process(divide, 1)
    assert failure.kind is FailureKind.ERROR
    assert failure.error.startswith("ZeroDivisionError")
    assert failure.lines[-1].endswith("in divide: return x // 0")


def test_a_stub_is_not_started():
    def stub():
        raise NotImplementedError("your code here")

    assert failure_in_process(stub).kind is FailureKind.NOT_STARTED


@pytest.mark.parametrize("code", [0, 3, 143])
def test_a_process_may_end_itself(code):
    ended = call_in_process(sys.exit, code)
    assert (ended.code, ended.result) == (code, None)


def test_a_signal_that_ends_it_is_told():
    ended = call_in_process(lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert ended.code == -signal.SIGKILL


def test_a_call_without_an_end_is_stopped():
    failure = failure_in_process(lambda: threading.Event().wait(), timeout_secs=1)
    late = r"TimeoutError: it has not come to an end after [1-4] seconds"  # on a busy machine more
    assert re.fullmatch(late, failure.error)


def test_what_cannot_be_sent_is_told_before_anything_runs():
    lock = threading.Lock()
    with pytest.raises(InvalidArgument, match="lock"):
        call_in_process(lambda: lock)


def test_a_write_beyond_the_limit_is_the_end_and_leaves_what_was_written(tmp_path):
    file, after = tmp_path / "file", tmp_path / "after"

    def write():
        try:
            file.write_bytes(bytes(1000))
        finally:
            after.touch()

    ended = call_in_process(write, most_bytes=300)
    assert ended.code == -signal.SIGXFSZ
    assert file.stat().st_size == 300
    assert not after.exists()


def test_below_the_limit_all_is_well(tmp_path):
    ended = call_in_process((tmp_path / "file").write_bytes, bytes(300), most_bytes=300)
    assert (ended.code, ended.result) == (0, 300)


def test_the_result_may_be_longer_than_what_may_be_written():
    assert len(call_in_process(lambda: "x" * 5000, most_bytes=100).result) == 5000


def test_a_system_without_the_limit_says_so(monkeypatch):
    monkeypatch.delattr(signal, "SIGXFSZ")
    with pytest.raises(UnsupportedEnvironment, match="in the middle of a write") as refused:
        call_in_process(int, most_bytes=1)
    assert refused.value.do == "run it on Linux, macOS or WSL2"
