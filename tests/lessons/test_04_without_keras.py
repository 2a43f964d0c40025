"""The checks of lesson 04: right answers pass, mistakes are named, the lesson's claims hold."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from distlab.checks.registry import checks_of
from distlab.coursework.replicas import MOST_REPLICAS, mirrored
from tests.support.lesson_checks import (
    assert_mistake_is_caught,
    assert_solution_passes,
    assert_stub_earns_nothing,
    load_solution,
    load_stub,
)

STEM = "04_without_keras"
REGRESSION, ADAGRAD, LOCAL = checks_of(STEM)
solution = functools.cache(functools.partial(load_solution, STEM))
ONE_DRAW = (1,)


def all_reduce(way, values):
    return tf.distribute.get_replica_context().all_reduce(way, values)


# sgd_step


def sgd_by_tape(slope, offset, x, y, rate):
    count = tf.cast(tf.size(x), tf.float32)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((slope * x + offset - y) ** 2) / all_reduce("SUM", count)
    gradients = all_reduce("SUM", tape.gradient(loss, [slope, offset]))
    slope.assign_sub(rate * gradients[0])
    offset.assign_sub(rate * gradients[1])


def sgd_of_concatenated_examples(slope, offset, x, y, rate):
    context = tf.distribute.get_replica_context()
    x, y = context.all_gather(x, axis=0), context.all_gather(y, axis=0)
    error = slope * x + offset - y
    by_slope, by_offset = 2 * tf.reduce_mean(error * x), 2 * tf.reduce_mean(error)
    slope.assign_sub(rate * by_slope)
    offset.assign_sub(rate * by_offset)


@pytest.mark.parametrize("answer", [sgd_by_tape, sgd_of_concatenated_examples])
def test_other_right_steps_pass(answer):
    assert_solution_passes(REGRESSION, answer, seeds=ONE_DRAW)


def means(way, *, weigh=False, divide=True):
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


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (means(None), "no_all_reduce"),
        (means("MEAN"), "mean_of_means"),
        (means("SUM"), "sum_of_means"),
        (means("SUM", weigh=True), "nan_of_nothing"),
        (sums(way=None), "own_sum"),
        (sums(way="MEAN"), "mean_for_sum"),
        (sums(divide_by="mean"), "divided_by_mean_count"),
        (sums(divide_by="own"), "own_count"),
        (sums(divide_by="nothing"), "not_divided"),
        (sums(factor=1.0), "half_the_gradient"),
        (sums(factor=-2.0), "uphill"),
        (sgd_in_a_condition, "all_reduce_in_a_condition"),
    ],
)
def test_a_wrong_step_is_named(answer, mistake):
    assert_mistake_is_caught(REGRESSION, answer, mistake, seeds=ONE_DRAW)


# adagrad_step


def adagrad(*, order=("reduce", "clip", "total", "change"), way="SUM"):
    """Adagrad with its lines in the given order; a line that is not named is left out."""

    def step(weight, total, gradient, rate, limit):
        change = tf.zeros_like(weight)
        for line in order:
            if line == "reduce":
                gradient = all_reduce(way, gradient)
            elif line == "clip":
                gradient = tf.clip_by_value(gradient, -limit, limit)
            elif line == "total":
                total.assign_add(gradient**2)
            elif line == "total of parts":
                total.assign_add(all_reduce("SUM", gradient**2))
            elif line == "reduce change":
                change = all_reduce(way, change)
            else:
                change = rate * gradient / tf.sqrt(total)
        weight.assign_sub(change)

    return step


def test_adagrad_as_handed_out_earns_nothing_and_is_named():
    stub = load_stub(STEM)["adagrad_step"]
    assert_stub_earns_nothing(ADAGRAD, stub, status="not yet")
    assert_mistake_is_caught(ADAGRAD, stub, "changes_reduced", seeds=ONE_DRAW)


def adagrad_in_one_expression(weight, total, gradient, rate, limit):
    whole = tf.maximum(tf.minimum(all_reduce("SUM", gradient), limit), -limit)
    weight.assign_sub(rate * whole * tf.math.rsqrt(total.assign_add(whole**2)))


def adagrad_of_gathered_parts(weight, total, gradient, rate, limit):
    parts = tf.distribute.get_replica_context().all_gather(gradient[None], axis=0)
    whole = tf.clip_by_value(tf.reduce_sum(parts, axis=0), -limit, limit)
    new = total + whole**2
    total.assign(new)
    weight.assign(weight - rate * whole / new**0.5)


@pytest.mark.parametrize("answer", [adagrad_in_one_expression, adagrad_of_gathered_parts])
def test_other_right_adagrads_pass(answer):
    assert_solution_passes(ADAGRAD, answer, seeds=ONE_DRAW)


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (adagrad(order=("clip", "total", "change")), "no_all_reduce"),
        (adagrad(order=("clip", "reduce", "total", "change")), "clipped_before_reduce"),
        (adagrad(order=("total", "reduce", "clip", "change")), "state_before_reduce"),
        (adagrad(order=("total of parts", "reduce", "clip", "change")), "state_before_reduce"),
        (adagrad(order=("clip", "total", "change", "reduce change")), "changes_reduced"),
        (
            adagrad(order=("clip", "total", "change", "reduce change"), way="MEAN"),
            "changes_reduced",
        ),
        (adagrad(way="MEAN"), "mean_for_sum"),
        (adagrad(order=("reduce", "total", "change")), "not_limited"),
        (adagrad(order=("reduce", "clip", "change", "total")), "total_too_late"),
        (
            lambda weight, total, gradient, rate, limit: adagrad()(
                weight, total, gradient, -rate, limit
            ),
            "uphill",
        ),
    ],
)
def test_a_wrong_adagrad_is_named(answer, mistake):
    assert_mistake_is_caught(ADAGRAD, answer, mistake, seeds=ONE_DRAW)


# local_step


def local(
    *,
    averages=lambda step, every: step % every == 0,
    moves=lambda step, every: True,
    way="MEAN",
    average_first=False,
    sign=1,
):
    def step(weight, gradient, rate, step, every):
        def average():
            if averages(step, every):
                weight.assign(all_reduce(way, weight.read_value()))

        if average_first:
            average()
        if moves(step, every):
            weight.assign_sub(sign * rate * gradient)
        if not average_first:
            average()

    return step


def local_step_that_averages_the_new_value(weight, gradient, rate, step, every):
    new = weight - rate * gradient
    weight.assign(new if step % every else all_reduce("MEAN", new))


def sgd_of_reduced_gradients(weight, gradient, rate, step, every):
    weight.assign_sub(rate * all_reduce("MEAN", gradient))


def local_step_that_sums_quarters(weight, gradient, rate, step, every):
    weight.assign_sub(rate * gradient)
    if step // every * every == step:
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        weight.assign(all_reduce("SUM", weight / replicas))


@pytest.mark.parametrize(
    "answer", [local_step_that_averages_the_new_value, local_step_that_sums_quarters]
)
def test_other_right_local_steps_pass(answer):
    assert_solution_passes(LOCAL, answer, seeds=ONE_DRAW)


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (sgd_of_reduced_gradients, "averages_each_step"),
        (local(averages=lambda step, every: True), "averages_each_step"),
        (local(averages=lambda step, every: False), "never_averages"),
        (local(way="SUM"), "sum_of_copies"),
        (local(average_first=True), "averages_before_the_step"),
        (local(averages=lambda step, every: (step - 1) % every == 0), "off_by_one"),
        (local(moves=lambda step, every: step % every == 0), "moves_at_averages_only"),
        (local(moves=lambda step, every: step % every != 0), "stands_still_at_averages"),
        (local(sign=-1), "uphill"),
    ],
)
def test_a_wrong_local_step_is_named(answer, mistake):
    assert_mistake_is_caught(LOCAL, answer, mistake, seeds=ONE_DRAW)


@pytest.mark.parametrize("check", [REGRESSION, ADAGRAD, LOCAL], ids=lambda check: check.name)
def test_the_solution_passes(check):
    assert_solution_passes(check, solution()[check.function], seeds=range(2))


# What the lesson says


@pytest.fixture(scope="module")
def lesson():
    """The names of the lesson up to its second way to train; two short trainings."""
    source = "lessons/04_without_keras/lesson.py"
    from tests.support.repository import ROOT

    text = (ROOT / source).read_text(encoding="utf-8")
    text = text.partition("# ### Which of the four would you save?")[0]
    names: dict = {}
    exec(compile(text, source, "exec"), names)
    return names


def test_every_drifted_copy_is_worse_than_one_device(lesson):
    images, labels = next(iter(lesson["test"].unbatch().batch(360)))

    def accuracy(weights):
        return np.mean(np.argmax(lesson["scores"](weights, images), axis=-1) == labels)

    alone = accuracy(lesson["one_device"])
    for replica in range(MOST_REPLICAS):
        copy = [lesson["copies"](weight)[replica] for weight in lesson["drifted"]]
        assert accuracy(copy) < alone - 0.03


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


def test_copies_stay_equal_if_the_changes_are_reduced():
    strategy = mirrored(MOST_REPLICAS)
    with strategy.scope():
        weight, total = tf.Variable(tf.zeros(3)), tf.Variable(tf.ones(3))
    change = adagrad(order=("total", "change", "reduce change"))
    strategy.run(lambda: change(weight, total, gradient_of_its_own(), 0.1, 1.0))
    first, *others = (copy.numpy() for copy in strategy.experimental_local_results(weight))
    assert first.any()
    assert all((other == first).all() for other in others)


def gradient_of_its_own():
    replica = tf.distribute.get_replica_context().replica_id_in_sync_group
    return tf.cast(replica, tf.float32) + tf.constant([1.0, -2.0, 3.0])


def test_keras_clips_before_it_all_reduces():
    strategy = mirrored(MOST_REPLICAS)
    with strategy.scope():
        weight = keras.Variable(tf.zeros(1))
        optimizer = keras.optimizers.SGD(1.0, clipvalue=1.0)
        optimizer.build([weight])

    def step():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        part = tf.gather([5.0, -2.0, -2.0, -2.0], replica)  # the sum is -1, within the limit
        optimizer.apply([tf.reshape(part, [1])], [weight])

    strategy.run(step)
    # one device would subtract -1; clipped first, the parts are 1, -1, -1 and -1
    np.testing.assert_allclose(weight.numpy(), [2.0])
