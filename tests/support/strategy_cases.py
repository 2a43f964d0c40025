"""What the tasks of test_strategy_on_clusters.py run, each in a process of its own."""

import contextlib
import itertools
import json
import os
import pathlib
import pickle
import signal
import threading
import time

import tensorflow as tf
from tensorflow.python.eager import context

import distlab as dl
from distlab.strategy import c_interface, meeting, meeting_errors


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


def caught(function):
    """Returns the name and the three parts of the error that a function raises."""
    try:
        function()
    except Exception as error:
        return type(error).__name__, error.asked, error.found, error.do
    raise AssertionError("it raised nothing")


def meet():
    dl.set_seed(1)  # may come before
    strategy = dl.make_strategy("auto")
    description = dl.describe(strategy)
    return total(strategy), description.kind, description.workers, description.why


def make_others(folder):
    """One strategy after another on three workers, of which worker:1 stays away from one."""
    me = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    first = dl.make_strategy("multi_worker", heartbeat_secs=100)
    handle = context.context()._context_handle
    config = context.context().config.experimental.coordination_config
    results = {"heartbeat": config.heartbeat_timeout_in_ms, "resets": 0}
    reset = context.pywrap_tfe.TFE_EnableCollectiveOps

    def counted(*args):
        results["resets"] += 1
        return reset(*args)

    context.pywrap_tfe.TFE_EnableCollectiveOps = counted

    def meet_at(point, *others):
        c_interface.put(handle, f"{point}/{me}", "here")
        for other in others:
            while c_interface.get(handle, f"{point}/{other}", timeout_ms=1000) is None:
                pass

    # Both strategies stay usable, with sums of other shapes.
    sums = [total(first)]
    second = dl.make_strategy("multi_worker")
    results["sums"] = [*sums, total(second, 2), total(first, 3), total(second, 4)]

    # After an all-reduce that failed, all later ones fail, until there is another strategy.
    meet_at("summed", 0, 1, 2)
    context.context().abort_collective_ops(tf.errors.UNAVAILABLE, "the cable was pulled")
    try:
        total(second, 5)
    except tf.errors.UnavailableError as error:
        results["aborted"] = str(error)
    results["repaired"] = total(dl.make_strategy("multi_worker"))

    # Worker:1 makes no other while the others do, and then tries when they have given up.
    results["resets"] = 0
    if me == 1:
        meet_at("gave up", 0, 2)
        results["alone"] = caught(lambda: dl.make_strategy("multi_worker", timeout_secs=1.5))
    else:
        meet_at("tries", 0, 2)
        results["alone"] = caught(lambda: dl.make_strategy("multi_worker", timeout_secs=5))
        meet_at("gave up")
    results["resets alone"] = results["resets"]
    meet_at("tried", 0, 1, 2)
    results["together"] = total(dl.make_strategy("multi_worker"))

    # Worker:1 is asked to end while the others wait for it.
    if me == 1:
        pathlib.Path(folder, "worker-1.pickle").write_bytes(pickle.dumps(results))
        say("stays")
        threading.Event().wait()
    results["ended"] = caught(lambda: dl.make_strategy("multi_worker"))
    # Both stay until both have looked who is still there.
    pathlib.Path(folder, f"looked-{me}").touch()
    while not all(pathlib.Path(folder, f"looked-{worker}").exists() for worker in (0, 2)):
        time.sleep(0.02)
    return results


def meet_on_devices(number):
    dl.split_devices(number)
    return dl.make_strategy("auto").num_replicas_in_sync


def use_first():
    tf.constant(1)
    return caught(dl.make_strategy)


def fail_twice():
    first = caught(lambda: dl.make_strategy("multi_worker", timeout_secs=1.5))
    return first, caught(lambda: dl.make_strategy("multi_worker"))


def wait_in_vain():
    """Waits for others until it is interrupted; another thread says that it runs meanwhile."""
    threading.Thread(target=count, daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):
        dl.make_strategy("auto")
    return "interrupted"


def count():
    for _ in range(100):
        time.sleep(0.01)
    say("counted to 100")


def coordinate():
    """The same script on every task; only the coordinator and the evaluator come back."""
    partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    strategy = dl.make_strategy("auto", variable_partitioner=partitioner)
    description = dl.describe(strategy)
    if description.kind != "parameter_server":
        return description.kind, description.why
    refused = caught(lambda: dl.distribute(lambda: None, strategy))
    with strategy.scope():
        whole = tf.Variable(0.0)
        table = tf.Variable(tf.zeros([4, 2]))
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    @tf.function
    def step():
        whole.assign_add(1.0)
        for shard in table.variables:
            shard.assign_add(tf.ones_like(shard))

    for _ in range(5):
        coordinator.schedule(step)
    coordinator.join()
    values = float(whole), float(tf.reduce_sum(tf.convert_to_tensor(table)))
    return description.kind, description.why, values, [v.device for v in table.variables], refused


def interrupt_oneself():
    """Ctrl-C while the coordinator waits for its servers: when it has looked for them twice."""
    looks, look = itertools.count(1), meeting_errors.who_does_not_serve

    def interrupting(*given):
        if next(looks) == 2:
            signal.raise_signal(signal.SIGINT)
        return look(*given)

    meeting_errors.who_does_not_serve = interrupting
    with contextlib.suppress(KeyboardInterrupt):
        dl.make_strategy("parameter_server", timeout_secs=3600)
    return "interrupted"


def coordinate_in_vain():
    """The first and the second error, with an operation between them."""
    first = caught(lambda: dl.make_strategy("parameter_server", timeout_secs=1))
    number = float(tf.reduce_sum(tf.ones(3)))
    return first, number, caught(lambda: dl.make_strategy("parameter_server"))


def serve_alone():
    """A TensorFlow server at this task's address that knows of no cluster."""
    config = json.loads(os.environ["TF_CONFIG"])
    address = config["cluster"]["worker"][config["task"]["index"]]
    server = tf.distribute.Server({"worker": [address]}, job_name="worker", task_index=0)
    say(f"serves {server.target}")
    threading.Event().wait()


def fail_late():
    """Says so as soon as the leader knows of this task, then waits until it fails."""
    put = c_interface.put

    def announced(handle, key, value):
        put(handle, key, value)
        say("joined")

    c_interface.put = announced
    return caught(lambda: dl.make_strategy("multi_worker"))


def give_up_and_stay():
    """As in a notebook: the error is seen, and the process goes on."""
    caught(lambda: dl.make_strategy("multi_worker", timeout_secs=0.5))
    say("gave up")
    threading.Event().wait()


def come_late():
    meeting._LAST_WORDS_SECS = 1.0
    return caught(lambda: dl.make_strategy("multi_worker", timeout_secs=2))
