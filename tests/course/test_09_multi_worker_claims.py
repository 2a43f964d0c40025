"""What lesson 09 says of TensorFlow, and no cell of it runs: held here."""

import json
import os
import socket
import subprocess
import sys

import cloudpickle
import pytest
import tensorflow as tf

import distlab as dl
from distlab.errors import TaskFailed

# A process that gets a function is spared the import of this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

_WAITS = "import tensorflow as tf; tf.distribute.MultiWorkerMirroredStrategy()"


@pytest.fixture(scope="module")
def cluster():
    with dl.LocalCluster(workers=2) as started:
        yield started


def strategy_here():
    """A worker's strategy, made with the first call."""
    import __main__

    if not hasattr(__main__, "strategy"):
        __main__.strategy = tf.distribute.MultiWorkerMirroredStrategy()
    return __main__.strategy


def free_addresses():
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in (one, other)]


def tf_config(addresses, index):
    task = {"type": "worker", "index": index}
    return json.dumps({"cluster": {"worker": addresses}, "task": task})


def test_the_log_of_a_worker_that_waits_names_the_missing_one():
    config = tf_config(free_addresses(), 0)
    env = os.environ | {"TF_CONFIG": config, "TF_CPP_MIN_LOG_LEVEL": "0"}
    worker = subprocess.Popen(
        [sys.executable, "-c", _WAITS], env=env, stderr=subprocess.PIPE, text=True
    )
    try:
        for line in worker.stderr:
            if "Waiting for 1/2 tasks to connect" in line:
                break
        told = next(worker.stderr) + next(worker.stderr)
    finally:
        worker.kill()
        worker.communicate()
    assert "stragglers" in told
    assert "/job:worker/replica:0/task:1" in told


_READS = """
import sys
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
data = tf.data.TextLineDataset([sys.argv[1]]).batch(8)
print(len(list(strategy.experimental_distribute_dataset(data))))
"""


def test_in_a_script_the_worker_without_a_file_gets_an_error_that_hides_the_cause(tmp_path):
    file = tmp_path / "part-0.txt"
    file.write_text("\n".join(map(str, range(8))))
    addresses = free_addresses()
    scripts = [
        subprocess.Popen(
            [sys.executable, "-c", _READS, str(file)],
            env=os.environ | {"TF_CONFIG": tf_config(addresses, index)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in (0, 1)
    ]
    try:
        (_, chief), (_, other) = (script.communicate(timeout=90) for script in scripts)
    finally:
        for script in scripts:
            script.kill()
    assert "the dataset only has 1 file(s)" in chief
    assert "UnavailableError" in other
    assert "Socket closed" in other
    assert "file(s)" not in other


def only_the_chief_makes_a_variable():
    strategy = strategy_here()
    if strategy.cluster_resolver.task_id == 0:
        with strategy.scope():
            tf.Variable(1.0)


def test_a_variable_that_one_worker_makes_alone_waits(cluster):
    with pytest.raises(TimeoutError) as late:
        cluster.run(only_the_chief_makes_a_variable, timeout_secs=4)
    waits = {wait.task: wait for wait in cluster.waits(late.value)}
    cluster.restart()
    assert waits["worker:1"].is_over
    assert waits["worker:0"].code == "tf.Variable(1.0)"


def read_shuffled_files(files):
    strategy = strategy_here()  # before all else of TensorFlow
    data = tf.data.TextLineDataset(files).shuffle(32).batch(8)
    batches = strategy.experimental_distribute_dataset(data)
    local = strategy.experimental_local_results
    return [int(number) for batch in batches for number in local(batch)[0].numpy()]


def test_a_shuffle_without_a_seed_loses_nothing_where_files_are_dealt_out(cluster, tmp_path):
    for number in range(4):
        lines = (str(8 * number + place) for place in range(8))
        (tmp_path / f"part-{number}.txt").write_text("\n".join(lines))
    first, second = cluster.run(read_shuffled_files, sorted(map(str, tmp_path.glob("part-*"))))
    assert sorted(first + second) == list(range(32))
    assert first != sorted(first)


def steps_over_unequal_shares():
    strategy = strategy_here()

    def share(context):
        return tf.data.Dataset.range(21 - context.input_pipeline_id).batch(10)

    @tf.function
    def step(batch):
        return strategy.run(_sum_over_all, args=(batch,))

    data = strategy.distribute_datasets_from_function(share)
    return len([step(batch) for batch in data])


def _sum_over_all(batch):
    return tf.distribute.get_replica_context().all_reduce("SUM", tf.reduce_sum(batch))


def test_a_distributed_data_set_from_a_function_takes_equally_many_steps(cluster):
    """Worker 0 has 21 examples in batches of 10, worker 1 has 20."""
    assert cluster.run(steps_over_unequal_shares) == [3, 3]


def waits_alone():
    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=10)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    strategy.reduce("SUM", 1.0, axis=None)
    if strategy.cluster_resolver.task_id == 1:
        return "returned"
    try:
        return strategy.reduce("SUM", 1.0, axis=None)
    except tf.errors.DeadlineExceededError:
        return "DeadlineExceededError"


def test_a_collective_with_a_time_limit_raises_on_the_worker_that_waits(cluster):
    cluster.restart()  # for a strategy of its own
    results = cluster.run(waits_alone)
    cluster.restart()
    assert results == ["DeadlineExceededError", "returned"]


def reduce_my_own(shapes, types):
    strategy = strategy_here()
    me = strategy.cluster_resolver.task_id
    return strategy.reduce("SUM", tf.ones(shapes[me], types[me]), axis=None)


def test_collectives_of_different_shapes_or_types_raise(cluster):
    for shapes, types, text in (
        ([[2], [3]], ["float32", "float32"], "Shape mismatch in the collective"),
        ([[2], [2]], ["float32", "int32"], "data_type"),
    ):
        with pytest.raises(TaskFailed) as problem:
            cluster.run(reduce_my_own, shapes, types)
        cluster.restart()
        assert not isinstance(problem.value, TimeoutError)
        assert text in str(problem.value)


def sum_of_an_argument(make):
    strategy = strategy_here()

    def on_replica(x):
        return tf.distribute.get_replica_context().all_reduce("SUM", make(x))

    return float(tf.function(lambda x: strategy.run(on_replica, args=(x,)))(tf.constant(2.0)))


def unchanged(x):
    return x


def test_an_argument_of_the_step_has_no_destinations_and_its_copy_has(cluster):
    with pytest.raises(TaskFailed, match="destinations can not be empty") as failed:
        cluster.run(sum_of_an_argument, unchanged)
    assert failed.value.pitfall == "Destinations cannot be empty"
    assert cluster.run(sum_of_an_argument, tf.identity) == [4.0, 4.0]
