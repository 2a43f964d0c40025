import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from distlab.batching import split_batch
from distlab.course.checks.registry import checks_of
from distlab.course.checks.run_check import run_check
from distlab.devices import split_devices
from distlab.strategy.factory import make_strategy
from tests.support.lesson_checks import (
    assert_feedback_says,
    assert_mistakes_are_caught,
    assert_right_answers_pass,
    load_solution,
    load_stub,
)

STEM = "00_start_here"
ONE_DRAW = (1,)
SLICES, FILE_SLICES, BRIGHTNESS, WHO_SAW = checks_of(STEM)


def test_what_the_judges_expect_is_what_tensorflow_does():
    strategy = make_strategy("mirrored", devices=split_devices(4)[:3])
    for batch in (5, 10):
        examples = 2 * batch + batch // 2
        dataset = tf.data.Dataset.range(examples).batch(batch)
        for step, shared in enumerate(strategy.experimental_distribute_dataset(dataset)):
            counts = tuple(len(share) for share in strategy.experimental_local_results(shared))
            assert counts == split_batch(min(batch, examples - step * batch), 3)


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


def test_other_right_splits_pass():
    assert_right_answers_pass(SLICES, split_by_slicing, split_by_taking)


def even_split(examples, replicas):
    return [len(part) for part in np.array_split(np.arange(examples), replicas)]


def pieces(examples, piece, replicas):
    """Equal pieces, and what is left, or lacking, for the last replica."""
    return [piece] * (replicas - 1) + [examples - piece * (replicas - 1)]


def rest_for_the_last(examples, replicas):
    return pieces(examples, examples // replicas, replicas)


def test_mistakes_of_slices_are_named():
    wrong = {
        "even_split": even_split,
        "more_than_there_are": lambda examples, replicas: [examples] * replicas,
        "rounded_down": rest_for_the_last,
        "negative_share": lambda examples, replicas: pieces(
            examples, math.ceil(examples / replicas), replicas
        ),
    }
    assert_mistakes_are_caught(SLICES, wrong)
    report = run_check(SLICES, even_split)
    assert 0 < report.earned < SLICES.points
    assert "split(" in repr(report)


# Task 2: slices of files


def files_by_slicing(examples, replicas, batch_size):
    piece = batch_size // replicas
    return np.array([len(range(examples)[i * piece : (i + 1) * piece]) for i in range(replicas)])


def files_at_once(examples, replicas, batch_size):
    piece = batch_size / replicas
    return tf.clip_by_value(examples - piece * tf.range(float(replicas)), 0, piece)


def test_other_right_splits_of_files_pass():
    assert_right_answers_pass(FILE_SLICES, files_by_slicing, files_at_once)


def whole_pieces(examples, replicas, batch_size):
    piece = batch_size // replicas
    return [piece if examples > i * piece else 0 for i in range(replicas)]


def below_zero(examples, replicas, batch_size):
    piece = batch_size // replicas
    return [min(piece, examples - i * piece) for i in range(replicas)]


def test_mistakes_of_file_slices_are_named():
    wrong = {
        "as_from_memory": lambda examples, replicas, size: split_by_taking(examples, replicas),
        "as_equal_as_possible": lambda examples, replicas, size: even_split(examples, replicas),
        "whole_pieces_only": whole_pieces,
        "negative_share": below_zero,
    }
    assert_mistakes_are_caught(FILE_SLICES, wrong)


def test_the_check_expects_what_tensorflow_does_with_files():
    split = load_solution(STEM)["split_from_files"]
    assert [tuple(split(examples, 4, 32)) for examples in (10, 12)] == [(8, 2, 0, 0), (8, 4, 0, 0)]


# Task 3: brightness


@tf.function
def look(images):
    return tf.shape(images)[0], tf.reduce_sum(images)


def brightness_by(share, total_of):
    """An answer to `brightness` with this way to share the data and to total the sums."""

    def brightness(strategy, dataset):
        images, total = 0, 0.0
        for batch in share(strategy, dataset):
            counts, sums = strategy.run(look, args=(batch,))
            images = images + np.array(strategy.experimental_local_results(counts))
            total += float(total_of(strategy, sums))
        return {"images": images.tolist(), "total": total}

    return brightness


def summed(strategy, sums):
    return strategy.reduce("SUM", sums, axis=None)


def averaged(strategy, sums):
    return strategy.reduce("MEAN", sums, axis=None)


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


def test_other_right_cures_of_brightness_pass():
    cures = brightness_by(cut_by_hand, summed), brightness_by(distributed, summed_by_hand)
    assert_right_answers_pass(BRIGHTNESS, *cures)


def test_mistakes_of_brightness_are_named():
    def first_replica(strategy, sums):
        return strategy.experimental_local_results(sums)[0]

    def each_batch_distributed(strategy, dataset):
        for batch in dataset:
            yield from strategy.experimental_distribute_dataset(batch)

    wrong = {
        "whole_batch_to_run": load_stub(STEM)["brightness"],
        "mean_hides_it": brightness_by(not_distributed, averaged),
        "one_replica_only": brightness_by(distributed, first_replica),
        "mean_for_sum": brightness_by(distributed, averaged),
        "batch_distributed": brightness_by(each_batch_distributed, summed),
    }
    assert_mistakes_are_caught(BRIGHTNESS, wrong)


def test_a_brightness_of_another_form_is_told_what_to_return():
    said = {
        "is there a `return`?": lambda strategy, dataset: None,
        "yours returned [[3, 3], 12]": lambda strategy, dataset: ([3, 3], 12.0),
        '"images" and "total"': lambda strategy, dataset: {"images": [3, 3]},
    }
    assert_feedback_says(BRIGHTNESS, said)


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


def test_other_right_ways_to_see_pass():
    assert_right_answers_pass(WHO_SAW, who_saw_through_run, who_saw_by_columns)


def every_replica_saw_all(strategy, dataset):
    seen = [[] for _ in range(strategy.num_replicas_in_sync)]
    for batch in dataset:
        results = strategy.experimental_local_results(strategy.run(copied, args=(batch,)))
        for numbers, share in zip(seen, results, strict=True):
            numbers.extend(share.numpy())
    return seen


def shares_of(strategy, dataset):
    """For each batch the list of its shares."""
    for batch in strategy.experimental_distribute_dataset(dataset):
        yield [share.numpy() for share in strategy.experimental_local_results(batch)]


def shares_appended(strategy, dataset):
    return [list(mine) for mine in zip(*shares_of(strategy, dataset), strict=True)]


def shared_in_turns(strategy, dataset):
    batches, replicas = list(dataset), strategy.num_replicas_in_sync
    return [np.concatenate([batch[i::replicas] for batch in batches]) for i in range(replicas)]


def first_batch_only(strategy, dataset):
    return next(shares_of(strategy, dataset))


def test_mistakes_of_who_saw_are_named():
    wrong = {
        "every_replica_saw_all": every_replica_saw_all,
        "shares_appended": shares_appended,
        "only_first_batch": first_batch_only,
        "shared_by_hand": shared_in_turns,
    }
    assert_mistakes_are_caught(WHO_SAW, wrong, seeds=ONE_DRAW)
    said = {"is there a `return`?": lambda *_: None, "yours returned [11, 11]": lambda *_: [11, 11]}
    assert_feedback_says(WHO_SAW, said)


# What the lesson says and does not show


def test_a_mean_of_means_gives_the_last_digit_three_times_the_weight():
    shares = split_batch(10, 4)
    weights = [1 / (len(shares) * share) for share in shares]
    assert weights[3] == pytest.approx(3 * weights[2])


def test_the_mean_of_nothing_is_nan():
    assert np.isnan(tf.reduce_mean(tf.zeros([0])).numpy())


def test_fit_with_an_empty_share_gives_no_nan_and_too_small_a_step():
    data, strategy = zeros_then_ones()
    with strategy.scope():
        layer = keras.layers.Dense(1, kernel_initializer="zeros", use_bias=False)
        model = keras.Sequential([keras.Input((1,)), layer])
        model.compile(optimizer=keras.optimizers.SGD(0.5), loss="mse")
    history = model.fit(data, shuffle=False, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    assert float(layer.kernel[0, 0]) == 0.75  # one device takes a step of 1


def zeros_then_ones():
    """8 examples with a loss of 0, then 5 that four replicas share as 2, 2, 1 and 0."""
    target = np.float32([[0]] * 8 + [[1]] * 5)
    data = tf.data.Dataset.from_tensor_slices((np.ones_like(target), target)).batch(8)
    return data, make_strategy("mirrored", devices=split_devices(4))


def test_fit_with_an_empty_share_and_batch_normalization_ends_with_nan():
    """The mean over no example is NaN, and the sum of the gradients carries it to all replicas."""
    data, strategy = zeros_then_ones()
    with strategy.scope():
        layers = [keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((1,)), *layers])
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    losses = model.fit(data, epochs=2, shuffle=False, verbose=0).history["loss"]
    assert np.isfinite(losses).tolist() == [True, False]
    for weight in model.trainable_weights:
        for copy in strategy.experimental_local_results(weight.value):
            assert np.isnan(copy.numpy()).all()
