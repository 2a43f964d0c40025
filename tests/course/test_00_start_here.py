"""The checks of lesson 00: right answers pass, mistakes are named; and what the lesson claims."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from distlab.batching import split_batch
from distlab.course.checks.registry import checks_of
from distlab.devices import split_devices
from distlab.strategy.factory import make_strategy
from tests.support.lesson_checks import (
    assert_feedback_says,
    assert_mistakes_are_caught,
    assert_right_answers_pass,
    load_stub,
)

STEM = "00_start_here"
SLICES, FILE_SLICES, BRIGHTNESS, WHO_SAW = checks_of(STEM)


# --- slices and file_slices


def pieces_of(examples, piece, replicas):
    """How many of the examples are in each of so many pieces, as a NumPy array."""
    return np.array([len(range(examples)[i * piece : (i + 1) * piece]) for i in range(replicas)])


def even_split(examples, replicas):
    return [len(part) for part in np.array_split(np.arange(examples), replicas)]


def what_is_left_for_the_last(examples, replicas):
    piece = -(-examples // replicas)
    return [piece] * (replicas - 1) + [examples - piece * (replicas - 1)]


def test_slices():
    assert_right_answers_pass(SLICES, lambda n, r: pieces_of(n, -(-n // r), r))
    wrong = {
        "even_split": even_split,
        "more_than_there_are": lambda examples, replicas: [examples] * replicas,
        "negative_share": what_is_left_for_the_last,
    }
    assert_mistakes_are_caught(SLICES, wrong)
    assert_feedback_says(SLICES, {"split(": lambda n, r: [0] * r})


def below_zero(examples, replicas, batch_size):
    piece = batch_size // replicas
    return [min(piece, examples - i * piece) for i in range(replicas)]


def test_file_slices():
    assert_right_answers_pass(FILE_SLICES, lambda n, r, batch: pieces_of(n, batch // r, r))
    wrong = {
        "as_equal_as_possible": lambda examples, replicas, size: even_split(examples, replicas),
        "negative_share": below_zero,
    }
    assert_mistakes_are_caught(FILE_SLICES, wrong)


# --- brightness


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


def cut_by_hand(strategy, dataset):
    for batch in dataset:
        shares = tf.split(batch, split_batch(len(batch), strategy.num_replicas_in_sync))
        yield strategy.experimental_distribute_values_from_function(
            lambda context, shares=shares: shares[context.replica_id_in_sync_group]
        )


def each_batch_distributed(strategy, dataset):
    for batch in dataset:
        yield from strategy.experimental_distribute_dataset(batch)


def test_brightness():
    def summed(strategy, sums):
        return strategy.reduce("SUM", sums, axis=None)

    def averaged(strategy, sums):
        return strategy.reduce("MEAN", sums, axis=None)

    assert_right_answers_pass(BRIGHTNESS, brightness_by(cut_by_hand, summed))
    wrong = {
        "whole_batch_to_run": load_stub(STEM)["brightness"],
        "mean_hides_it": brightness_by(lambda strategy, dataset: dataset, averaged),
        "batch_distributed": brightness_by(each_batch_distributed, summed),
    }
    assert_mistakes_are_caught(BRIGHTNESS, wrong)
    said = {
        "yours returned [[3, 3], 12]": lambda strategy, dataset: ([3, 3], 12.0),
        '"images" and "total"': lambda strategy, dataset: {"images": [3, 3]},
    }
    assert_feedback_says(BRIGHTNESS, said)


# --- who_saw


def shares_of(strategy, dataset):
    """For each batch the list of its shares."""
    for batch in strategy.experimental_distribute_dataset(dataset):
        yield [share.numpy() for share in strategy.experimental_local_results(batch)]


def whole_batches_on_all(strategy, dataset):
    whole = [number for batch in dataset for number in batch.numpy()]
    return [whole] * strategy.num_replicas_in_sync


def test_who_saw():
    def joined(join):
        return lambda *given: [join(mine) for mine in zip(*shares_of(*given), strict=True)]

    assert_right_answers_pass(WHO_SAW, joined(lambda shares: tf.concat(shares, axis=0)))
    wrong = {
        "every_replica_saw_all": whole_batches_on_all,
        "shares_appended": joined(list),
        "only_first_batch": lambda *given: next(shares_of(*given)),
    }
    assert_mistakes_are_caught(WHO_SAW, wrong)
    assert_feedback_says(WHO_SAW, {"yours returned [11, 11]": lambda *_: [11, 11]})


# --- what the lesson says and does not show


def test_a_per_replica_cannot_be_multiplied():
    strategy = make_strategy("mirrored", devices=split_devices(4))
    indices = strategy.run(lambda: tf.distribute.get_replica_context().replica_id_in_sync_group)
    with pytest.raises(TypeError):
        indices * 10


def test_a_mean_of_means_gives_the_last_digit_three_times_the_weight():
    shares = split_batch(10, 4)
    weights = [1 / (len(shares) * share) for share in shares]
    assert weights[3] == pytest.approx(3 * weights[2])


def test_the_mean_of_nothing_is_nan():
    assert np.isnan(tf.reduce_mean(tf.zeros([0])).numpy())


def fitted_with_an_empty_share(*layers, rate, epochs=1):
    """A Keras model after 8 examples with a loss of 0, then 5 that four replicas share 2 2 1 0."""
    target = np.float32([[0]] * 8 + [[1]] * 5)
    data = tf.data.Dataset.from_tensor_slices((np.ones_like(target), target)).batch(8)
    strategy = make_strategy("mirrored", devices=split_devices(4))
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), *(make() for make in layers)])
        model.compile(optimizer=keras.optimizers.SGD(rate), loss="mse")
    history = model.fit(data, epochs=epochs, shuffle=False, verbose=0).history
    copies = [strategy.experimental_local_results(w.value) for w in model.trainable_weights]
    return history["loss"], [copy.numpy() for each in copies for copy in each]


def test_fit_with_an_empty_share_gives_no_nan_and_too_small_a_step():
    losses, kernels = fitted_with_an_empty_share(
        lambda: keras.layers.Dense(1, kernel_initializer="zeros", use_bias=False), rate=0.5
    )
    assert np.isfinite(losses).all()
    assert [float(kernel[0, 0]) for kernel in kernels] == [0.75] * 4  # one device takes a step of 1


def test_fit_with_an_empty_share_and_batch_normalization_ends_with_nan():
    """The mean over no example is NaN, and the sum of the gradients carries it to all replicas."""
    losses, copies = fitted_with_an_empty_share(
        keras.layers.BatchNormalization, lambda: keras.layers.Dense(1), rate=0.1, epochs=2
    )
    assert np.isfinite(losses).tolist() == [True, False]
    assert all(np.isnan(copy).all() for copy in copies)
