"""What the tasks of test_strategy_on_clusters.py run, each in a process of its own."""

import contextlib
import json
import os
import threading
import time

import tensorflow as tf
from tensorflow.python.eager import context

import distlab as dl
from distlab.strategy import clusters, rendezvous


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


def meet_with_a_proxy():
    """As a task that nobody started with the hosts of its cluster in `no_grpc_proxy`."""
    assert os.environ.pop("no_grpc_proxy") == "example.org,127.0.0.1"
    return meet()


def ask_again():
    """The strategy of a worker that asks twice, its heartbeat, and what another cluster brings."""
    first = dl.make_strategy("multi_worker", heartbeat_secs=100)
    second = dl.make_strategy("auto")
    sums = [total(first), total(second, 2), total(first, 3)]
    config = context.context().config.experimental.coordination_config
    described = json.loads(os.environ["TF_CONFIG"])
    described["cluster"]["worker"].append("127.0.0.1:1")
    os.environ["TF_CONFIG"] = json.dumps(described)
    refused = caught(lambda: dl.make_strategy("multi_worker"))
    return second is first, sums, config.heartbeat_timeout_in_ms, refused


def stay():
    """A worker that has joined, and does not go on until it is asked to end."""
    dl.make_strategy("multi_worker")
    say("stays")
    threading.Event().wait()


def meet_on_devices(number):
    dl.split_devices(number)
    return dl.make_strategy("auto").num_replicas_in_sync


def use_first():
    tf.constant(1)
    return caught(dl.make_strategy)


def fail_twice():
    return [caught(lambda: dl.make_strategy("multi_worker", timeout_secs=1.5)) for _ in range(2)]


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


def serve_alone():
    """A TensorFlow server at this task's address that knows of no cluster."""
    config = json.loads(os.environ["TF_CONFIG"])
    address = config["cluster"]["worker"][config["task"]["index"]]
    server = tf.distribute.Server({"worker": [address]}, job_name="worker", task_index=0)
    say(f"serves {server.target}")
    threading.Event().wait()


def fail_late():
    """Says so as soon as the leader has answered, then waits until it fails."""
    receive = rendezvous._Connection.receive

    def announced(connection):
        messages = receive(connection)
        if any("missing" in message for message in messages):
            say("joined")
        return messages

    rendezvous._Connection.receive = announced
    return caught(lambda: dl.make_strategy("multi_worker"))


def die_when_all_are_there():
    meet_others = clusters.meet

    def meet_and_die(*args, **options):
        meet_others(*args, **options)
        os._exit(3)

    clusters.meet = meet_and_die
    dl.make_strategy()


def connect_within(secs):
    clusters.SERVER_SECS = secs
    dl.make_strategy()
