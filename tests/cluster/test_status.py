"""The status of a cluster whose tasks run, wait and have ended."""

import re
import sys

import pytest

from tests.support.local_tasks import all_reduce, call_in_background, wait_until


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which process computes")
def test_the_status_says_what_each_task_does_where_and_what_it_said_last(two):
    def work():
        print("a line")  # noqa: T201
        print("step <1>", end="\r")  # noqa: T201
        all_reduce(then=compute_on_1)

    def compute_on_1(index):
        while index:
            pass

    def states():
        return {task.task: task.state for task in two.status().tasks}

    result = call_in_background(two.run, work)
    wait_until(lambda: states() == {"worker:0": "waiting in TensorFlow", "worker:1": "running"})
    first, second = two.status().tasks
    assert first.place.startswith("all_reduce, line ")
    assert first.place.endswith(": total = step()")
    assert re.fullmatch(r"compute_on_1, line \d+: (while index:|pass)", second.place)
    assert first.last_line == second.last_line == "step <1>"
    status, rest = two.status(), ["last line printed", "device", "pid", "address"]
    head, row, _ = repr(status).splitlines()
    assert re.split("  +", head) == ["task", "state", "for", "where", *rest]
    assert re.match(r"worker:0 +waiting in TensorFlow +\d+ s +all_reduce, line ", row)
    assert "step &lt;1&gt;" in status._repr_html_()
    assert status._repr_html_().count("<th scope=") == 8 + 2
    two.kill("worker:0")
    result()
    ended = two.status().tasks[0]
    assert (ended.state, ended.secs, ended.place) == ("was ended by SIGKILL", None, "")
