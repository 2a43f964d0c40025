"""The checks of lesson 02, and what the lesson claims: right answers pass, mistakes are named."""

import functools
import math
from statistics import mean, stdev

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
from distlab.checks.registry import checks_of
from distlab.checks.run_check import run_check
from distlab.coursework import batch_sweeps, step_times
from distlab.coursework.batch_sweeps import TRAINING, Runs, train_many
from tests.support.lesson_checks import (
    assert_mistake_is_caught,
    assert_solution_passes,
    load_solution,
)

STEM = "02_batch_scaling"
PLAN, WARM_UP, NOISE, COMPARE = checks_of(STEM)
solution = functools.cache(functools.partial(load_solution, STEM))
ids = {"ids": lambda value: value if isinstance(value, str) else ""}


# --- plan_job


def job(
    *,
    batch=lambda p, r, a: p * r * a,
    rate=lambda k, r: k,
    adam=lambda k: math.sqrt(k),
    steps=lambda n, b, e, p: e * math.ceil(n / b),
):
    def plan_job(
        examples, epochs, per_replica, replicas, accumulate, optimizer, found_rate, found_batch
    ):
        whole = batch(per_replica, replicas, accumulate)
        k = rate(whole / found_batch, replicas)
        return {
            "global_batch": whole,
            "learning_rate": found_rate * (k if optimizer == "sgd" else adam(k)),
            "steps": steps(examples, whole, epochs, per_replica),
        }

    return plan_job


def by_counting(examples, epochs, per_replica, replicas, accumulate, **how):
    """Steps by counting batches, and NumPy numbers."""
    whole = np.int64(per_replica) * replicas * accumulate
    power = {"sgd": 1.0, "adam": 0.5}[how["optimizer"]]
    rate = how["found_rate"] * (whole / how["found_batch"]) ** power
    steps = len(range(0, examples, int(whole))) * epochs
    return {"global_batch": whole, "learning_rate": rate, "steps": steps, "more": 1}


@pytest.mark.parametrize("right", [job(), by_counting], ids=["by_hand", "by_counting"])
def test_other_right_plans_pass(right):
    assert_solution_passes(PLAN, right, seeds=range(5))


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        (job(batch=lambda p, r, a: p), "batch_per_replica"),
        (job(batch=lambda p, r, a: p * r), "accumulation_forgotten"),
        (job(rate=lambda k, r: k * r), "lr_scaled_twice"),
        (job(rate=lambda k, r: r), "scaled_by_replicas"),
        (job(steps=lambda n, b, e, p: e * math.ceil(n / p)), "steps_of_one_device"),
        (job(adam=lambda k: k), "linear_for_adam"),
        (job(rate=lambda k, r: math.sqrt(k), adam=lambda k: k), "root_for_sgd"),
        (job(steps=lambda n, b, e, p: e * (n // b)), "partial_batch_dropped"),
        (job(steps=lambda n, b, e, p: math.ceil(n * e / b)), "one_long_epoch"),
        (job(steps=lambda n, b, e, p: math.ceil(n / b)), "one_epoch"),
    ],
    **ids,
)
def test_wrong_plans_are_named(wrong, mistake):
    assert_mistake_is_caught(PLAN, wrong, mistake)


@pytest.mark.parametrize("answer", [None, 7, {"global_batch": 7}])
def test_a_plan_of_a_different_form_learns_what_to_return(answer):
    report = run_check(PLAN, lambda **asked: answer)
    assert "a dictionary with global_batch, learning_rate, steps" in repr(report)
    assert report.earned == 0


# --- rate_at


def climb(*, count=lambda epoch, batch, per: epoch * per + batch, length=0, low=True, stop=True):
    def rate_at(epoch, batch, steps_per_epoch, warmup_epochs, first_rate, full_rate):
        steps = warmup_epochs * steps_per_epoch + length
        if not warmup_epochs:
            return full_rate
        part = count(epoch, batch, steps_per_epoch) / steps
        part = min(1, part) if stop else part
        low_rate = first_rate if low else 0.0
        return low_rate + (full_rate - low_rate) * part

    return rate_at


def added(epoch, batch, steps_per_epoch, warmup_epochs, first_rate, full_rate):
    part = climb()(epoch, batch, steps_per_epoch, warmup_epochs, 0.0, 1.0)
    return first_rate + full_rate * part


def by_interpolation(epoch, batch, steps_per_epoch, warmup_epochs, first_rate, full_rate):
    """NumPy keeps the last value by itself."""
    ends = [0, warmup_epochs] if warmup_epochs else [-2, -1]
    return np.interp(epoch + batch / steps_per_epoch, ends, [first_rate, full_rate])


def by_schedule(epoch, batch, steps_per_epoch, warmup_epochs, first_rate, full_rate):
    if warmup_epochs == 0:
        return full_rate
    plan = dl.plan_batch(global_batch=1, replicas=1, base_learning_rate=first_rate, rule="none")
    steps = warmup_epochs * steps_per_epoch
    schedule = keras.optimizers.schedules.CosineDecay(
        plan.learning_rate, 1, alpha=1.0, warmup_target=full_rate, warmup_steps=steps
    )
    return schedule(epoch * steps_per_epoch + batch)


@pytest.mark.parametrize("right", [climb(), by_interpolation, by_schedule])
def test_other_right_climbs_pass(right):
    assert_solution_passes(WARM_UP, right, seeds=range(3))


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        (climb(count=lambda epoch, batch, per: batch), "restarts_each_epoch"),
        (climb(count=lambda epoch, batch, per: epoch * per + batch + 1), "off_by_one"),
        (climb(length=-1), "off_by_one"),
        (climb(count=lambda epoch, batch, per: epoch * per), "one_stair_an_epoch"),
        (climb(low=False), "starts_at_zero"),
        (climb(stop=False), "climbs_on"),
        (added, "added_on_top"),
    ],
    **ids,
)
def test_wrong_climbs_are_named(wrong, mistake):
    assert assert_mistake_is_caught(WARM_UP, wrong, mistake).earned == 0


# --- noise_parts


def parts(*, small="MEAN", big="MEAN", swap=False, signal="", root=False, examples=True):
    def noise_parts(gradient, per_replica):
        context = tf.distribute.get_replica_context()
        squared = lambda vector: tf.reduce_sum(vector**2) ** (0.5 if root else 1.0)  # noqa: E731
        b = squared(gradient)
        b = context.all_reduce(small, b) if small else b
        big_b = squared(context.all_reduce(big, gradient))
        few = per_replica if examples else 1
        many = few * context.num_replicas_in_sync
        few, many = (many, few) if swap else (few, many)
        noise = (b - big_b) / (1 / few - 1 / many)
        true = {"": (many * big_b - few * b) / (many - few), "big": big_b}[signal]
        return noise, true

    return noise_parts


def by_the_variance_of_shares(gradient, per_replica):
    """The unbiased variance between replicas, which is the same estimate in other words."""
    context = tf.distribute.get_replica_context()
    count = context.num_replicas_in_sync
    mean = context.all_reduce("MEAN", gradient)
    away = context.all_reduce("SUM", tf.reduce_sum((gradient - mean) ** 2))
    noise = per_replica * away / (count - 1)
    return [noise, tf.reduce_sum(mean**2) - noise / (per_replica * count)]


@pytest.mark.parametrize(
    "right", [parts(), by_the_variance_of_shares], ids=["norms", "variance_of_shares"]
)
def test_other_right_parts_pass(right):
    assert_solution_passes(NOISE, right, seeds=range(2))


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        (parts(small=None), "own_norm"),
        (parts(swap=True), "swapped_batches"),
        (parts(signal="big"), "biased_norms"),
        (parts(big="SUM"), "sum_for_mean"),
        (parts(root=True), "not_squared"),
        (parts(examples=False), "replicas_for_batches"),
    ],
    **ids,
)
def test_wrong_parts_are_named(wrong, mistake):
    assert_mistake_is_caught(NOISE, wrong, mistake, seeds=(1, 2))


def test_strategy_reduce_in_a_step_is_named():
    def reduced(gradient, per_replica):
        strategy = tf.distribute.get_strategy()
        return strategy.reduce("MEAN", gradient, axis=None), 0.0

    assert_mistake_is_caught(NOISE, reduced, "reduce_on_a_replica", seeds=(1,))


@pytest.mark.parametrize("answer", [None, 1.0, (1.0, 2.0, 3.0)])
def test_parts_of_a_different_form_learn_what_to_return(answer):
    report = run_check(NOISE, lambda gradient, per_replica: answer, seeds=(1,))
    assert "not yet: two numbers" in repr(report)
    assert report.earned == 0


def test_the_two_parts_estimate_the_true_variance_and_gradient():
    draw = np.random.default_rng(0)
    true, spread, share = np.array([1.0, 2.0, 0.0]), 3.0, 8
    drawn = true + spread * draw.normal(size=(4000, 4, share, 3))
    found = NOISE.reference({"gradients": drawn.mean(axis=2), "per_replica": share})
    assert found["noise"].mean() == pytest.approx(3 * spread**2, rel=0.02)
    assert found["signal"].mean() == pytest.approx(5, rel=0.02)


# --- compare_batches


def error_of(values, ddof=1):
    return values.std(ddof=ddof) / len(values) ** 0.5


def compared(
    *,
    look=lambda runs: None,
    on="validation",
    of="test",
    seeds=5,
    one_rate=False,
    told=lambda small, large: (large - small).mean(),
    error=lambda small, large: error_of(large - small),
):
    def compare_batches(small, large, epochs):
        rates, accuracies = [], []
        for runs in (small, large):
            place = list(runs.steps).index(look(runs) or epochs * TRAINING // runs.batch)
            best = getattr(runs, on)[place][:, :seeds].mean(axis=1).argmax()
            best = small.rates.index(rates[0]) if one_rate and rates else best
            rates.append(runs.rates[best])
            accuracies.append(getattr(runs, of)[place][best, :seeds])
        return rates, told(*accuracies), error(*accuracies) if seeds > 1 else 0.0

    return compare_batches


def with_statistics(small, large, epochs):
    """Plain Python, with the first of the best rates."""
    found = []
    for runs in (small, large):
        chosen_by = [mean(row) for row in runs.accuracy_after(epochs, on="validation").tolist()]
        place = chosen_by.index(max(chosen_by))
        found.append((runs.rates[place], runs.accuracy_after(epochs).tolist()[place]))
    apart = [b - a for a, b in zip(found[0][1], found[1][1], strict=True)]
    return (found[0][0], found[1][0]), mean(apart), stdev(apart) / math.sqrt(len(apart))


@pytest.mark.parametrize("right", [compared(), with_statistics])
def test_other_right_comparisons_pass(right):
    assert_solution_passes(COMPARE, right, seeds=range(5))


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        (compared(look=lambda runs: runs.steps[-1]), "equal_epochs_as_equal_steps"),
        (compared(on="test"), "picked_on_test"),
        (compared(one_rate=True), "one_rate_for_both"),
        (compared(seeds=1), "one_seed"),
        (compared(told=lambda small, large: large.max() - small.max()), "best_seed"),
        (compared(of="validation"), "validation_told"),
        (compared(told=lambda small, large: (small - large).mean()), "small_minus_large"),
        (
            compared(error=lambda small, large: math.hypot(error_of(small), error_of(large))),
            "unpaired_error",
        ),
        (compared(error=lambda small, large: (large - small).std(ddof=1)), "spread_for_error"),
        (compared(error=lambda small, large: error_of(large - small, 0)), "one_seed_too_many"),
    ],
    **ids,
)
def test_wrong_comparisons_are_named(wrong, mistake):
    assert_mistake_is_caught(COMPARE, wrong, mistake)


@pytest.mark.parametrize("answer", [None, 0.5, (1, 2), (0.1, 0.2, 0.3)])
def test_a_comparison_of_a_different_form_learns_what_to_return(answer):
    report = run_check(COMPARE, lambda small, large, epochs: answer)
    assert "three values: the two rates, the difference, its standard error" in repr(report)
    assert report.earned == 0


# --- the sweep


def keras_runs(optimizer, *, batch, steps, seed):
    """The validation accuracy after these steps of Keras, from the same weights and digits."""
    layers = [keras.layers.Dense(32, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((64,)), *layers])
    first = [np.squeeze(each[seed]) for each in batch_sweeps.first_weights(seed + 1)]
    model.set_weights(first)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    (images, labels), validation, _ = batch_sweeps.split_digits()
    for chosen in batch_sweeps.digit_orders(batch, 1, seed + 1)[:steps, seed]:
        model.train_on_batch(images[chosen], labels[chosen])
    return model.evaluate(*validation, verbose=0)[1]


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_each_of_many_networks_trains_as_keras_trains_it_alone(name):
    runs = train_many(256, rates=(0.001, 0.02), epochs=1, seeds=2, optimizer=name)
    optimizer = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam}[name](0.02)
    alone = keras_runs(optimizer, batch=256, steps=4, seed=1)
    assert runs.validation[-1, 1, 1] == pytest.approx(alone, abs=1e-6)


def test_a_warm_up_starts_at_its_first_rate_and_ends_at_the_full_one():
    warm = train_many(512, rates=(0.4,), epochs=1, seeds=2, warmup_epochs=1, warmup_from=0.1)
    cold = train_many(512, rates=(0.1,), epochs=1, seeds=2)
    np.testing.assert_array_equal(warm.validation[0], cold.validation[0])
    assert not np.array_equal(warm.validation[1], cold.validation[1])


def test_steps_are_counted_to_the_first_time_and_epochs_find_their_look():
    validation = np.array([0.5, 0.96, 0.9, 0.97])[:, None, None] * np.ones((4, 1, 2))
    validation[:, 0, 1] = 0.1
    test = np.array([0.2, 0.3])[:, None, None] * np.ones((2, 1, 2))
    runs = Runs(batch=512, rates=(0.1,), steps=np.arange(1, 5), validation=validation, test=test)
    np.testing.assert_array_equal(runs.steps_to(0.95), [[2, np.nan]])
    assert runs.accuracy_after(2, on="validation")[0, 0] == 0.97
    assert runs.accuracy_after(1)[0, 0] == 0.2


def test_the_recorded_times_have_every_batch_size_of_the_lesson():
    times = step_times.recorded_step_times()
    assert list(times) == list(step_times.BATCHES)
    assert all(0 < secs < 1 for secs in times.values())


# --- what the lesson claims


def test_a_warm_up_is_keras_schedule_with_the_words_of_the_lesson():
    plan = dl.plan_batch(per_replica=8, replicas=16, base_learning_rate=0.05)
    theirs = keras.optimizers.schedules.CosineDecay(
        0.05, 1, alpha=1.0, warmup_target=0.8, warmup_steps=16
    )
    for step in (0, 8, 16, 100):
        assert float(plan.warmup(steps=16)(step)) == pytest.approx(float(theirs(step)))


def test_a_warm_up_does_more_than_the_same_sum_of_rates():
    warm = {"warmup_epochs": 2, "warmup_from": 0.05}
    rate_sum = sum(0.05 + 0.75 * step / 16 for step in range(16)) + 48 * 0.8
    climbing, constant = (
        train_many(128, rates=(rate,), epochs=8, seeds=5, start_scale=4, **how).accuracy_after(8)
        for rate, how in ((0.8, warm), (rate_sum / 64, {}))
    )
    assert climbing.mean() > constant.mean() + 0.03


def test_no_warm_up_saves_a_batch_of_256():
    for epochs in (0, 2, 5):
        runs = train_many(
            256, rates=(1.6,), epochs=16, seeds=3, warmup_epochs=epochs, warmup_from=0.05
        )
        assert np.isnan(runs.steps_to(0.95)).all()


@pytest.mark.parametrize("batch", [16, 64, 256])
def test_a_rate_of_0_8_arrives_and_one_of_1_6_does_not_whatever_the_batch(batch):
    runs = train_many(batch, rates=(0.8, 1.6), epochs=24 if batch == 256 else 12, seeds=3)
    steps = runs.steps_to(0.95)
    assert np.isfinite(steps[0]).all()
    assert np.isnan(steps[1]).all()
