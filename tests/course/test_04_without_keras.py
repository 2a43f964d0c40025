"""The checks of lesson 04: right answers pass, mistakes are named."""

import tensorflow as tf

from distlab.course.checks.registry import checks_of
from tests.support.lesson_checks import assert_mistakes_are_caught, assert_right_answers_pass

STEM = "04_without_keras"
REGRESSION, ADAGRAD, LOCAL = checks_of(STEM)


def all_reduce(way, values):
    return tf.distribute.get_replica_context().all_reduce(way, values)


# --- sgd_step


def gradients_of(slope, offset, x, y):
    """The gradient of each example, by slope and by offset."""
    error = 2 * (slope * x + offset - y)
    return error * x, error


def sgd_by(combine):
    """A step by what `combine` makes of each example's gradients on this replica."""

    def step(slope, offset, x, y, rate):
        each = gradients_of(slope, offset, x, y)
        for variable, change in zip((slope, offset), combine(*each), strict=True):
            variable.assign_sub(rate * change)

    return step


def mean_over_all(*each):
    count = tf.cast(tf.size(each[0]), tf.float32)
    *sums, count = all_reduce("SUM", [*map(tf.reduce_sum, each), count])
    return [total / count for total in sums]


def sgd_in_a_condition(slope, offset, x, y, rate):
    if len(x):
        sgd_by(mean_over_all)(slope, offset, x, y, rate)


def test_sgd_step():
    def gathered(*each):
        return [
            tf.reduce_mean(tf.distribute.get_replica_context().all_gather(gradient, axis=0))
            for gradient in each
        ]

    assert_right_answers_pass(REGRESSION, sgd_by(gathered))
    wrong = {
        "no_all_reduce": sgd_by(lambda *each: [*map(tf.reduce_mean, each)]),
        "mean_of_means": sgd_by(lambda *each: all_reduce("MEAN", [*map(tf.reduce_mean, each)])),
        "all_reduce_in_a_condition": sgd_in_a_condition,
    }
    assert_mistakes_are_caught(REGRESSION, wrong)


# --- adagrad_step


def adagrad(weight, total, gradient, rate, limit):
    whole = tf.maximum(tf.minimum(all_reduce("SUM", gradient), limit), -limit)
    weight.assign_sub(rate * whole * tf.math.rsqrt(total.assign_add(whole**2)))


def adagrad_that_clips_first(weight, total, gradient, rate, limit):
    own = tf.clip_by_value(gradient, -limit, limit)
    adagrad(weight, total, own, rate, limit)


def test_adagrad_step():
    assert_right_answers_pass(ADAGRAD, adagrad)
    assert_mistakes_are_caught(ADAGRAD, {"clipped_before_reduce": adagrad_that_clips_first})


# --- local_step


def local_step(averages):
    def step(weight, gradient, rate, step, every):
        new = weight - rate * gradient
        weight.assign(all_reduce("MEAN", new) if averages(step, every) else new)

    return step


def test_local_step():
    assert_right_answers_pass(LOCAL, local_step(lambda step, every: not step % every))
    wrong = {
        "averages_each_step": local_step(lambda step, every: True),
        "off_by_one": local_step(lambda step, every: step % every == 1),
    }
    assert_mistakes_are_caught(LOCAL, wrong)
