"""The checks of lesson 02, and what the lesson claims: right answers pass, mistakes are named."""

from statistics import mean, stdev

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
from distlab.course.checks.registry import checks_of
from distlab.course.lesson_02_batch_scaling import runs as batch_sweeps
from distlab.course.lesson_02_batch_scaling.published_batches import fit_bend, published_runs
from distlab.course.lesson_02_batch_scaling.runs import train_many
from tests.support.lesson_checks import (
    assert_feedback_says,
    assert_mistakes_are_caught,
    assert_right_answers_pass,
)

STEM = "02_batch_scaling"
PLAN, WARM_UP, NOISE, COMPARE = checks_of(STEM)


# --- plan_job


def plan_for(batch_of):
    """An answer that counts batches, for the batch that `batch_of` makes of a job's numbers."""

    def plan_job(examples, epochs, per_replica, replicas, accumulate, **how):
        batch = batch_of(np.int64(per_replica), replicas, accumulate)
        power = {"sgd": 1.0, "adam": 0.5}[how["optimizer"]]
        rate = how["found_rate"] * (batch / how["found_batch"]) ** power
        steps = len(range(0, examples, int(batch))) * epochs
        return {"global_batch": batch, "learning_rate": rate, "steps": steps, "more": 1}

    return plan_job


def test_plan_job():
    assert_right_answers_pass(PLAN, plan_for(lambda each, replicas, parts: each * replicas * parts))
    wrong = {
        "batch_per_replica": plan_for(lambda each, replicas, parts: each),
        "accumulation_forgotten": plan_for(lambda each, replicas, parts: each * replicas),
    }
    assert_mistakes_are_caught(PLAN, wrong)
    said = {"a dictionary with global_batch, learning_rate, steps": lambda **asked: 7}
    assert_feedback_says(PLAN, said)


# --- rate_at


def scheduled(count):
    """An answer by Keras's schedule, at the step that `count` makes of epoch and batch."""

    def rate_at(epoch, batch, steps_per_epoch, warmup_epochs, first_rate, full_rate):
        if warmup_epochs == 0:
            return full_rate
        schedule = keras.optimizers.schedules.CosineDecay(
            first_rate,
            1,
            alpha=1.0,
            warmup_target=full_rate,
            warmup_steps=warmup_epochs * steps_per_epoch,
        )
        return schedule(count(epoch, batch, steps_per_epoch))

    return rate_at


def test_rate_at():
    by_schedule = scheduled(lambda epoch, batch, per: epoch * per + batch)
    assert_right_answers_pass(WARM_UP, by_schedule, seeds=(1,))
    wrong = {"restarts_each_epoch": scheduled(lambda epoch, batch, per: batch)}
    assert_mistakes_are_caught(WARM_UP, wrong, earned=0, seeds=(1,))


# --- noise_parts


def parts(*, small="MEAN", big="MEAN"):
    """An answer with these all-reduces of the squared norms and of the gradients."""

    def noise_parts(gradient, per_replica):
        context = tf.distribute.get_replica_context()
        few, many = per_replica, per_replica * context.num_replicas_in_sync
        own = tf.reduce_sum(gradient**2)
        own = context.all_reduce(small, own) if small else own
        whole = tf.reduce_sum(context.all_reduce(big, gradient) ** 2)
        return (own - whole) / (1 / few - 1 / many), (many * whole - few * own) / (many - few)

    return noise_parts


def by_the_variance_of_shares(gradient, per_replica):
    """The unbiased variance between replicas, which is the same estimate in other words."""
    context = tf.distribute.get_replica_context()
    count = context.num_replicas_in_sync
    mean = context.all_reduce("MEAN", gradient)
    away = context.all_reduce("SUM", tf.reduce_sum((gradient - mean) ** 2))
    noise = per_replica * away / (count - 1)
    return [noise, tf.reduce_sum(mean**2) - noise / (per_replica * count)]


def reduced_by_the_strategy(gradient, per_replica):
    return tf.distribute.get_strategy().reduce("MEAN", gradient, axis=None), 0.0


def test_noise_parts():
    assert_right_answers_pass(NOISE, by_the_variance_of_shares)
    wrong = {
        "own_norm": parts(small=None),
        "sum_for_mean": parts(big="SUM"),
        "reduce_on_a_replica": reduced_by_the_strategy,
    }
    assert_mistakes_are_caught(NOISE, wrong)
    assert_feedback_says(NOISE, {"not yet: two numbers": lambda gradient, per_replica: 1.0})


def test_the_two_parts_estimate_the_true_variance_and_gradient():
    draw = np.random.default_rng(0)
    true, spread, share = np.array([1.0, 2.0, 0.0]), 3.0, 8
    drawn = true + spread * draw.normal(size=(4000, 4, share, 3))
    found = NOISE.reference({"gradients": drawn.mean(axis=2), "per_replica": share})
    assert found["noise"].mean() == pytest.approx(3 * spread**2, rel=0.02)
    assert found["signal"].mean() == pytest.approx(5, rel=0.02)


# --- compare_batches


def compared(error_of_difference):
    """An answer in plain Python, with the first of the best rates."""

    def compare_batches(small, large, epochs):
        rates, accuracies = [], []
        for runs in (small, large):
            validation = runs.accuracy_after(epochs, on="validation").tolist()
            chosen_by = [mean(row) for row in validation]
            place = chosen_by.index(max(chosen_by))
            rates.append(runs.rates[place])
            accuracies.append(runs.accuracy_after(epochs).tolist()[place])
        apart = [b - a for a, b in zip(*accuracies, strict=True)]
        return tuple(rates), mean(apart), error_of_difference(apart)

    return compare_batches


def test_compare_batches():
    assert_right_answers_pass(COMPARE, compared(lambda apart: stdev(apart) / len(apart) ** 0.5))
    assert_mistakes_are_caught(COMPARE, {"spread_for_error": compared(stdev)}, earned=2)
    form = "three values: the two rates, the difference, its standard error"
    assert_feedback_says(COMPARE, {form: lambda small, large, epochs: (1, 2)})


# --- what the lesson claims


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


def test_a_line_predicts_the_largest_published_batch_of_four_models_and_not_of_two():
    missed = {}
    for model, runs in published_runs().items():
        *others, largest = sorted(runs)
        bend = fit_bend({batch: runs[batch] for batch in others})
        missed[model] = abs(bend.examples(largest) / runs[largest] - 1)
        assert max(abs(fit_bend(runs).examples(each) / runs[each] - 1) for each in runs) < 0.15
    far = {model for model, error in missed.items() if error > 0.08}
    assert far == {"RetinaNet", "Llama 2 70B, LoRA"} and min(missed[each] for each in far) > 0.15


def test_a_bend_is_found_where_it_is():
    bend = fit_bend({batch: 1000.0 * (1 + batch / 50) for batch in (10, 40, 200)})
    assert (bend.fewest, bend.batch) == pytest.approx((1000, 50))
