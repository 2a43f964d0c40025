"""The checks of lesson 04: right answers pass, mistakes are named, the lesson's claims hold."""

import numpy as np
import pytest
import tensorflow as tf

from distlab.checks.registry import checks_of
from tests.support.lesson_checks import (
    assert_mistakes_are_caught,
    assert_right_answers_pass,
    load_stub,
)
from tests.support.repository import ROOT

STEM = "04_without_keras"
REGRESSION, ADAGRAD, LOCAL = checks_of(STEM)
ONE_DRAW = (1,)


def all_reduce(way, values):
    return tf.distribute.get_replica_context().all_reduce(way, values)


# sgd_step


def sgd_of_concatenated_examples(slope, offset, x, y, rate):
    context = tf.distribute.get_replica_context()
    x, y = context.all_gather(x, axis=0), context.all_gather(y, axis=0)
    error = slope * x + offset - y
    by_slope, by_offset = 2 * tf.reduce_mean(error * x), 2 * tf.reduce_mean(error)
    slope.assign_sub(rate * by_slope)
    offset.assign_sub(rate * by_offset)


def test_other_right_steps_pass():
    assert_right_answers_pass(REGRESSION, sums(), sgd_of_concatenated_examples, seeds=ONE_DRAW)


def means(way, *, weigh=False):
    """A step from the replica's own mean gradients, written out."""

    def step(slope, offset, x, y, rate):
        error, count = slope * x + offset - y, tf.cast(tf.size(x), tf.float32)
        own = [2 * tf.reduce_mean(error * x), 2 * tf.reduce_mean(error)]
        if weigh:
            total = all_reduce("SUM", count)
            own = [each * count / total for each in own]
        own = all_reduce(way, own) if way else own
        slope.assign_sub(rate * own[0])
        offset.assign_sub(rate * own[1])

    return step


def sums(*, way="SUM", divide_by="all", factor=2.0):
    def step(slope, offset, x, y, rate):
        error, count = slope * x + offset - y, tf.cast(tf.size(x), tf.float32)
        total = {
            "all": lambda: all_reduce("SUM", count),
            "mean": lambda: all_reduce("MEAN", count),
            "own": lambda: count,
            "nothing": lambda: 1.0,
        }[divide_by]()
        own = [factor * tf.reduce_sum(error * x), factor * tf.reduce_sum(error)]
        own = all_reduce(way, own) if way else own
        slope.assign_sub(rate * own[0] / total)
        offset.assign_sub(rate * own[1] / total)

    return step


def sgd_in_a_condition(slope, offset, x, y, rate):
    if len(x):
        sums()(slope, offset, x, y, rate)


def test_a_wrong_step_is_named():
    wrong = {
        "no_all_reduce": means(None),
        "mean_of_means": means("MEAN"),
        "sum_of_means": means("SUM"),
        "nan_of_nothing": means("SUM", weigh=True),
        "own_sum": sums(way=None),
        "mean_for_sum": sums(way="MEAN"),
        "divided_by_mean_count": sums(divide_by="mean"),
        "own_count": sums(divide_by="own"),
        "not_divided": sums(divide_by="nothing"),
        "half_the_gradient": sums(factor=1.0),
        "uphill": sums(factor=-2.0),
        "all_reduce_in_a_condition": sgd_in_a_condition,
    }
    assert_mistakes_are_caught(REGRESSION, wrong, seeds=ONE_DRAW)


# adagrad_step


def adagrad(order="reduce clip total change", *, way="SUM", sign=1):
    """Adagrad with its lines in the given order; a line that is not named is left out."""

    def step(weight, total, gradient, rate, limit):
        change = tf.zeros_like(weight)
        for line in order.split():
            if line == "reduce":
                gradient = all_reduce(way, gradient)
            elif line == "clip":
                gradient = tf.clip_by_value(gradient, -limit, limit)
            elif line == "total":
                total.assign_add(gradient**2)
            elif line == "reduce_change":
                change = all_reduce(way, change)
            else:
                change = sign * rate * gradient / tf.sqrt(total)
        weight.assign_sub(change)

    return step


def adagrad_in_one_expression(weight, total, gradient, rate, limit):
    whole = tf.maximum(tf.minimum(all_reduce("SUM", gradient), limit), -limit)
    weight.assign_sub(rate * whole * tf.math.rsqrt(total.assign_add(whole**2)))


def test_other_right_adagrads_pass():
    assert_right_answers_pass(ADAGRAD, adagrad(), adagrad_in_one_expression, seeds=ONE_DRAW)


def test_a_wrong_adagrad_is_named():
    wrong = {
        "no_all_reduce": adagrad("clip total change"),
        "clipped_before_reduce": adagrad("clip reduce total change"),
        "state_before_reduce": adagrad("total reduce clip change"),
        "changes_reduced": load_stub(STEM)["adagrad_step"],
        "mean_for_sum": adagrad(way="MEAN"),
        "not_limited": adagrad("reduce total change"),
        "total_too_late": adagrad("reduce clip change total"),
        "uphill": adagrad(sign=-1),
    }
    assert_mistakes_are_caught(ADAGRAD, wrong, seeds=ONE_DRAW)


# local_step


def local(
    *,
    averages=lambda t, every: t % every == 0,
    moves=lambda t, every: True,
    way="MEAN",
    sign=1,
    lines="move average",
):
    def step(weight, gradient, rate, step, every):
        for line in lines.split():
            if line == "move" and moves(step, every):
                weight.assign_sub(sign * rate * gradient)
            if line == "average" and averages(step, every):
                weight.assign(all_reduce(way, weight.read_value()))

    return step


def local_step_that_averages_the_new_value(weight, gradient, rate, step, every):
    new = weight - rate * gradient
    weight.assign(new if step % every else all_reduce("MEAN", new))


def test_other_right_local_steps_pass():
    answers = local_step_that_averages_the_new_value, local()
    assert_right_answers_pass(LOCAL, *answers, seeds=ONE_DRAW)


def test_a_wrong_local_step_is_named():
    wrong = {
        "averages_each_step": local(averages=lambda t, every: True),
        "never_averages": local(averages=lambda t, every: False),
        "sum_of_copies": local(way="SUM"),
        "averages_before_the_step": local(lines="average move"),
        "off_by_one": local(averages=lambda t, every: (t - 1) % every == 0),
        "moves_at_averages_only": local(moves=lambda t, every: t % every == 0),
        "stands_still_at_averages": local(moves=lambda t, every: t % every != 0),
        "uphill": local(sign=-1),
    }
    assert_mistakes_are_caught(LOCAL, wrong, seeds=ONE_DRAW)


# What the lesson says


@pytest.fixture(scope="module")
def lesson():
    """The names of the lesson up to its second way to train; two short trainings."""
    path = ROOT / "lessons" / STEM / "lesson.py"
    text = path.read_text(encoding="utf-8").partition("# ### Which of the four would you save?")[0]
    names: dict = {}
    exec(compile(text, str(path), "exec"), names)
    return names


def gradients_in_numpy(weights, x, labels, count):
    hidden = np.maximum(x @ weights[0] + weights[1], 0)
    scores = hidden @ weights[2] + weights[3]
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    losses = -np.log(chances[range(len(labels)), labels])
    wrong = (chances - np.eye(10)[labels]) / count
    before = (wrong @ weights[2].T) * (hidden > 0)
    return losses, [x.T @ before, before.sum(0), hidden.T @ wrong, wrong.sum(0)]


def losses_in_numpy(lesson, *, epochs, rate, replica=None):
    """The losses on the test digits after training on all shares of each batch, or on one."""
    batches = [(x.numpy().reshape(-1, 64), y.numpy()) for x, y in lesson["train"]]
    weights = lesson["start"]()
    for x, y in batches * epochs:
        share = -(-len(x) // 4)
        own = slice(None) if replica is None else slice(replica * share, (replica + 1) * share)
        _, gradients = gradients_in_numpy(weights, x[own], y[own], len(x))
        weights = [w - rate * g for w, g in zip(weights, gradients, strict=True)]
    x, y = next(iter(lesson["test"].unbatch().batch(360)))
    return gradients_in_numpy(weights, x.numpy().reshape(-1, 64), y.numpy(), 1)[0].mean()


def test_in_a_long_run_a_quarter_of_the_digits_costs_more_than_short_steps(lesson):
    def losses(epochs):
        few = [losses_in_numpy(lesson, epochs=epochs, rate=2, replica=n) for n in range(4)]
        return losses_in_numpy(lesson, epochs=epochs, rate=0.125), np.mean(few)

    short, few = losses(2)
    assert short > 1.2 * few
    alone = losses_in_numpy(lesson, epochs=32, rate=0.5)
    assert [alone, *losses(32)] == pytest.approx([0.10, 0.12, 0.18], abs=0.01)


def test_a_checkpoint_holds_one_copy(lesson, tmp_path):
    weight = lesson["drifted"][-1]
    path = tf.train.Checkpoint(weight=weight).write(str(tmp_path / "kept"))
    alone = tf.Variable(tf.zeros(10))
    tf.train.Checkpoint(weight=alone).read(path).assert_consumed()
    first, *others = lesson["copies"](weight)
    np.testing.assert_array_equal(alone, first)
    assert all((other != first).any() for other in others)
