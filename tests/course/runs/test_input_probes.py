"""Looks into input pipelines: what is counted, and what one worker of several would read."""

import pytest
import tensorflow as tf

import distlab as dl
from distlab.course.lesson_05_input_pipelines.runs import CountedCalls, pipeline_of_worker

POLICIES = ("AUTO", "FILE", "DATA", "OFF")


@pytest.fixture
def files(tmp_path):
    for number in range(4):
        lines = range(8 * number, 8 * number + 8)
        (tmp_path / f"{number}.txt").write_text("\n".join(map(str, lines)))
    return sorted(str(file) for file in tmp_path.iterdir())


def batches_of(files, policy, batch=8):
    import tensorflow as tf

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy]
    numbers = tf.data.TextLineDataset(files).map(lambda text: tf.strings.to_number(text, tf.int32))
    return numbers.batch(batch).with_options(options)


def read_on_a_real_worker(files, policies):
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    read = {}
    for policy in policies:
        data = strategy.experimental_distribute_dataset(batches_of(files, policy))
        local = strategy.experimental_local_results
        read[policy] = [local(batch)[0].numpy().tolist() for batch in data]
    return read


def test_a_worker_reads_here_what_it_reads_in_a_real_cluster(files):
    with dl.LocalCluster(workers=2) as cluster:
        real = cluster.run(read_on_a_real_worker, files, POLICIES)
    for worker in range(2):
        for policy in POLICIES:
            part = pipeline_of_worker(batches_of(files, policy), workers=2, worker=worker)
            assert [batch.numpy().tolist() for batch in part] == real[worker][policy], policy


def test_with_fewer_files_than_workers_those_with_a_file_raise_and_others_get_nothing(files):
    def part(worker):
        data = tf.data.TextLineDataset(files[:2]).batch(8)
        return list(pipeline_of_worker(data, workers=4, worker=worker))

    for worker in (0, 1):
        with pytest.raises(tf.errors.InvalidArgumentError, match="not enough for the required 4"):
            part(worker)
    assert part(2) == part(3) == []


def test_calls_are_counted_by_name_with_and_without_a_function():
    calls = CountedCalls()
    pairs = tf.data.Dataset.range(6).map(lambda n: (n, 2 * n)).map(calls.counted("seen"))
    data = pairs.map(calls.counted("added", lambda a, b: a + b), num_parallel_calls=3)
    assert [int(number) for number in data.take(4)] == [0, 3, 6, 9]
    list(data)
    assert calls["added"] >= 10
    assert calls["never"] == 0
    calls.reset()
    assert [int(number) for number in data] == [0, 3, 6, 9, 12, 15]
    assert (calls["seen"], calls["added"]) == (6, 6)
    assert pairs.element_spec == (tf.TensorSpec([], tf.int64),) * 2
