"""The checks of lesson 06: right answers pass, and wrong ones are named, even under determinism."""

import random

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.config import disable_op_determinism

import distlab as dl
from distlab.course.checks.registry import checks_of
from distlab.course.checks.run_check import run_check
from tests.support.lesson_checks import (
    assert_feedback_says,
    assert_mistakes_are_caught,
    assert_right_answers_pass,
)

STEM = "06_reproducibility"
RUNS, MASKS, EXPECT = checks_of(STEM)
TWO_REPLICAS = (3,)  # of the draws
fold_in = tf.random.experimental.stateless_fold_in


# --- equal_runs


def trainer(*, first=None, after_build=None, after_data=None):
    """An answer to `equal_runs` that seeds, by functions of the seed, at the places given."""

    def call(at, seed):
        if at is not None:
            at(seed)

    def train_once(seed, build, make_data):
        call(first, seed)
        model = build()
        call(after_build, seed)
        data = make_data()
        call(after_data, seed)
        model.fit(data, epochs=2, shuffle=False, verbose=0)
        return model.get_weights()

    return train_once


def each_stream(seed):
    random.seed(seed)
    np.random.seed(seed)
    tf.random.set_seed(seed)


def never_fits(seed, build, make_data):
    dl.set_seed(seed)
    model = build()
    make_data()
    return model.get_weights()


def test_runs_that_differ_are_named():
    assert_right_answers_pass(RUNS, trainer(first=each_stream))
    wrong = {
        "seeded_after_build": trainer(after_build=dl.set_seed),
        "seeded_after_data": trainer(first=random.seed, after_data=dl.set_seed),
        "stream_left_out": trainer(first=random.seed),
        "same_for_every_seed": trainer(first=lambda seed: dl.set_seed(1)),
    }
    earned = {"stream_left_out": 0.5, "seeded_after_build": 1, "same_for_every_seed": 2.5}
    assert_mistakes_are_caught(RUNS, wrong, earned=earned)
    assert_feedback_says(RUNS, {"return model.get_weights() after fit": never_fits})
    same_data = trainer(first=dl.set_seed, after_build=lambda seed: dl.set_seed(1))
    said = {"the run is the same whatever seed it is given": same_data}
    assert_feedback_says(RUNS, said, earned=2.5)


# --- replica_masks


def replica_id():
    return tf.distribute.get_replica_context().replica_id_in_sync_group


def assigns(state):
    """An answer to `replica_masks`: each layer gets `state(generator, base, layer, step, replica)`.

    The replica is 0 everywhere for a shared layer.
    """

    def seed_layers(generators, shared, base, step):
        for layer, generator in enumerate(generators):
            replica = in_64_bits(0 if shared[layer] else replica_id())
            generator.state.assign(state(generator, base, layer, step, replica))

    return seed_layers


def in_64_bits(number):
    return tf.cast(number, tf.int64)


def folded(base, *numbers):
    seed = tf.constant([base, 0], tf.int64)
    for number in numbers:
        seed = fold_in(seed, in_64_bits(number))
    return seed


def replaced(generators, shared, base, step):
    for layer, generator in enumerate(generators):
        generator.state = folded(base, layer, step, replica_id(), 0)


def far_apart(_, base, layer, step, replica):
    """States that no draw of a different one reaches."""
    return [base * 64 + 8 * layer + replica, step * 100]


def test_other_right_states_pass_also_after_an_answer_that_replaced_the_variables():
    said = "`generator.state` is a different object now"
    assert_feedback_says(MASKS, {said: replaced}, seeds=TWO_REPLICAS)
    assert_right_answers_pass(MASKS, assigns(far_apart), seeds=TWO_REPLICAS)


def test_wrong_masks_are_named():
    wrong = {
        "same_mask": assigns(lambda g, base, layer, step, replica: folded(base, layer, step, 0)),
        "depends_on_history": assigns(
            lambda g, base, layer, step, replica: fold_in(g.state.value, replica)
        ),
        "shared_ignored": assigns(
            lambda g, base, layer, step, _: folded(base, layer, step, replica_id(), 0)
        ),
        "collides": assigns(
            lambda g, base, layer, step, replica: [base * 8 + layer, step + replica]
        ),
        "collides_on_next_draw": assigns(
            lambda g, base, layer, step, replica: folded(base, layer, step, replica)
        ),
    }
    earned = dict.fromkeys(wrong, 3) | {"same_mask": 0, "depends_on_history": 0}
    assert_mistakes_are_caught(MASKS, wrong, earned=earned, seeds=TWO_REPLICAS)


def test_two_layers_that_get_one_state_draw_one_mask():
    by_replica_and_step = assigns(
        lambda g, base, layer, step, replica: folded(base, step, replica, 0)
    )
    said = {"two layers of one replica draw the same mask in the same step": by_replica_and_step}
    assert_feedback_says(MASKS, said, earned=2.5, seeds=TWO_REPLICAS)


# --- expectations


def by_what_differs(across="close", without_seed="different"):
    """An answer by the things that two runs do not share."""

    def expect(first, second):
        differ = {name for name in first if first[name] != second[name]}
        if any(run["resumed"] == "without place" for run in (first, second)) or "seed" in differ:
            return "different"
        if first["seed"] is None:
            return without_seed
        return across if "replicas" in differ else "bitwise"

    return expect


def test_expectations():
    assert_right_answers_pass(EXPECT, by_what_differs())
    wrong = {
        "expects_bitwise_across_n": by_what_differs(across="bitwise"),
        "none_is_a_seed": by_what_differs(without_seed="bitwise"),
    }
    assert_mistakes_are_caught(EXPECT, wrong)
    for word in ("bitwise", "close", "different"):
        assert run_check(EXPECT, lambda first, second, word=word: word).earned == 0


# --- what the lesson and the checks claim


def dropout_noise(replicas, *, equal_masks):
    """How far dropout alone moves the gradient of a batch of 32 digits."""
    (digits,) = dl.load_dataset("digits", splits=["train[:32]"], batch_size=32)
    images, labels = next(iter(digits))
    dl.set_seed(1)
    x = tf.reshape(images, (32, 64))
    hidden, scores = keras.layers.Dense(32, "relu"), keras.layers.Dense(10)
    scores(hidden(x))
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    weights = hidden.trainable_variables + scores.trainable_variables

    @tf.function
    def gradient(mask):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, scores(hidden(x) * mask))
        return tf.concat([tf.reshape(g, [-1]) for g in tape.gradient(loss, weights)], 0)

    draw, gradients = np.random.default_rng(0), []
    for _ in range(400):
        masks = draw.integers(0, 2, size=(32 // replicas if equal_masks else 32, 32)) * 2.0
        masks = np.tile(masks, (replicas, 1)) if equal_masks else masks
        gradients.append(gradient(tf.constant(masks, tf.float32)).numpy())
    return float(np.sqrt(np.var(gradients, axis=0).sum()))


def test_equal_masks_make_gradients_a_little_noisier_and_far_less_than_the_root_of_the_replicas():
    own = dropout_noise(1, equal_masks=False)
    for replicas, said in ((2, 1.06), (8, 1.2)):
        assert dropout_noise(replicas, equal_masks=True) / own == pytest.approx(said, abs=0.03)


def test_the_state_tree_has_the_generators_state_and_keras_files_do_not(tmp_path):
    def model_with_dropout():
        layers = [keras.layers.Dropout(0.5, seed=1), keras.layers.Dense(2)]
        model = keras.Sequential([keras.Input((4,)), *layers])
        model.compile()
        return model

    def drawn(model):
        """How many masks the layer has drawn: the second number of its state."""
        return int(model.layers[0].seed_generator.state.numpy()[1])

    model = model_with_dropout()
    model(np.ones((2, 4)), training=True)
    model.save_weights(tmp_path / "of.weights.h5")
    model.save(tmp_path / "whole.keras")
    from_weights = model_with_dropout()
    from_weights.load_weights(tmp_path / "of.weights.h5")
    from_file = keras.saving.load_model(tmp_path / "whole.keras")
    assert (drawn(model), drawn(from_weights), drawn(from_file)) == (1, 0, 0)
    tree = model.get_state_tree(value_format="numpy_array")["non_trainable_variables"]
    (state,) = tf.nest.flatten(tree)
    assert state[1] == 1


def test_keras_uses_31_bits_of_a_state_so_folded_masks_repeat_by_chance():
    """Found among 50,000 steps of two replicas: three pairs with one key, this is one."""
    (one, other) = (folded(7, 9185, 1, 0), folded(7, 16883, 1, 0))
    assert one[0] != other[0]
    assert one[0] % (2**31 - 2) == other[0] % (2**31 - 2)
    generator = keras.random.SeedGenerator(0)
    masks = []
    for state in (one, other):
        generator.state.assign(state)
        masks.append(keras.random.dropout(tf.ones(64), 0.5, seed=generator).numpy())
    np.testing.assert_array_equal(*masks)


def test_uniform_numbers_differ_by_replica_because_each_has_its_own_operation():
    strategy = dl.make_strategy("mirrored", devices=dl.split_devices(4)[:2])
    dl.set_seed(1)

    @tf.function
    def drawn():
        return strategy.experimental_local_results(strategy.run(lambda: tf.random.uniform([2])))

    first, second = drawn()
    assert not np.array_equal(first, second)
    operations = drawn.get_concrete_function().graph.get_operations()
    seeds = {op.get_attr("seed2") for op in operations if op.type == "RandomUniform"}
    assert len(seeds) == 2


def test_a_shuffle_without_a_seed_depends_on_every_random_line_before_it():
    def order(random_lines, seed):
        dl.set_seed(1)
        for _ in range(random_lines):
            tf.random.normal([1])
        data = tf.data.Dataset.range(8).shuffle(8, seed=seed)
        return [int(number) for number in data]

    assert order(0, None) != order(1, None)
    assert order(0, 3) == order(1, 3)


def millionths_off(draw, parts):
    """How far the sum of 65,536 random float32 is off, added up in so many parts."""
    numbers = np.float32(np.random.default_rng(draw).uniform(size=65536))
    sums = [np.add.accumulate(part)[-1] for part in np.split(numbers, parts)]
    return float(np.add.accumulate(sums)[-1] / numbers.astype(np.float64).sum() - 1) * 1e6


def test_every_order_of_a_sum_rounds_differently_and_none_is_always_best():
    off = {parts: millionths_off(1, parts) for parts in (1, 2, 4, 64)}
    assert off == pytest.approx({1: -1.19, 2: 2.86, 4: -0.12, 64: 0.0}, abs=0.01)
    nearer = [abs(millionths_off(draw, 4)) < abs(millionths_off(draw, 1)) for draw in range(200)]
    assert sum(nearer) == 174


@pytest.fixture
def deterministic_ops():
    dl.set_seed(1, deterministic=True)
    tf.random.set_seed(None)  # forgets kernels that were made before
    yield
    disable_op_determinism()


def test_checks_hold_where_op_determinism_was_switched_on(deterministic_ops):
    with pytest.raises(RuntimeError, match="Random ops require a seed to be set when determinism"):
        tf.random.normal([2])
    assert_right_answers_pass(RUNS, trainer(first=dl.set_seed))
    assert_feedback_says(RUNS, {"the two runs begin with different weights": trainer()})
