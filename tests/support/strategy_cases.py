"""What the tasks of test_strategy_on_clusters.py run, each in a process of its own."""

import contextlib
import json
import os
import signal
import threading
import time

import tensorflow as tf
from tensorflow.python.eager import context

import distlab as dl
from distlab.cluster.probing import probe
from distlab.strategy import c_interface, meeting


def say(text):
    """Writes a line to this task's log."""
    os.write(1, f"{text}\n".encode())


def total(strategy, values=1):
    """The sum of ones from every replica."""

    @tf.function
    def step():
        return strategy.run(
            lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.ones([values]))
        )

    return float(strategy.experimental_local_results(step())[0][-1])


def meet():
    dl.set_seed(1)  # may come before
    strategy = dl.make_strategy("auto")
    first = total(strategy)
    again = dl.make_strategy("multi_worker")
    description = dl.describe(strategy)
    return first, total(again), description.kind, description.workers, description.why


def compute_with_both():
    """Uses the first strategy before and after the second one, with sums of other shapes."""
    first = dl.make_strategy("multi_worker")
    sums = [total(first)]
    second = dl.make_strategy("multi_worker")
    return [*sums, total(second, values=2), total(first, values=3), total(second, values=4)]


def compute_after_an_error():
    """As after an all-reduce that failed, all later ones fail."""
    strategy = dl.make_strategy("multi_worker")
    total(strategy)
    context.context().abort_collective_ops(tf.errors.UNAVAILABLE, "the cable was pulled")
    try:
        total(strategy, values=2)
    except tf.errors.UnavailableError as error:
        message = str(error)
    return message, total(dl.make_strategy("multi_worker"))


def make_another_alone():
    """Tries in vain, tells the other worker so, and tries again."""
    dl.make_strategy("multi_worker")
    error = caught(lambda: dl.make_strategy("multi_worker", timeout_secs=1.5))
    c_interface.put(context.context()._context_handle, "gave up", "yes")
    return error, total(dl.make_strategy("multi_worker"))


def make_another_late():
    dl.make_strategy("multi_worker")
    c_interface.get(context.context()._context_handle, "gave up", timeout_ms=60_000)
    return total(dl.make_strategy("multi_worker"))


def make_another_after_the_others_end():
    dl.make_strategy("multi_worker")
    say("made")
    started = time.monotonic()
    error = caught(lambda: dl.make_strategy("multi_worker"))
    return error, time.monotonic() - started


def make_one_and_wait():
    dl.make_strategy("multi_worker")
    say("made")
    threading.Event().wait()


def meet_on_devices(number):
    dl.split_devices(number)
    strategy = dl.make_strategy("auto")
    description = dl.describe(strategy)
    return strategy.num_replicas_in_sync, total(strategy), description.devices


def use_first():
    tf.constant(1)
    return caught(dl.make_strategy)


def fail_twice():
    started = time.monotonic()
    first = caught(lambda: dl.make_strategy("multi_worker", timeout_secs=1.5))
    secs = time.monotonic() - started
    return first, secs, caught(lambda: dl.make_strategy("multi_worker"))


def caught(function):
    """Returns the name and the three parts of the error that a function raises."""
    try:
        function()
    except Exception as error:
        return type(error).__name__, error.asked, error.found, error.do
    raise AssertionError("it raised nothing")


def wait_in_vain():
    """Waits for others until it is interrupted; another thread says that it runs meanwhile."""
    threading.Thread(target=count, daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):
        dl.make_strategy("auto", timeout_secs=60)
    return "interrupted"


def count():
    for _ in range(100):
        time.sleep(0.01)
    say("counted to 100")


def outlive():
    """Makes the strategy, says so, and sums until another task is silent."""
    strategy = dl.make_strategy("multi_worker", heartbeat_secs=2)
    say("made")
    last = time.monotonic()
    try:
        while True:
            total(strategy)
            last = time.monotonic()
    except tf.errors.OpError:
        return time.monotonic() - last


def join_two_ways():
    """worker:0 takes the strategy of distlab, worker:1 TensorFlow's own."""
    meeting._LAST_WORDS_SECS = 1.0
    if '"index": 0' in os.environ["TF_CONFIG"]:
        return caught(lambda: dl.make_strategy("multi_worker", timeout_secs=5))
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    leader = strategy.cluster_resolver.cluster_spec().task_address("worker", 0)
    while probe(leader).state == "answers":  # stays until worker:0 has looked who is there
        time.sleep(0.05)
    return None


def coordinate(kind="auto"):
    """The same script on every task; only the coordinator and the evaluator come back."""
    partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    strategy = dl.make_strategy(kind, variable_partitioner=partitioner)
    description = dl.describe(strategy)
    if description.kind != "parameter_server":
        return description.kind, description.why
    with strategy.scope():
        whole = tf.Variable(0.0)
        table = tf.Variable(tf.zeros([4, 2]))
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    @tf.function
    def step():
        whole.assign_add(1.0)

    for _ in range(5):
        coordinator.schedule(step)
    coordinator.join()
    return description.kind, description.why, float(whole), [v.device for v in table.variables]


def interrupt_oneself():
    """Ctrl-C while the coordinator waits for its servers."""
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    started = time.monotonic()
    with contextlib.suppress(KeyboardInterrupt):
        dl.make_strategy("parameter_server")
    return time.monotonic() - started


def coordinate_in_vain(timeout_secs):
    """The first and the second error, or what comes instead, with an operation between them."""

    def coordinate():
        dl.make_strategy("parameter_server", timeout_secs=timeout_secs)

    try:
        first = caught(coordinate)
    except KeyboardInterrupt:
        first = "interrupted"
    return first, float(tf.reduce_sum(tf.ones(3))), caught(coordinate)


def serve_alone():
    """A TensorFlow server at this task's address that knows of no cluster."""
    config = json.loads(os.environ["TF_CONFIG"])
    address = config["cluster"]["worker"][config["task"]["index"]]
    server = tf.distribute.Server({"worker": [address]}, job_name="worker", task_index=0)
    say(f"serves {server.target}")
    threading.Event().wait()


def meet_alone():
    strategy = dl.make_strategy("multi_worker")
    return dl.describe(dl.make_strategy()).kind, dl.describe(strategy).kind, total(strategy)


def fail_late(does_tensorflow_notice):
    """Says so as soon as the leader knows of this task, then waits until it fails."""
    if not does_tensorflow_notice:  # as where the leader ends before the first barrier
        meeting.Call.ended = lambda call, secs: time.sleep(secs)
    put = c_interface.put

    def told(handle, key, value):
        put(handle, key, value)
        say("joined")

    c_interface.put = told
    return caught(lambda: dl.make_strategy("multi_worker", timeout_secs=60))


def find_the_leader():
    """Returns what the leader's port says when TensorFlow is asked to join it."""
    meeting._FIND_LEADER_SECS = 60.0
    leader, found = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"][0], []
    look, join = meeting.probe, c_interface.enable_collective_ops

    def looked(address, **options):
        say("looks for the leader")
        return look(address, **options)

    def joined(handle, server):
        found.append(look(leader).state)
        join(handle, server)

    meeting.probe, c_interface.enable_collective_ops = looked, joined
    dl.make_strategy("multi_worker")
    return found


def give_up_and_stay():
    """As in a notebook: the error is seen, and the process goes on."""
    caught(lambda: dl.make_strategy("multi_worker", timeout_secs=0.5))
    say("gave up")
    threading.Event().wait()


def come_late():
    meeting._LAST_WORDS_SECS = 1.0
    return caught(lambda: dl.make_strategy("multi_worker", timeout_secs=2))
