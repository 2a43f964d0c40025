"""What tests of clusters run on the tasks, and how they wait for them."""

import os
import signal
import socket
import threading
import time
import types
from pathlib import Path

from tests.support.limits import HANG_SECS


def my_index():
    import json

    return json.loads(os.environ["TF_CONFIG"])["task"]["index"]


def all_reduce(value=1.0, *, then=None):
    """Sums a value over the workers, then does something to one of them, then sums it again."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    @tf.function
    def step():
        return strategy.run(
            lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(value))
        )

    total = step()
    if then is not None:
        then(my_index())
        total = step()
    return total


def fail_on_1(index):
    if index == 1:
        raise ValueError("boom")


def die_on_1(index):
    if index == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def wait_on_1(index):
    if index == 1:
        threading.Event().wait()


def sleep_forever(folder):
    Path(folder, str(my_index())).touch()
    threading.Event().wait()


def wait_until(condition, timeout_secs=HANG_SECS):
    deadline = time.monotonic() + timeout_secs
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)  # between looks at other processes


def late_once(condition):
    """Stands for the module `time`: hours have passed as soon as a condition holds."""
    late = is_asked = False

    def monotonic():
        nonlocal late, is_asked
        if not (late or is_asked):  # what is asked may look at the time, too
            is_asked = True
            late, is_asked = bool(condition()), False
        return time.monotonic() + 10_000 * late

    return types.SimpleNamespace(monotonic=monotonic, sleep=time.sleep)


def all_are_in(cluster, places):
    """Whether the stack of each task of a `LocalCluster` shows a text."""
    return all(text in cluster.stacks(task) for task, text in places.items())


def call_in_background(function, *args, **kwargs):
    """Returns a function that waits for the result."""
    done = []

    def call():
        try:
            done.append(function(*args, **kwargs))
        except BaseException as problem:
            done.append(problem)

    thread = threading.Thread(target=call)
    thread.start()

    def result():
        thread.join(HANG_SECS)
        return done[0]

    return result


def listener_on(address):
    listening = socket.socket()
    host, port = address.split(":")
    listening.bind((host, int(port)))
    listening.listen()
    return listening
