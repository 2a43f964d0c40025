import functools
import math

import numpy as np
import pytest
import tensorflow as tf

from distlab.batching import split_batch
from distlab.devices import split_devices
from distlab.grading.registry import checks_of
from distlab.strategy.making import make_strategy
from tests.lessons.support import (
    assert_mistake_is_caught,
    assert_solution_passes,
    assert_stub_earns_nothing,
    load_solution,
    load_stub,
    problems_of,
)

STEM = "00_start_here"
SLICES, BRIGHTNESS, WHO_SAW = checks_of(STEM)


@functools.cache
def solution():
    return load_solution(STEM)


@functools.cache
def stub():
    return load_stub(STEM)


@pytest.mark.parametrize("check", checks_of(STEM), ids=lambda check: check.name)
def test_each_check_is_complete(check):
    assert problems_of(check) == []


@pytest.mark.parametrize("check", checks_of(STEM), ids=lambda check: check.name)
def test_solution_passes(check):
    assert_solution_passes(check, solution()[check.function])


@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_what_the_judges_expect_is_what_tensorflow_does(replicas):
    strategy = make_strategy("mirrored", devices=split_devices(4)[:replicas])
    for batch in (1, 3, 5, 7, 10, 13):
        examples = 2 * batch + batch // 2
        dataset = tf.data.Dataset.range(examples).batch(batch)
        for step, shared in enumerate(strategy.experimental_distribute_dataset(dataset)):
            counts = tuple(len(share) for share in strategy.experimental_local_results(shared))
            assert counts == split_batch(min(batch, examples - step * batch), replicas)


# Task 1: slices


def split_by_slicing(examples, replicas):
    piece = -(-examples // replicas)
    return np.array([len(range(examples)[i * piece : (i + 1) * piece]) for i in range(replicas)])


def split_by_taking(examples, replicas):
    piece, shares = math.ceil(examples / replicas), []
    for _ in range(replicas):
        shares.append(min(piece, examples))
        examples -= shares[-1]
    return tuple(shares)


@pytest.mark.parametrize("answer", [split_by_slicing, split_by_taking])
def test_other_right_splits_pass(answer):
    assert_solution_passes(SLICES, answer)


def test_stub_of_slices_earns_nothing():
    assert_stub_earns_nothing(SLICES, stub()["split"])


def even_split(examples, replicas):
    return [len(part) for part in np.array_split(np.arange(examples), replicas)]


def negative_share(examples, replicas):
    piece = math.ceil(examples / replicas)
    return [piece] * (replicas - 1) + [examples - piece * (replicas - 1)]


def replica_left_out(examples, replicas):
    piece = math.ceil(examples / replicas)
    return [min(piece, examples - start) for start in range(0, examples, piece)]


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (even_split, "even_split"),
        (lambda examples, replicas: [examples] * replicas, "whole_batch_each"),
        (negative_share, "negative_share"),
        (replica_left_out, "replica_left_out"),
    ],
)
def test_mistakes_of_slices_are_named(answer, mistake):
    assert_mistake_is_caught(SLICES, answer, mistake)


def test_a_wrong_split_is_shown_with_its_case():
    report = assert_mistake_is_caught(SLICES, even_split, "even_split")
    assert 0 < report.earned < SLICES.points
    assert "split(" in repr(report)


# Task 2: brightness


@tf.function
def look(images):
    return tf.shape(images)[0], tf.reduce_sum(images)


def brightness_of(strategy, batches, *, total_of):
    images, total = 0, 0.0
    for batch in batches:
        counts, sums = strategy.run(look, args=(batch,))
        images = images + np.array(strategy.experimental_local_results(counts))
        total += float(total_of(strategy, sums))
    return {"images": images.tolist(), "total": total}


def summed(strategy, sums):
    return strategy.reduce("SUM", sums, axis=None)


def averaged(strategy, sums):
    return strategy.reduce("MEAN", sums, axis=None)


def first_replica(strategy, sums):
    return strategy.experimental_local_results(sums)[0]


def divided(strategy, sums):
    return summed(strategy, sums) / strategy.num_replicas_in_sync


def summed_by_hand(strategy, sums):
    return np.sum(strategy.experimental_local_results(sums))


def cut_by_hand(strategy, dataset):
    replicas = strategy.num_replicas_in_sync
    for batch in dataset:
        shares = tf.split(batch, split_batch(len(batch), replicas))
        yield strategy.experimental_distribute_values_from_function(
            lambda context, shares=shares: shares[context.replica_id_in_sync_group]
        )


def distributed(strategy, dataset):
    return strategy.experimental_distribute_dataset(dataset)


def not_distributed(strategy, dataset):
    return dataset


@pytest.mark.parametrize(
    ("share", "total_of"), [(cut_by_hand, summed), (distributed, summed_by_hand)]
)
def test_other_right_cures_of_brightness_pass(share, total_of):
    def answer(strategy, dataset):
        return brightness_of(strategy, share(strategy, dataset), total_of=total_of)

    assert_solution_passes(BRIGHTNESS, answer, seeds=range(5))


def test_stub_of_brightness_earns_nothing_and_is_the_bug():
    assert_stub_earns_nothing(BRIGHTNESS, stub()["brightness"], status="not yet")
    assert_mistake_is_caught(BRIGHTNESS, stub()["brightness"], "whole_batch_to_run")


@pytest.mark.parametrize(
    ("share", "total_of", "mistake"),
    [
        (not_distributed, summed, "whole_batch_to_run"),
        (not_distributed, averaged, "mean_hides_it"),
        (not_distributed, divided, "mean_hides_it"),
        (not_distributed, first_replica, "mean_hides_it"),
        (distributed, first_replica, "one_replica_only"),
        (distributed, averaged, "mean_for_sum"),
    ],
)
def test_mistakes_of_brightness_are_named(share, total_of, mistake):
    def answer(strategy, dataset):
        return brightness_of(strategy, share(strategy, dataset), total_of=total_of)

    assert_mistake_is_caught(BRIGHTNESS, answer, mistake)


# Task 3: who_saw


@tf.function
def copied(numbers):
    return tf.identity(numbers)  # the same tensor from every replica would come back as one


def who_saw_through_run(strategy, dataset):
    seen = [[] for _ in range(strategy.num_replicas_in_sync)]
    for batch in strategy.experimental_distribute_dataset(dataset):
        results = strategy.experimental_local_results(strategy.run(copied, args=(batch,)))
        for replica, share in enumerate(results):
            seen[replica] += list(share)  # tensors, not yet numbers
    return seen


def who_saw_by_columns(strategy, dataset):
    rounds = [
        strategy.experimental_local_results(batch)
        for batch in strategy.experimental_distribute_dataset(dataset)
    ]
    return [tf.concat(shares, axis=0) for shares in zip(*rounds, strict=True)]


@pytest.mark.parametrize("answer", [who_saw_through_run, who_saw_by_columns])
def test_other_right_ways_to_see_pass(answer):
    assert_solution_passes(WHO_SAW, answer, seeds=range(5))


def test_stub_of_who_saw_earns_nothing():
    assert_stub_earns_nothing(WHO_SAW, stub()["who_saw"])


def last_batch_dropped(strategy, dataset):
    full = len(next(iter(dataset)))
    return who_saw_by_columns(strategy, dataset.unbatch().batch(full, drop_remainder=True))


def only_last_batch(strategy, dataset):
    for batch in strategy.experimental_distribute_dataset(dataset):
        seen = [share.numpy() for share in strategy.experimental_local_results(batch)]
    return seen


def every_replica_saw_all(strategy, dataset):
    seen = [[] for _ in range(strategy.num_replicas_in_sync)]
    for batch in dataset:
        results = strategy.experimental_local_results(strategy.run(copied, args=(batch,)))
        for numbers, share in zip(seen, results, strict=True):
            numbers.extend(share.numpy())
    return seen


def one_share_only(strategy, dataset):
    seen = [[] for _ in range(strategy.num_replicas_in_sync)]
    for batch in dataset:  # of an ordinary tensor there is one "share"
        for replica, share in enumerate(strategy.experimental_local_results(batch)):
            seen[replica].extend(share.numpy())
    return seen


def order_lost(strategy, dataset):
    return [sorted(numbers.numpy()) for numbers in who_saw_by_columns(strategy, dataset)]


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (last_batch_dropped, "last_batch_dropped"),
        (only_last_batch, "only_last_batch"),
        (every_replica_saw_all, "every_replica_saw_all"),
        (one_share_only, "every_replica_saw_all"),
        (order_lost, "order_lost"),
    ],
)
def test_mistakes_of_who_saw_are_named(answer, mistake):
    assert_mistake_is_caught(WHO_SAW, answer, mistake)


def test_a_who_saw_without_return_is_told_so():
    report = assert_not_passing(WHO_SAW, lambda strategy, dataset: None)
    assert "is there a `return`?" in repr(report)


def assert_not_passing(check, answer):
    from distlab.grading.running import run_check

    report = run_check(check, answer)
    assert not report.passed
    assert report.earned == 0
    return report
