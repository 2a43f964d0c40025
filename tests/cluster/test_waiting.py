"""Where tasks wait when time is over: read from real stacks of real workers that hang."""

import time
from pathlib import Path

import pytest

import distlab as dl
from distlab.cluster.local.waiting import Wait, read_waits
from distlab.errors import TaskTimeout


@pytest.fixture(scope="module")
def cluster():
    with dl.LocalCluster(workers=2) as cluster:
        yield cluster


def chief_reduces_alone(other_waits):
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    if strategy.cluster_resolver.task_id == 0:
        strategy.reduce("SUM", 1.0, axis=None)
    while other_waits:  # asks nothing else, so that its stack always shows this one line
        time.sleep(0.05)


def waits_of(cluster, other_waits):
    cluster.restart(cluster.tasks)
    with pytest.raises(TaskTimeout) as late:
        cluster.run(chief_reduces_alone, other_waits, timeout_secs=3)
    return cluster.waits(late.value)


def line_of(text):
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip() == text)


def test_a_task_in_a_collective_and_one_in_a_loop_are_told_with_their_lines(cluster):
    code = 'strategy.reduce("SUM", 1.0, axis=None)'
    first, second = waits_of(cluster, True)
    assert first == Wait(
        task="worker:0",
        function="chief_reduces_alone",
        file=__file__,
        line=line_of(code),
        code=code,
        inside="reduce",
    )
    line = line_of("time.sleep(0.05)")
    assert str(second) == (f"worker:1 waits in chief_reduces_alone, line {line}: time.sleep(0.05)")


def test_a_task_that_has_finished_is_told_as_such(cluster):
    waiting, finished = waits_of(cluster, False)
    assert not waiting.is_over
    assert (finished.is_over, str(finished)) == (True, "worker:1 has finished")


def test_a_stack_without_the_readers_code_says_no_more_than_that_the_task_waits():
    error = TaskTimeout(asked="", found="", do="", task="worker:0", traceback="worker:0\n\n")
    assert list(map(str, read_waits(error, ["worker:0"]))) == ["worker:0 waits"]
