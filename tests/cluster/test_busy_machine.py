"""Clusters outlive a machine that does something else, and what hangs is still ended."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

import distlab as dl
from distlab.cluster import deadline
from distlab.cluster.deadline import Deadline
from distlab.errors import TaskFailed, TaskTimeout
from tests.support.busy_core import busy_core
from tests.support.local_tasks import all_reduce, my_index, wait_until

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells how long a process waits for a core"
)


@pytest.fixture
def process():
    """Starts code in a Python of its own, and returns it once it has printed a line."""
    started = []

    def start(code):
        command = [sys.executable, "-c", code]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True))
        started[-1].stdout.readline()
        return psutil.Process(started[-1].pid)

    yield start
    for each in started:
        each.kill()
        each.wait()
        each.stdout.close()


def test_a_deadline_counts_what_a_process_sleeps_or_computes_and_not_what_it_waits(process):
    computes = "print(flush=True)\nwhile True: pass"
    threads = (
        "import threading\nthreading.Thread(target=lambda: exec('while True: pass')).start()\n"
    )
    asleep = process("import time\nprint(flush=True)\ntime.sleep(3600)")
    with busy_core() as core:
        pin = f"import os\nos.sched_setaffinity(0, {{{core}}})\n"
        starved = [process(pin + computes), process(pin + threads + "print(flush=True)")]
        before = [sum(each.cpu_times()[:2]) for each in starved]
        deadlines = [Deadline(0.5, lambda each=each: [each.pid]) for each in [asleep, *starved]]
        both, begun = Deadline(0.5, lambda: [asleep.pid, starved[0].pid]), time.monotonic()
        wait_until(deadlines[0].has_passed)
        assert not any(each.has_passed() for each in (*deadlines[1:], both))
        for each, limit, had in zip(starved, deadlines[1:], before, strict=True):
            wait_until(limit.has_passed)
            assert sum(each.cpu_times()[:2]) - had > 0.3  # and not of the clock's seconds
        wait_until(both.has_passed)
        assert time.monotonic() - begun > 1.0
    wait_until(Deadline(0.1, lambda: [os.getpid()]).has_passed)  # of the process that asks
    assert Deadline(0.0, list).has_passed() and not Deadline(3600.0, list).has_passed()


def test_threads_that_crowd_each_other_out_win_no_time(process):
    """Or an answer that is graded could have as much of it as it likes."""
    core = min(os.sched_getaffinity(0))
    crowd = process(
        f"import hashlib, os, threading\nos.sched_setaffinity(0, {{{core}}})\n"
        "compute = lambda: hashlib.pbkdf2_hmac('sha512', b'', b'', 10**9)\n"  # without the GIL
        "for _ in range(16):\n    threading.Thread(target=compute).start()\nprint(flush=True)"
    )
    before, limit = sum(crowd.cpu_times()[:2]), Deadline(0.5, lambda: [crowd.pid])
    wait_until(limit.has_passed)
    assert sum(crowd.cpu_times()[:2]) - before < 2.0  # of its own time; 8 s if waits counted


def test_where_no_process_can_be_asked_the_load_of_the_machine_stretches_a_limit(monkeypatch):
    now = 0.0
    monkeypatch.setattr(deadline, "_tells_of_threads", lambda: False)
    monkeypatch.setattr(deadline.time, "monotonic", lambda: now)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    for load, limit in ((0.0, 10.0), (2.0, 10.0), (6.0, 30.0), (400.0, 2000.0)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        now = 0.0
        ten = Deadline(10.0, list)
        now = limit - 0.1
        assert not ten.has_passed(), load
        now = limit + 0.1
        assert ten.has_passed(), load
    monkeypatch.delattr(os, "getloadavg")  # a system that tells no load
    now = 0.0
    ten = Deadline(10.0, list)
    now = 10.1
    assert ten.has_passed()


def heed_slowly(core, folder):
    """Worker 1 computes for a second of its own when it is interrupted."""
    from pathlib import Path

    if my_index() == 0:
        wait_until(Path(folder, "waits").exists)
        raise ValueError("boom")
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        Path(folder, "waits").touch()
        time.sleep(3600)
    finally:
        end = time.thread_time() + 1.0
        while time.thread_time() < end:
            pass
        os.sched_setaffinity(0, cores)


def test_a_worker_is_given_the_time_to_heed_an_interrupt_and_one_that_hangs_is_not(
    shared, tmp_path
):
    shared.run(all_reduce)
    with busy_core() as core:
        with pytest.raises(TaskFailed, match="worker:0 raised ValueError: boom"):
            shared.run(heed_slowly, core, str(tmp_path))
        assert [task.state for task in shared.status().tasks] == ["idle", "idle"]
        assert shared.run(my_index) == [0, 1]

        def hang(index):
            os.sched_setaffinity(0, {core})
            if index == 1:
                raise ValueError("boom")

        with pytest.raises(TaskFailed, match="worker:1 raised ValueError: boom"):
            shared.run(lambda: all_reduce(then=hang))
    # It waits in an all-reduce, where no interrupt reaches it.
    assert [task.state for task in shared.status().tasks] == ["was ended by SIGKILL", "idle"]
    shared.restart()


def compute(core, secs):
    os.sched_setaffinity(0, {core})
    end = time.thread_time() + secs
    while time.thread_time() < end:
        pass
    return secs


def test_a_time_limit_is_for_what_hangs_and_not_for_what_waits_for_a_core(shared):
    with busy_core() as core:
        assert shared.run(compute, core, 1.0, tasks="worker:1", timeout_secs=2) == [1.0]
        with pytest.raises(TaskTimeout, match="worker:1 did not finish"):
            shared.run(compute, core, 3600, tasks="worker:1", timeout_secs=0.2)
        with pytest.raises(TaskTimeout, match="worker:1 did not finish"):
            shared.run(time.sleep, 3600, tasks="worker:1", timeout_secs=0.2)


STRATEGIES = (
    "import distlab as dl\nstrategy = dl.make_strategy('multi_worker')",
    "import tensorflow as tf\nstrategy = tf.distribute.MultiWorkerMirroredStrategy()",
)
STILL_SECS = 15  # longer than the 10 s that TensorFlow gives a silent worker


def test_an_idle_worker_for_which_the_machine_has_no_time_is_not_given_up():
    """One that is stopped stands for one that no core runs: neither sends a heartbeat."""
    with contextlib.ExitStack() as stack:
        add = "print(float(strategy.reduce('SUM', 1.0, axis=None)))"
        clusters, stopped = [], []
        for code, victim in itertools.product(STRATEGIES, (0, 1)):
            clusters.append(stack.enter_context(dl.LocalCluster(workers=2)))
            clusters[-1].execute(f"{code}\n{add}")
            stopped.append(clusters[-1].status().tasks[victim].pid)
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in stopped:
                os.kill(pid, number)
            time.sleep(STILL_SECS if number == signal.SIGSTOP else 0)
        for cluster in clusters:
            outputs = cluster.execute(add)
            assert [lines[0]["text"] for lines in outputs.values()] == ["2.0\n"] * 2
            assert [task.state for task in cluster.status().tasks] == ["idle", "idle"]
