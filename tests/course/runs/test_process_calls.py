"""A function in a process of its own: what it returns, raises and prints; and how it is killed."""

import os
import signal
import sys
import threading

import cloudpickle
import numpy as np
import pytest

from distlab.course.results.failures import FailureKind, failure_of
from distlab.course.runs.process_calls import call_in_process
from distlab.course.runs.script_runs import launch_here
from distlab.errors import InvalidArgument

# A process that gets a function is spared the import of this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def failure_in_process(function, *args, **options):
    with pytest.raises(Exception) as caught:  # of whatever name it has there
        call_in_process(function, *args, **options)
    return failure_of(caught.value, function)


def test_a_result_comes_back_plain_from_another_process_without_tensorflow(capsys):
    def twice(function, x):
        sys.stdout.write("printed there\n")
        return {"double": function(x), "pid": os.getpid(), "loaded": "tensorflow" in sys.modules}

    ended = call_in_process(lambda x: 2 * x, np.arange(3), job=twice)
    assert (ended.code, ended.result["loaded"]) == (0, False)
    np.testing.assert_array_equal(ended.result["double"], [0, 2, 4])
    assert ended.result["pid"] != os.getpid()
    assert capsys.readouterr().out == "printed there\n"


def test_an_error_comes_with_the_learners_line_and_a_stub_is_not_started():
    def divide(x):
        return x // 0

    def stub():
        raise NotImplementedError("your code here")

    failure = failure_in_process(divide, 1)
    assert failure.kind is FailureKind.ERROR
    assert failure.error.startswith("ZeroDivisionError")
    assert failure.lines[-1].endswith("in divide: return x // 0")
    assert failure_in_process(stub).kind is FailureKind.NOT_STARTED


def test_a_call_without_an_end_is_stopped():
    failure = failure_in_process(lambda: threading.Event().wait(), timeout_secs=1)
    assert failure.error == "TimeoutError: it has not come to an end after 1 seconds"


def test_what_cannot_be_sent_is_told_before_anything_runs():
    lock = threading.Lock()
    with pytest.raises(InvalidArgument, match="lock"):
        call_in_process(lambda: lock)


def test_a_write_beyond_the_limit_is_the_end_and_leaves_what_was_written(tmp_path):
    file, after = tmp_path / "file", tmp_path / "after"

    def write(length):
        try:
            file.write_bytes(bytes(length))
        finally:
            after.touch()
        return "x" * 5000  # what comes back may be longer

    ended = call_in_process(write, 1000, most_bytes=300)
    assert ended.code == -signal.SIGXFSZ
    assert file.stat().st_size == 300
    assert not after.exists()
    ended = call_in_process(write, 300, most_bytes=300)
    assert (ended.code, len(ended.result)) == (0, 5000)


_SCRIPT = """
import json, os, sys
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
print("I am", index)
sys.exit(3 * index)
"""


def test_a_launched_script_gives_its_lines_sorted_and_the_exit_code_of_the_first_failure(tmp_path):
    (tmp_path / "script.py").write_text(_SCRIPT)
    launched = launch_here("--workers", "2", "script.py", folder=tmp_path)
    assert launched.exit_code == 3
    lines = launched.lines_with("I am")
    assert [line.split("I am ")[1] for line in lines] == ["0", "1"]
    assert ["worker:0" in lines[0], "worker:1" in lines[1]] == [True, True]
    assert launched.lines_with("nothing of the kind") == []
