import functools
import math
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from distlab.batching import split_batch
from distlab.checks.registry import checks_of
from distlab.checks.run_check import run_check
from distlab.devices import split_devices
from distlab.strategy.factory import make_strategy
from distlab.training.distributing import distribute
from tests.support.lesson_checks import (
    assert_mistake_is_caught,
    assert_solution_passes,
    assert_stub_earns_nothing,
    load_solution,
    load_stub,
)

STEM = "00_start_here"
SLICES, FILE_SLICES, BRIGHTNESS, WHO_SAW = checks_of(STEM)


@functools.cache
def solution():
    return load_solution(STEM)


@functools.cache
def stub():
    return load_stub(STEM)


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


def split_at_once(examples, replicas):
    piece = tf.cast(tf.math.ceil(examples / replicas), tf.int32)
    return tf.clip_by_value(examples - piece * tf.range(replicas), 0, piece)


def split_one_by_one(examples, replicas):
    piece = np.ceil(examples / replicas)  # a float
    shares = [0.0] * replicas
    for example in range(examples):
        shares[int(example // piece)] += 1
    return shares


@pytest.mark.parametrize(
    "answer", [split_by_slicing, split_by_taking, split_at_once, split_one_by_one]
)
def test_other_right_splits_pass(answer):
    assert_solution_passes(SLICES, answer)


def test_stub_of_slices_earns_nothing():
    assert_stub_earns_nothing(SLICES, stub()["split"])


def even_split(examples, replicas):
    return [len(part) for part in np.array_split(np.arange(examples), replicas)]


def whole_pieces_for_all(examples, replicas):
    return [math.ceil(examples / replicas)] * replicas


def rest_for_the_last(examples, replicas):
    piece = examples // replicas
    return [piece] * (replicas - 1) + [examples - piece * (replicas - 1)]


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
        (lambda examples, replicas: [examples] * replicas, "more_than_there_are"),
        (whole_pieces_for_all, "more_than_there_are"),
        (rest_for_the_last, "rounded_down"),
        (lambda examples, replicas: [examples // replicas] * replicas, "rounded_down"),
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


def test_what_no_split_can_be_is_shown_with_its_case():
    report = run_check(SLICES, lambda examples, replicas: (examples for _ in range(replicas)))
    assert re.search(r"split\(\d+, \d+\): found a generator", repr(report))
    assert report.earned == 0


# Task 2: slices of files


def files_by_slicing(examples, replicas, batch_size):
    piece = batch_size // replicas
    return np.array([len(range(examples)[i * piece : (i + 1) * piece]) for i in range(replicas)])


def files_at_once(examples, replicas, batch_size):
    piece = batch_size / replicas
    return tf.clip_by_value(examples - piece * tf.range(float(replicas)), 0, piece)


@pytest.mark.parametrize("answer", [files_by_slicing, files_at_once])
def test_other_right_splits_of_files_pass(answer):
    assert_solution_passes(FILE_SLICES, answer)


def test_stub_of_file_slices_earns_nothing():
    assert_stub_earns_nothing(FILE_SLICES, stub()["split_from_files"])


def whole_pieces(examples, replicas, batch_size):
    piece = batch_size // replicas
    return [piece if examples > i * piece else 0 for i in range(replicas)]


def below_zero(examples, replicas, batch_size):
    piece = batch_size // replicas
    return [min(piece, examples - i * piece) for i in range(replicas)]


def empty_left_out(examples, replicas, batch_size):
    piece = batch_size // replicas
    return [min(piece, examples - start) for start in range(0, examples, piece)]


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (lambda examples, replicas, size: split_by_taking(examples, replicas), "as_from_memory"),
        (lambda examples, replicas, size: even_split(examples, replicas), "as_equal_as_possible"),
        (whole_pieces, "whole_pieces_only"),
        (below_zero, "below_zero"),
        (empty_left_out, "empty_left_out"),
    ],
)
def test_mistakes_of_file_slices_are_named(answer, mistake):
    assert_mistake_is_caught(FILE_SLICES, answer, mistake)


@pytest.mark.parametrize(("examples", "shares"), [(10, (8, 2, 0, 0)), (12, (8, 4, 0, 0))])
def test_the_check_expects_what_tensorflow_does_with_files(examples, shares):
    assert tuple(solution()["split_from_files"](examples, 4, 32)) == shares


# Task 3: brightness


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


def one_batch_distributed(strategy, dataset):
    for batch in dataset:
        yield from strategy.experimental_distribute_dataset(batch)


def test_a_brightness_that_distributes_a_batch_is_named():
    def answer(strategy, dataset):
        batches = one_batch_distributed(strategy, dataset)
        return brightness_of(strategy, batches, total_of=summed)

    assert_mistake_is_caught(BRIGHTNESS, answer, "batch_distributed")


def four_entries(strategy, dataset):
    found = brightness_of(strategy, distributed(strategy, dataset), total_of=summed)
    return {**found, "images": (found["images"] + [0] * 4)[:4]}


def images_divided(strategy, dataset):
    images = np.concatenate(list(dataset))
    replicas = strategy.num_replicas_in_sync
    return {"images": [len(images) // replicas] * replicas, "total": images.sum()}


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [(four_entries, "hard_coded_four"), (images_divided, "images_divided")],
)
def test_a_total_counts_only_if_the_replicas_share_the_work(answer, mistake):
    assert assert_mistake_is_caught(BRIGHTNESS, answer, mistake).earned == 0


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda strategy, dataset: None, "is there a `return`?"),
        (lambda strategy, dataset: ([3, 3], 12.0), "yours returned [[3, 3], 12]"),
        (lambda strategy, dataset: {"images": [3, 3]}, "yours returned {'images': [3, 3]}"),
    ],
    ids=["nothing", "a tuple", "one key"],
)
def test_a_brightness_of_another_form_is_told_what_to_return(answer, said):
    report = run_check(BRIGHTNESS, answer)
    assert said in repr(report)
    assert '"images" and "total"' in repr(report)
    assert report.earned == 0


# Task 4: who_saw


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


def who_saw_in_ragged_rows(strategy, dataset):
    return tf.ragged.stack(who_saw_by_columns(strategy, dataset))


def who_saw_in_an_array_of_lists(strategy, dataset):
    columns = who_saw_by_columns(strategy, dataset)
    rows = np.empty(len(columns), dtype=object)
    rows[:] = [[float(number) for number in numbers] for numbers in columns]
    return rows


@pytest.mark.parametrize(
    "answer",
    [
        who_saw_through_run,
        who_saw_by_columns,
        who_saw_in_ragged_rows,
        who_saw_in_an_array_of_lists,
    ],
)
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


def shares_of(strategy, dataset):
    """For each batch the list of its shares."""
    for batch in strategy.experimental_distribute_dataset(dataset):
        yield [share.numpy() for share in strategy.experimental_local_results(batch)]


def one_list_n_times(strategy, dataset):
    seen = [[]] * strategy.num_replicas_in_sync
    for shares in shares_of(strategy, dataset):
        for numbers, share in zip(seen, shares, strict=True):
            numbers.extend(share.tolist())
    return seen


def shares_appended(strategy, dataset):
    return [list(mine) for mine in zip(*shares_of(strategy, dataset), strict=True)]


def lists_of_batches(strategy, dataset):
    return list(shares_of(strategy, dataset))


def one_list(strategy, dataset):
    return [number for shares in shares_of(strategy, dataset) for number in np.concatenate(shares)]


def only_first_batch(strategy, dataset):
    return next(shares_of(strategy, dataset))


def shared_in_turns(strategy, dataset):
    batches, replicas = list(dataset), strategy.num_replicas_in_sync
    return [np.concatenate([batch[i::replicas] for batch in batches]) for i in range(replicas)]


def four_lists(strategy, dataset):
    return (who_saw_by_columns(strategy, dataset) + [[]] * 4)[:4]


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
        (one_list_n_times, "every_replica_saw_all"),
        (shares_appended, "shares_appended"),
        (lists_of_batches, "lists_of_batches"),
        (one_list, "one_list"),
        (only_first_batch, "only_first_batch"),
        (shared_in_turns, "shared_by_hand"),
        (four_lists, "hard_coded_four"),
    ],
)
def test_mistakes_of_who_saw_are_named(answer, mistake):
    assert_mistake_is_caught(WHO_SAW, answer, mistake)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda strategy, dataset: None, "is there a `return`?"),
        (lambda strategy, dataset: [11, 11, 6], "yours returned [11, 11, 6]"),
    ],
    ids=["nothing", "counts"],
)
def test_a_who_saw_of_another_form_is_told_so(answer, said):
    report = run_check(WHO_SAW, answer)
    assert said in repr(report)
    assert report.earned == 0


def test_empty_lists_earn_nothing():
    report = run_check(WHO_SAW, lambda strategy, dataset: [[]] * strategy.num_replicas_in_sync)
    assert report.earned == 0


# What the lesson says and does not show


def test_a_mean_of_means_gives_the_last_digit_three_times_the_weight():
    shares = split_batch(10, 4)
    weights = [1 / (len(shares) * share) for share in shares]
    assert weights[3] == pytest.approx(3 * weights[2])


def test_the_mean_of_nothing_is_nan():
    assert np.isnan(tf.reduce_mean(tf.zeros([0])).numpy())


def test_fit_with_an_empty_share_gives_no_nan_and_too_small_a_step():
    """8 examples with a loss of 0, then 5 that are shared as 2, 2, 1 and 0."""
    target = np.float32([[0]] * 8 + [[1]] * 5)
    dataset = tf.data.Dataset.from_tensor_slices((np.ones_like(target), target)).batch(8)
    with make_strategy("mirrored", devices=split_devices(4)).scope():
        layer = keras.layers.Dense(1, kernel_initializer="zeros", use_bias=False)
        model = keras.Sequential([keras.Input((1,)), layer])
        model.compile(optimizer=keras.optimizers.SGD(0.5), loss="mse")
    history = model.fit(dataset, shuffle=False, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    assert float(layer.kernel[0, 0]) == 0.75  # one device takes a step of 1


def test_fit_with_an_empty_share_and_batch_normalization_ends_with_nan():
    """The mean over no example is NaN, and the sum of the gradients carries it to all replicas."""
    target = np.float32([[0]] * 8 + [[1]] * 5)
    dataset = tf.data.Dataset.from_tensor_slices((np.ones_like(target), target)).batch(8)
    strategy = make_strategy("mirrored", devices=split_devices(4))

    def build():
        layers = [keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((1,)), *layers])
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
        return model

    def trained(model):
        losses = model.fit(dataset, epochs=2, shuffle=False, verbose=0).history["loss"]
        return losses, model.trainable_weights

    with strategy.scope():
        own = build()
    losses, weights = trained(own)
    assert np.isfinite(losses).tolist() == [True, False]
    for weight in weights:
        for copy in strategy.experimental_local_results(weight.value):
            assert np.isnan(copy.numpy()).all()
    losses, weights = trained(distribute(build, strategy))
    assert np.isfinite(losses).all()
    assert all(np.isfinite(weight.numpy()).all() for weight in weights)
