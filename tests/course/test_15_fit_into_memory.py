"""The checks of lesson 15: right answers pass, each mistake is named; what the lesson claims."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from distlab.course.checks.registry import checks_of
from distlab.course.lesson_15_fit_into_memory import runs
from tests.support.lesson_checks import (
    assert_feedback_says,
    assert_mistakes_are_caught,
    assert_right_answers_pass,
    edited_solution,
)

STEM = "15_fit_into_memory"
CHECKS = {check.name: check for check in checks_of(STEM)}
ACCUMULATED, RECOMPUTED, DROPOUT, LARGEST = CHECKS.values()
edited = functools.partial(edited_solution, STEM)


# --- accumulated_gradients


def divided_at_the_end(weights, micro_batches, losses):
    """Counts on the way, as for a stream."""
    sums, tokens = [0.0 * weight for weight in weights], 0.0
    for x, y, counts in micro_batches:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(counts * losses(x, y))
        sums = [a + b for a, b in zip(sums, tape.gradient(loss, weights), strict=True)]
        tokens += tf.reduce_sum(counts)
    return [total / tokens for total in sums]


def all_at_once(weights, micro_batches, losses):
    x, y, counts = (tf.concat(parts, axis=0) for parts in zip(*micro_batches, strict=True))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(counts * losses(x, y)) / tf.reduce_sum(counts)
    return tape.gradient(loss, weights)


def test_accumulations_are_judged():
    assert_right_answers_pass(ACCUMULATED, divided_at_the_end)
    assert_mistakes_are_caught(ACCUMULATED, {"all_at_once": all_at_once}, earned=3)
    means = edited("accumulated_gradients", {"/ tokens": "/ tf.reduce_sum(counts) / 4"})
    assert_mistakes_are_caught(ACCUMULATED, {"mean_of_means": means}, earned=0)
    outside = edited(
        "accumulated_gradients",
        {" / tokens": "", "gradients = ": "loss = loss / tokens\n        gradients = "},
    )
    assert_mistakes_are_caught(ACCUMULATED, {"computed_outside_tape": outside}, earned=0)
    said = {"a list with a gradient for each weight": lambda weights, parts, losses: weights[0]}
    assert_feedback_says(ACCUMULATED, said)


# --- recomputed


def test_recomputations_are_judged():
    assert_right_answers_pass(RECOMPUTED, tf.recompute_grad)
    wrong = {
        "merged_away": edited(
            "recomputed", {"with tf.control_dependencies([upstream]):": "if True:"}
        ),
        "upstream_ignored": edited("recomputed", {", output_gradients=upstream": ""}),
        "kept_anyway": kept_anyway,
        "only_inputs": zeros_for_weights,
    }
    assert_mistakes_are_caught(RECOMPUTED, wrong)
    assert_mistakes_are_caught(RECOMPUTED, {"never_again": lambda f: f}, earned=0.5)
    assert_feedback_says(RECOMPUTED, {"is there a `return`?": lambda f: None})


def kept_anyway(f):
    @tf.custom_gradient
    def run(x, *weights):
        with tf.GradientTape() as tape:
            tape.watch([x, *weights])
            result = f(x, *weights)
        return result, lambda upstream: tape.gradient(
            result, [x, *weights], output_gradients=upstream
        )

    return run


def zeros_for_weights(f):
    @tf.custom_gradient
    def run(x, *weights):
        def backward(upstream):
            with tf.control_dependencies([upstream]):
                again = tf.identity(x)
            with tf.GradientTape() as tape:
                tape.watch(again)
                result = f(again, *weights)
            of_x = tape.gradient(result, again, output_gradients=upstream)
            return [of_x, *map(tf.zeros_like, weights)]

        return f(x, *weights), backward

    return run


# --- recomputed_dropout


def with_a_mask(layer, rate):
    """The mask itself is drawn outside, in place of a seed."""

    def call(x):
        mask = tf.cast(tf.random.uniform(x.shape) >= rate, x.dtype) / (1 - rate)
        return tf.recompute_grad(lambda x: layer(x) * mask)(x)

    return call


def dropped_behind(layer, rate):
    """Only the layer is computed twice, so dropout draws once."""
    return lambda x: tf.nn.dropout(tf.recompute_grad(layer)(x), rate)


def seed_from_python(layer, rate):
    """A compiled function draws once, while it's traced."""
    draw = np.random.default_rng(0)

    def call(x):
        seed = draw.integers(0, 2**31, size=2).astype("int32")
        part = lambda x: tf.nn.experimental.stateless_dropout(layer(x), rate, seed)  # noqa: E731
        return tf.recompute_grad(part)(x)

    return call


def test_dropouts_are_judged():
    assert_right_answers_pass(DROPOUT, with_a_mask, dropped_behind)
    draws = "seed = tf.random.uniform([2], maxval=2**31 - 1, dtype=tf.int32)"
    wrong = {
        "seed_drawn_inside": lambda layer, rate: tf.recompute_grad(
            lambda x: tf.nn.dropout(layer(x), rate)
        ),
        "same_mask_every_step": edited("recomputed_dropout", {draws: "seed = [1, 2]"}),
        "dropout_off": lambda layer, rate: tf.recompute_grad(layer),
        "not_recomputed": edited("recomputed_dropout", {"tf.recompute_grad(part)(x)": "part(x)"}),
    }
    assert_mistakes_are_caught(DROPOUT, wrong)
    assert_mistakes_are_caught(DROPOUT, {"same_mask_every_step": seed_from_python})
    for answer in (lambda layer, rate: None, lambda layer, rate: lambda x: None):
        assert_feedback_says(DROPOUT, {"is there a `return`?": answer})


# --- largest_batch


def by_trying(limit_mb, peaks, gradients_mb, micro_batches):
    slope, fixed = np.polyfit(list(peaks), list(peaks.values()), 1)
    rows = 0
    while fixed + gradients_mb * (micro_batches > 1) + (rows + 1) * slope <= limit_mb + 1e-9:
        rows += 1
    return rows * micro_batches


def test_largest_batches_are_judged():
    assert_right_answers_pass(LARGEST, by_trying)
    whole = {"low - few * row_mb": "0.0", "fixed_mb += gradients_mb": "pass"}
    assert_mistakes_are_caught(LARGEST, {"activations_only": edited("largest_batch", whole)})
    part = {"// row_mb": "/ row_mb", "int(rows * micro_batches)": "rows * micro_batches"}
    assert_mistakes_are_caught(LARGEST, {"part_of_a_row": edited("largest_batch", part)})


# --- what the lesson says and does not show


@pytest.mark.parametrize("compiled", [False, True])
def test_recomputed_dropout_draws_again_and_a_seed_from_outside_cures_it(compiled):
    def keras_dropout(wrap):
        layer = keras.layers.Dropout(0.5, seed=1)
        return wrap(lambda x: layer(x, training=True))

    def drawn_outside():
        def drop(x):
            seed = tf.random.uniform([2], maxval=2**31 - 1, dtype=tf.int32)
            part = lambda x: tf.nn.experimental.stateless_dropout(x, 0.5, seed)  # noqa: E731
            return tf.recompute_grad(part)(x)

        return drop

    count = functools.partial(runs.entries_of_another_mask, compiled=compiled)
    for wrap in (tf.recompute_grad, keras.remat):
        assert 1500 < count(lambda wrap=wrap: keras_dropout(wrap)) < 2500
    assert 1500 < count(lambda: tf.recompute_grad(lambda x: tf.nn.dropout(x, 0.5))) < 2500
    assert count(drawn_outside) == 0
    seeded = count(lambda: tf.recompute_grad(lambda x: tf.nn.dropout(x, 0.5, seed=3)))
    assert (seeded == 0) is compiled


def test_fit_in_a_remat_scope_raises():
    with keras.RematScope(mode="full"):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, "relu")])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="custom_gradient"):
        model.fit(np.ones((4, 4)), np.ones((4, 4)), verbose=0)


def test_one_step_gives_the_same_gradients_in_parts_and_recomputed():
    model, batch = runs.build(layers=2), runs.lines_of(10, 20, 40, 60)
    plain = runs.make_step(model)(*batch)
    for cut in ((4, 0), (1, 1), (1, 2), (4, 1)):
        apart = runs.largest_difference(runs.make_step(model, *cut)(*batch), plain)
        assert apart < 1e-5, cut


def test_how_a_step_ended_in_little_memory_is_told():
    assert runs._told("ResourceExhaustedError: x OOM when allocating tensor with shape[3]") == (
        "OOM when allocating tensor"
    )
    assert runs._told("TimeoutError: late") == "TimeoutError: late"
