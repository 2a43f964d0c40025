"""The checks of lesson 04: right answers pass, mistakes are named, the lesson's claims hold."""

import numpy as np
import pytest
import tensorflow as tf

from distlab.course.checks.registry import checks_of
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


def sums(*, divide_by="all"):
    """A step from the sums over the examples of all replicas."""

    def step(slope, offset, x, y, rate):
        error, count = slope * x + offset - y, tf.cast(tf.size(x), tf.float32)
        whole = all_reduce("SUM", [2 * tf.reduce_sum(error * x), 2 * tf.reduce_sum(error), count])
        divisor = whole[2] if divide_by == "all" else count
        slope.assign_sub(rate * whole[0] / divisor)
        offset.assign_sub(rate * whole[1] / divisor)

    return step


def sgd_in_a_condition(slope, offset, x, y, rate):
    if len(x):
        sums()(slope, offset, x, y, rate)


def test_a_wrong_step_is_named():
    wrong = {
        "no_all_reduce": means(None),
        "mean_of_means": means("MEAN"),
        "nan_of_nothing": means("SUM", weigh=True),
        "own_count": sums(divide_by="own"),
        "all_reduce_in_a_condition": sgd_in_a_condition,
    }
    assert_mistakes_are_caught(REGRESSION, wrong, seeds=ONE_DRAW)


# adagrad_step


def adagrad(order="reduce clip total change", *, way="SUM"):
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
                change = rate * gradient / tf.sqrt(total)
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
    }
    assert_mistakes_are_caught(ADAGRAD, wrong, seeds=ONE_DRAW)


# local_step


def local(*, averages=lambda t, every: t % every == 0, way="MEAN", lines="move average"):
    def step(weight, gradient, rate, step, every):
        for line in lines.split():
            if line == "move":
                weight.assign_sub(rate * gradient)
            elif averages(step, every):
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
    }
    assert_mistakes_are_caught(LOCAL, wrong, seeds=ONE_DRAW)


# What the lesson says


@pytest.fixture(scope="module")
def lesson():
    """The names of the lesson up to its second way to train; two short trainings."""
    path = ROOT / f"distlab/course/lesson_{STEM}/lesson.py"
    text = path.read_text(encoding="utf-8").partition("# ### Which of the four would you save?")[0]
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


def test_in_a_long_run_a_quarter_of_the_digits_costs_more_than_short_steps(lesson):
    few = [loss_in_numpy(lesson, epochs=32, rate=2, replica=n) for n in range(4)]
    alone, short = (loss_in_numpy(lesson, epochs=32, rate=rate) for rate in (0.5, 0.125))
    assert [alone, short, np.mean(few)] == pytest.approx([0.10, 0.12, 0.18], abs=0.01)


def test_a_checkpoint_holds_one_copy(lesson, tmp_path):
    weight = lesson["drifted"][-1]
    path = tf.train.Checkpoint(weight=weight).write(str(tmp_path / "kept"))
    alone = tf.Variable(tf.zeros(10))
    tf.train.Checkpoint(weight=alone).read(path).assert_consumed()
    first, *others = lesson["copies"](weight)
    np.testing.assert_array_equal(alone, first)
    assert all((other != first).any() for other in others)
