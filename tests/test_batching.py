import math

import pytest
import tensorflow as tf

import distlab as dl
from distlab.batching import split_batch
from distlab.errors import InvalidArgument
from distlab.training.rule.rows import share_of


def test_a_plan_says_the_batches_and_the_learning_rate():
    plan = dl.plan_batch(per_replica=64, replicas=4, base_learning_rate=1e-3, rule="linear")
    assert (plan.global_batch, plan.per_replica, plan.shares) == (256, 64, (64,) * 4)
    assert plan.learning_rate == pytest.approx(4e-3)
    kept = dl.plan_batch(global_batch=256, replicas=4, reference_batch=256)
    assert (kept.per_replica, kept.learning_rate) == (64, 1e-3)
    root = dl.plan_batch(per_replica=64, replicas=4, rule="square_root")
    assert root.learning_rate == pytest.approx(2e-3)
    assert dl.plan_batch(per_replica=64, replicas=4, rule="none").learning_rate == 1e-3
    assert dl.plan_batch(global_batch=100, replicas=3, uneven=True).shares == (34, 34, 32)
    assert dl.plan_batch(per_replica=8, replicas=4).steps(1437) == math.ceil(1437 / 32) == 45


def test_the_warm_up_climbs_from_the_one_device_rate_and_stays():
    plan = dl.plan_batch(per_replica=64, replicas=4, base_learning_rate=0.1)
    rates = [float(plan.warmup(steps=10)(step)) for step in (0, 5, 10, 1000)]
    assert rates == pytest.approx([0.1, 0.25, 0.4, 0.4])


# How a batch is cut


def pieces_seen(dataset, replicas):
    strategy = dl.make_strategy("mirrored", devices=replicas)
    for batch in strategy.experimental_distribute_dataset(dataset):
        parts = strategy.experimental_local_results(tf.nest.flatten(batch)[0])
        yield tuple(len(part) for part in parts)


def sizes_of(examples, batch):
    return [min(batch, examples - start) for start in range(0, examples, batch)]


@pytest.mark.parametrize(("batch", "examples", "replicas"), [(32, 42, 4), (7, 9, 3), (3, 4, 2)])
def test_a_batch_is_split_as_tensorflow_splits_it(batch, examples, replicas):
    pieces = list(pieces_seen(tf.data.Dataset.range(examples).batch(batch), replicas))
    assert pieces == [split_batch(size, replicas) for size in sizes_of(examples, batch)]


@pytest.mark.parametrize(("batch", "examples", "replicas"), [(32, 42, 4), (10, 23, 3)])
def test_a_batch_from_files_keeps_the_pieces_of_a_full_one(batch, examples, replicas):
    # distlab's digits are TFRecord files, so TensorFlow shards them by file.
    (digits,) = dl.load_dataset("digits", splits=[f"train[:{examples}]"], batch_size=batch)
    assert list(pieces_seen(digits, replicas)) == [
        split_batch(size, replicas, source="files", full_batch=batch)
        for size in sizes_of(examples, batch)
    ]


def test_the_three_ways_to_cut_ten_examples():
    plan = dl.plan_batch(global_batch=32, replicas=4)
    assert plan.shares_of(10) == (3, 3, 3, 1)
    assert plan.shares_of(10, source="files") == (8, 2, 0, 0)
    assert plan.shares_of(10, source="distribute") == (3, 3, 2, 2)


def test_distribute_cuts_as_equally_as_possible():
    for examples in (1, 2, 3, 10, 19):
        for replicas in (1, 3, 4):
            cuts = [
                share_of(replica, replicas, tf.constant(examples)) for replica in range(replicas)
            ]
            shares = tuple(int(end - first) for first, end in cuts)
            assert shares == split_batch(examples, replicas, source="distribute")


def test_the_auto_shard_policy_decides_how_a_batch_is_cut():
    (files,) = dl.load_dataset("digits", splits=["train[:42]"], batch_size=32)
    memory = tf.data.Dataset.range(42).batch(32)

    def last(dataset, policy):
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = policy
        return list(pieces_seen(dataset.with_options(options), 4))[-1]

    policy = tf.data.experimental.AutoShardPolicy
    assert last(files, policy.DATA) == (3, 3, 3, 1)
    assert last(memory, policy.OFF) == last(files, policy.FILE) == (8, 2, 0, 0)


def test_a_map_that_hides_the_batch_size_changes_how_a_batch_from_files_is_cut():
    (files,) = dl.load_dataset("digits", splits=["train[:42]"], batch_size=32)
    hidden = files.map(lambda images, labels: tf.strings.as_string(labels))
    assert list(pieces_seen(hidden, 4))[-1] == (3, 3, 3, 1)


# Bad input


def test_a_batch_that_cannot_be_shared_names_its_neighbours():
    with pytest.raises(InvalidArgument) as error:
        dl.plan_batch(global_batch=100, replicas=3)
    assert error.value.found == "100 examples cannot be shared equally by 3 replicas"
    assert error.value.do.startswith("take 99 or 102, or uneven=True")
    assert error.value.pitfall == "Empty shares: the last step is too short"


def test_arguments_that_cannot_be_meant_are_refused():
    no_number, two = "to do: pass a whole number of at least 1", {"replicas": 2}
    cases = [
        ({"per_replica": 0} | two, no_number),
        ({"global_batch": 0} | two, no_number),
        ({"per_replica": 8, "replicas": 0}, no_number),
        ({"per_replica": 8, "reference_batch": 0} | two, no_number),
        ({"per_replica": 8.0} | two, no_number),
        (two, "found: neither batch"),
        (
            {"per_replica": 8, "global_batch": 16} | two,
            "found: both batches",
        ),
        ({"per_replica": 8, "rule": "squareroot"} | two, "did you mean 'square_root'"),
        *(
            (
                {"per_replica": 8, "base_learning_rate": rate} | two,
                f"found: base_learning_rate={rate}\n",
            )
            for rate in (0, -1.0, math.nan)
        ),
    ]
    for arguments, text in cases:
        with pytest.raises(InvalidArgument) as error:
            dl.plan_batch(**arguments)
        assert text in str(error.value), arguments
    with pytest.raises(InvalidArgument, match=r"warmup\(steps=0\)"):
        dl.plan_batch(per_replica=8, replicas=2).warmup(steps=0)
    with pytest.raises(InvalidArgument, match="did you mean 'files'"):
        split_batch(10, 4, source="file")
