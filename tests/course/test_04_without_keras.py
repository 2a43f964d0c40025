"""The checks of lesson 04: right answers pass, mistakes are named, the lesson's claims hold."""

import numpy as np
import pytest
import tensorflow as tf

from distlab.course.checks.registry import checks_of
from tests.support.lesson_checks import assert_mistakes_are_caught, assert_right_answers_pass
from tests.support.repository import ROOT

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


# --- what the lesson says


def names_of_the_lesson():
    """What the lesson defines before its first training."""
    path = ROOT / f"distlab/course/lesson_{STEM}/lesson.py"
    text = path.read_text(encoding="utf-8").partition("# ## A step of SGD")[0]
    names: dict = {}
    exec(compile(text, str(path), "exec"), names)
    return names


def hidden_and_chances(weights, x):
    hidden = np.maximum(x @ weights[0] + weights[1], 0)
    raised = np.exp(hidden @ weights[2] + weights[3])
    return hidden, raised / raised.sum(axis=1, keepdims=True)


def loss_in_numpy(lesson, *, epochs, rate, replica=None):
    """The loss on the test digits after training on all shares of each batch, or on one."""
    batches = []
    for x, y in lesson["train"]:
        share = -(-len(x) // 4)
        own = slice(None) if replica is None else slice(replica * share, (replica + 1) * share)
        digits = np.eye(10, dtype=np.float32)[y]
        batches.append((x.numpy().reshape(-1, 64)[own], digits[own], np.float32(rate / len(x))))
    weights = lesson["start"]()
    for x, digits, rate_of_each in batches * epochs:
        hidden, chances = hidden_and_chances(weights, x)
        wrong = (chances - digits) * rate_of_each
        before = (wrong @ weights[2].T) * (hidden > 0)
        changes = x.T @ before, before.sum(axis=0), hidden.T @ wrong, wrong.sum(axis=0)
        weights = [weight - change for weight, change in zip(weights, changes, strict=True)]
    x, y = next(iter(lesson["test"].unbatch().batch(360)))
    _, chances = hidden_and_chances(weights, x.numpy().reshape(-1, 64))
    return -np.log(chances[range(len(y)), y]).mean()


def test_in_a_long_run_a_quarter_of_the_digits_costs_more_than_short_steps():
    lesson = names_of_the_lesson()
    few = [loss_in_numpy(lesson, epochs=32, rate=2, replica=n) for n in range(4)]
    alone, short = (loss_in_numpy(lesson, epochs=32, rate=rate) for rate in (0.5, 0.125))
    assert [alone, short, np.mean(few)] == pytest.approx([0.10, 0.12, 0.18], abs=0.01)
