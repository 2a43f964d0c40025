"""The checks of lesson 02, and what the lesson claims: right answers pass, mistakes are named."""

import math
from statistics import mean, stdev

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
from distlab.course.checks.registry import checks_of
from distlab.course.lesson_02_batch_scaling import runs as batch_sweeps
from distlab.course.lesson_02_batch_scaling.runs import TRAINING, train_many
from tests.support.lesson_checks import (
    assert_feedback_says,
    assert_mistakes_are_caught,
    assert_right_answers_pass,
)

STEM = "02_batch_scaling"
PLAN, WARM_UP, NOISE, COMPARE = checks_of(STEM)


# --- plan_job


def job(
    *,
    batch=lambda p, r, a: p * r * a,
    rate=lambda k, r: k,
    adam=math.sqrt,
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


def test_other_right_plans_pass():
    assert_right_answers_pass(PLAN, job(), by_counting)


def test_wrong_plans_are_named():
    wrong = {
        "batch_per_replica": job(batch=lambda p, r, a: p),
        "accumulation_forgotten": job(batch=lambda p, r, a: p * r),
        "scaled_by_replicas": job(rate=lambda k, r: r),
        "steps_of_one_device": job(steps=lambda n, b, e, p: e * math.ceil(n / p)),
        "linear_for_adam": job(adam=lambda k: k),
    }
    assert_mistakes_are_caught(PLAN, wrong)
    said = {"a dictionary with global_batch, learning_rate, steps": lambda **asked: 7}
    assert_feedback_says(PLAN, said)


# --- rate_at


def climb(*, count=lambda epoch, batch, per: epoch * per + batch, stop=True):
    def rate_at(epoch, batch, steps_per_epoch, warmup_epochs, first_rate, full_rate):
        if not warmup_epochs:
            return full_rate
        part = count(epoch, batch, steps_per_epoch) / (warmup_epochs * steps_per_epoch)
        return first_rate + (full_rate - first_rate) * (min(1, part) if stop else part)

    return rate_at


def by_schedule(epoch, batch, steps_per_epoch, warmup_epochs, first_rate, full_rate):
    if warmup_epochs == 0:
        return full_rate
    plan = dl.plan_batch(global_batch=1, replicas=1, base_learning_rate=first_rate, rule="none")
    steps = warmup_epochs * steps_per_epoch
    schedule = keras.optimizers.schedules.CosineDecay(
        plan.learning_rate, 1, alpha=1.0, warmup_target=full_rate, warmup_steps=steps
    )
    return schedule(epoch * steps_per_epoch + batch)


def test_other_right_climbs_pass():
    assert_right_answers_pass(WARM_UP, climb(), by_schedule, seeds=range(3))


def test_wrong_climbs_are_named():
    wrong = {
        "restarts_each_epoch": climb(count=lambda epoch, batch, per: batch),
        "off_by_one": climb(count=lambda epoch, batch, per: epoch * per + batch + 1),
        "one_stair_an_epoch": climb(count=lambda epoch, batch, per: epoch * per),
        "climbs_on": climb(stop=False),
    }
    assert_mistakes_are_caught(WARM_UP, wrong, earned=0)


# --- noise_parts


def parts(*, small="MEAN", big="MEAN", big_as_signal=False, examples=True):
    def noise_parts(gradient, per_replica):
        context = tf.distribute.get_replica_context()
        b = tf.reduce_sum(gradient**2)
        b = context.all_reduce(small, b) if small else b
        big_b = tf.reduce_sum(context.all_reduce(big, gradient) ** 2)
        few = per_replica if examples else 1
        many = few * context.num_replicas_in_sync
        noise = (b - big_b) / (1 / few - 1 / many)
        return noise, big_b if big_as_signal else (many * big_b - few * b) / (many - few)

    return noise_parts


def by_the_variance_of_shares(gradient, per_replica):
    """The unbiased variance between replicas, which is the same estimate in other words."""
    context = tf.distribute.get_replica_context()
    count = context.num_replicas_in_sync
    mean = context.all_reduce("MEAN", gradient)
    away = context.all_reduce("SUM", tf.reduce_sum((gradient - mean) ** 2))
    noise = per_replica * away / (count - 1)
    return [noise, tf.reduce_sum(mean**2) - noise / (per_replica * count)]


def test_other_right_parts_pass():
    assert_right_answers_pass(NOISE, parts(), by_the_variance_of_shares, seeds=(1,))


def test_wrong_parts_are_named():
    def reduced(gradient, per_replica):
        strategy = tf.distribute.get_strategy()
        return strategy.reduce("MEAN", gradient, axis=None), 0.0

    wrong = {
        "own_norm": parts(small=None),
        "biased_norms": parts(big_as_signal=True),
        "sum_for_mean": parts(big="SUM"),
        "replicas_for_batches": parts(examples=False),
        "reduce_on_a_replica": reduced,
    }
    assert_mistakes_are_caught(NOISE, wrong, seeds=(1, 2))
    assert_feedback_says(NOISE, {"not yet: two numbers": lambda gradient, per_replica: 1.0})


def test_the_two_parts_estimate_the_true_variance_and_gradient():
    draw = np.random.default_rng(0)
    true, spread, share = np.array([1.0, 2.0, 0.0]), 3.0, 8
    drawn = true + spread * draw.normal(size=(4000, 4, share, 3))
    found = NOISE.reference({"gradients": drawn.mean(axis=2), "per_replica": share})
    assert found["noise"].mean() == pytest.approx(3 * spread**2, rel=0.02)
    assert found["signal"].mean() == pytest.approx(5, rel=0.02)


# --- compare_batches


def error_of(values):
    return values.std(ddof=1) / len(values) ** 0.5


def compared(
    *,
    look=lambda runs, epochs: epochs * TRAINING // runs.batch,
    on="validation",
    told=lambda small, large: (large - small).mean(),
    error=lambda small, large: error_of(large - small),
):
    def compare_batches(small, large, epochs):
        rates, accuracies = [], []
        for runs in (small, large):
            place = list(runs.steps).index(look(runs, epochs))
            best = getattr(runs, on)[place].mean(axis=1).argmax()
            rates.append(runs.rates[best])
            accuracies.append(runs.test[place][best])
        return rates, told(*accuracies), error(*accuracies)

    return compare_batches


def with_statistics(small, large, epochs):
    """Plain Python, with the first of the best rates."""
    rates, accuracies = [], []
    for runs in (small, large):
        chosen_by = [mean(row) for row in runs.accuracy_after(epochs, on="validation").tolist()]
        place = chosen_by.index(max(chosen_by))
        rates.append(runs.rates[place])
        accuracies.append(runs.accuracy_after(epochs).tolist()[place])
    apart = [b - a for a, b in zip(*accuracies, strict=True)]
    return tuple(rates), mean(apart), stdev(apart) / math.sqrt(len(apart))


def test_other_right_comparisons_pass():
    assert_right_answers_pass(COMPARE, compared(), with_statistics)


def test_wrong_comparisons_are_named():
    def unpaired(small, large):
        return math.hypot(error_of(small), error_of(large))

    wrong = {
        "equal_epochs_as_equal_steps": compared(look=lambda runs, epochs: runs.steps[-1]),
        "picked_on_test": compared(on="test"),
        "best_seed": compared(told=lambda small, large: large.max() - small.max()),
        "unpaired_error": compared(error=unpaired),
        "spread_for_error": compared(error=lambda small, large: (large - small).std(ddof=1)),
    }
    assert_mistakes_are_caught(COMPARE, wrong)
    form = "three values: the two rates, the difference, its standard error"
    assert_feedback_says(COMPARE, {form: lambda small, large, epochs: (1, 2)})


# --- the sweep


def keras_runs(optimizer, *, batch, steps, seed):
    """The validation accuracy after these steps of Keras, from the same weights and digits."""
    layers = [keras.layers.Dense(32, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((64,)), *layers])
    first = [np.squeeze(each[seed]) for each in batch_sweeps.first_weights(seed + 1)]
    model.set_weights(first)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], run_eagerly=True)
    (images, labels), validation, _ = batch_sweeps.split_digits()
    for chosen in batch_sweeps.digit_orders(batch, 1, seed + 1)[:steps, seed]:
        model.train_on_batch(images[chosen], labels[chosen])
    return model.evaluate(*validation, batch_size=len(validation[1]), verbose=0)[1]


def test_each_of_many_networks_trains_as_keras_trains_it_alone():
    kinds = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam}
    for name, optimizer in kinds.items():
        runs = train_many(256, rates=(0.001, 0.02), epochs=1, seeds=2, optimizer=name)
        alone = keras_runs(optimizer(0.02), batch=256, steps=4, seed=1)
        # A score that is a tie up to rounding may be read either way: two of the digits.
        assert runs.validation[-1, 1, 1] == pytest.approx(alone, abs=0.01), name


# --- what the lesson claims


def test_a_warm_up_is_keras_schedule_with_the_words_of_the_lesson():
    plan = dl.plan_batch(per_replica=8, replicas=16, base_learning_rate=0.05)
    theirs = keras.optimizers.schedules.CosineDecay(
        0.05, 1, alpha=1.0, warmup_target=0.8, warmup_steps=16
    )
    for step in (0, 8, 16, 100):
        assert float(plan.warmup(steps=16)(step)) == pytest.approx(float(theirs(step)))


def test_no_warm_up_saves_a_batch_of_256():
    for warm_up in ({}, {"warmup_epochs": 2, "warmup_from": 0.05}):
        runs = train_many(256, rates=(1.6,), epochs=16, seeds=3, **warm_up)
        assert np.isnan(runs.steps_to(0.95)).all(), warm_up
