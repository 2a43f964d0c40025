"""The checks of lesson 01: right answers pass, mistakes are named, the lesson's claims hold."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
from distlab.course.checks.registry import checks_of
from distlab.course.checks.run_check import run_check
from tests.support.lesson_checks import (
    assert_feedback_says,
    assert_mistakes_are_caught,
    assert_right_answers_pass,
    load_stub,
)

STEM = "01_mirrored_strategy"
SCOPE, COMBINE, COUNT, DRIFT = checks_of(STEM)
ONE_DRAW = (1,)
SUM, FIRST = tf.VariableAggregation.SUM, tf.VariableAggregation.ONLY_FIRST_REPLICA


@functools.cache
def stub():
    return load_stub(STEM)


def on_replica():
    return tf.distribute.get_replica_context()


# Task 1: scope


def layer(units):
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(units)])


def compiled(model, optimizer):
    model.compile(optimizer=optimizer, loss="mse")
    return model


def scope_with_build_function(strategy, units):
    return dl.distribute(lambda: compiled(layer(units), "adam"), strategy)


def scope_of_a_subclass(strategy, units):
    class OneLayer(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(units)

        def call(self, x):
            return self.dense(x)

    with strategy.scope():
        return compiled(OneLayer(), keras.optimizers.SGD(0.1, momentum=0.9))


def test_distribute_normalises_and_drops_as_one_device_does():
    def build():
        dl.set_seed(1)
        layers = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
        model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(2)])
        return compiled(model, keras.optimizers.SGD(0.1))

    x = np.random.default_rng(1).normal(size=(23, 3)).astype("float32")
    strategy = dl.make_strategy("mirrored", devices=dl.split_devices(4)[:2])
    models = [build(), dl.distribute(build, strategy)]
    for model in models:
        model.fit(x, x[:, :2], batch_size=8, shuffle=False, verbose=0)
    for one, two in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-6)


def test_scope_takes_other_right_answers():
    assert_right_answers_pass(SCOPE, scope_with_build_function, scope_of_a_subclass)


def scope_optimizer_outside(strategy, units):
    optimizer = keras.optimizers.SGD(0.1)
    with strategy.scope():
        return compiled(layer(units), optimizer)


def scope_model_outside(strategy, units):
    model = layer(units)
    with strategy.scope():
        return compiled(model, keras.optimizers.SGD(0.1))


def test_scope_names_the_mistake_and_gives_half_for_half():
    wrong = {
        "compile_only_inside": stub()["make_model"],
        "optimizer_outside": scope_optimizer_outside,
        "model_outside": scope_model_outside,
    }
    assert_mistakes_are_caught(
        SCOPE, wrong, earned=dict.fromkeys(wrong, 1) | {"compile_only_inside": 0}
    )


def test_scope_says_what_it_cannot_use():
    said = {
        "is there a `return`?": lambda strategy, units: None,
        "your function returned no model: tuple": lambda strategy, units: (layer(units), 1),
        "the model has none: is it compiled?": lambda strategy, units: layer(units),
        "units of its layer": lambda strategy, units: scope_with_build_function(strategy, 1),
    }
    assert_feedback_says(SCOPE, said)


def fitted_for_one_step(make_model):
    model = make_model(two_replicas(), 2)
    model.fit(np.ones((4, 3)), np.ones((4, 2)), batch_size=4, verbose=0)
    return model


def test_keras_trains_on_one_device_counts_twice_or_stops_with_a_part_outside_the_scope():
    whole_outside = stub()["make_model"](two_replicas(), 2)
    assert whole_outside.distribute_strategy.num_replicas_in_sync == 1
    assert fitted_for_one_step(scope_optimizer_outside).optimizer.iterations.numpy() == 2
    with pytest.raises(AssertionError, match=r"^$"):
        fitted_for_one_step(scope_model_outside)


# Task 2: combine_shares


def combine_sums_first(gradient, examples):
    mine = tf.math.multiply_no_nan(gradient, examples)
    total, count = on_replica().all_reduce("SUM", [mine, examples])
    return total / count


def combine_in_one_place(gradient, examples):
    def combined(strategy, *values):
        gradients, counts = map(strategy.experimental_local_results, values)
        pairs = zip(gradients, counts, strict=True)
        return sum(g * n for g, n in pairs if n > 0) / sum(counts)

    return on_replica().merge_call(combined, args=(gradient, examples))


def test_combine_takes_other_right_answers():
    assert_right_answers_pass(COMBINE, combine_sums_first, combine_in_one_place)


def test_combine_names_the_mistake():
    """The lines of the lesson, with NaN from a replica without examples, earn two points."""

    def reduced(how, value):
        return on_replica().all_reduce(how, value)

    def mean_for_sum(g, n):
        return reduced("MEAN", g * n / reduced("SUM", n))

    wrong = {
        "mean_of_means": lambda g, n: reduced("MEAN", g),
        "mean_for_sum": mean_for_sum,
        "reduce_on_a_replica": lambda g, n: tf.distribute.get_strategy().reduce(
            "SUM", g, axis=None
        ),
        "nan_of_nothing": lambda g, n: reduced("SUM", g * n / reduced("SUM", n)),
        "all_reduce_in_a_condition": lambda g, n: combine_sums_first(g, n) if n > 0 else g,
    }
    earned = {"mean_of_means": 0, "nan_of_nothing": 2}
    assert_mistakes_are_caught(COMBINE, wrong, earned=earned)
    # Every replica has the same wrong result, so nothing is said of replicas that differ.
    report = run_check(COMBINE, wrong["mean_of_means"])
    assert [row.label for row in report.criteria] == [
        "on every replica, the means over the global batch"
    ]


# Task 3: count_examples


def count_without_aggregation(kept, labels):
    everyone = on_replica().all_reduce("SUM", tf.shape(labels)[0])
    if "total" not in kept:
        kept["total"] = tf.Variable(0)
    kept["total"].assign_add(everyone)


def count_with_the_variable_first(kept, labels):
    if not kept:
        kept["total"] = tf.Variable(0.0, aggregation=FIRST)
    seen = tf.reduce_sum(tf.ones_like(labels, tf.float32))
    kept["total"].assign_add(on_replica().all_reduce("SUM", seen))


def test_count_takes_other_right_answers():
    answers = count_without_aggregation, count_with_the_variable_first
    assert_right_answers_pass(COUNT, *answers, seeds=ONE_DRAW)


def counting(aggregation, add):
    """An answer that is right but for its aggregation and what it adds."""

    def count(kept, labels):
        if "total" not in kept:
            kept["total"] = tf.Variable(0, aggregation=aggregation)
        kept["total"].assign_add(add(labels))

    return count


def own(labels):
    return tf.shape(labels)[0]


def count_recreated(kept, labels):
    kept["total"] = tf.Variable(0, aggregation=SUM)
    kept["total"].assign_add(own(labels))


def count_by_plus(kept, labels):
    if "total" not in kept:
        kept["total"] = tf.Variable(0, aggregation=SUM)
    kept["total"] += own(labels)


def test_count_names_the_mistake():
    wrong = {
        "recreated_each_call": count_recreated,
        "python_number": counting(SUM, lambda labels: len(labels)),
        "own_share_only": counting(tf.VariableAggregation.NONE, own),
        "added_twice": counting(SUM, lambda labels: on_replica().all_reduce("SUM", own(labels))),
        "variable_replaced": count_by_plus,
    }
    assert_mistakes_are_caught(COUNT, wrong)
    assert_feedback_says(COUNT, {"after a step there is none": lambda kept, labels: None})


# Task 4: find_drifted


def drifted_by_range(strategy, variables):
    copies = {n: np.stack(strategy.experimental_local_results(v)) for n, v in variables.items()}
    return {name for name, values in copies.items() if np.ptp(values, axis=0).any()}


def drifted_one_by_one(strategy, variables):
    for name, variable in variables.items():
        one, *others = (strategy.run(lambda v=variable: v + 0)).values
        if any(tf.reduce_any(one != other) for other in others):
            yield name


def test_drift_takes_other_right_answers():
    assert_right_answers_pass(DRIFT, drifted_by_range, drifted_one_by_one)


def drifted_by_primary(strategy, variables):
    return [name for name, v in variables.items() if (v.numpy() != v.read_value().numpy()).any()]


def drifted_by_aggregation(strategy, variables):
    none = tf.VariableAggregation.NONE
    return [name for name, variable in variables.items() if variable.aggregation == none]


def drifted_where(differ):
    """An answer that names a variable if `differ(first copy, another copy)` is true of any."""

    def find_drifted(strategy, variables):
        drifted = []
        for name, variable in variables.items():
            first, *others = (c.numpy() for c in strategy.experimental_local_results(variable))
            if any(differ(first, other) for other in others):
                drifted.append(name)
        return drifted

    return find_drifted


def test_drift_names_the_mistake():
    wrong = {
        "checks_primary_only": drifted_by_primary,
        "aggregation_for_drift": drifted_by_aggregation,
        "whole_copy_only": drifted_where(lambda first, other: (first != other).all()),
        "tolerance": drifted_where(lambda first, other: not np.allclose(first, other)),
    }
    assert_mistakes_are_caught(DRIFT, wrong)


# Claims of the lesson that its cells do not show


def copies_of_5_and_6():
    strategy = two_replicas()
    with strategy.scope():
        variable = tf.Variable(0.0)
    copies = strategy.experimental_local_results(variable)
    for copy, value in zip(copies, (5.0, 6.0), strict=True):
        copy.assign(value)
    return variable, copies


def test_a_checkpoint_keeps_only_the_first_copy(tmp_path):
    variable, copies = copies_of_5_and_6()
    path = tf.train.Checkpoint(variable=variable).write(str(tmp_path / "saved"))
    tf.train.Checkpoint(variable=variable).read(path)
    assert [float(copy) for copy in copies] == [5.0, 5.0]


def test_a_variable_is_read_from_the_device_on_which_you_ask():
    variable, copies = copies_of_5_and_6()
    assert variable.numpy() == 5
    with tf.device(copies[1].device):
        assert variable.numpy() == 6


def test_the_last_batch_of_the_digits_is_shared_as_the_lesson_says():
    train, _ = dl.load_dataset("digits", batch_size=32)
    strategy = two_replicas()
    *_, (_, labels) = strategy.experimental_distribute_dataset(train)
    assert [len(part) for part in strategy.experimental_local_results(labels)] == [16, 13]


# What the lesson says and does not show


def two_replicas():
    return dl.make_strategy("mirrored", devices=2)


def reduce_only_on_replica_0():
    context = on_replica()
    if context.replica_id_in_sync_group == 0:
        context.all_reduce("SUM", tf.constant(1.0))


def test_keras_divides_a_loss_that_is_called_in_the_scope():
    loss = keras.losses.MeanSquaredError()
    one, zero = np.ones((2, 1)), np.zeros((2, 1))
    assert float(loss(one, zero)) == 1
    with two_replicas().scope():
        assert float(loss(one, zero)) == 0.5


def test_a_compiled_all_reduce_in_a_condition_is_refused():
    """Where all replicas agree it is refused in an `if` on a tensor, and not in one of Python."""

    def all_reduced_if(condition):
        return on_replica().all_reduce("SUM", tf.constant(1.0)) if condition else 0.0

    strategy, refused = two_replicas(), "`merge_call` called while defining a new graph"
    with pytest.raises(RuntimeError, match=refused):
        strategy.run(tf.function(reduce_only_on_replica_0))
    with pytest.raises(RuntimeError, match=refused):
        strategy.run(tf.function(all_reduced_if), args=(tf.constant(True),))
    for step in (all_reduced_if, tf.function(all_reduced_if)):
        results = strategy.experimental_local_results(strategy.run(step, args=(True,)))
        assert [float(each) for each in results] == [2, 2]


def test_strategy_reduce_is_refused_on_a_replica():
    strategy = two_replicas()
    with pytest.raises(RuntimeError, match="cross-replica context"):
        strategy.run(lambda: strategy.reduce("SUM", 1.0, axis=None))


def test_replica_0_makes_a_variable_that_is_kept():
    strategy, kept, traced = two_replicas(), {}, []

    @tf.function
    def step():
        strategy.run(one_more)

    def one_more():
        context = on_replica()
        traced.append((tf.get_static_value(context.replica_id_in_sync_group), "steps" in kept))
        if "steps" not in kept:
            kept["steps"] = tf.Variable(0, aggregation=FIRST)
        kept["steps"].assign_add(1)

    step()
    assert traced[:2] == [(0, False), (1, True)]
    copies = strategy.experimental_local_results(kept["steps"])
    assert [int(copy.numpy()) for copy in copies] == [1, 1]


def test_keras_2_saved_the_mean_of_the_moving_statistics_over_the_replicas(tmp_path):
    tf_keras = pytest.importorskip("tf_keras", reason="the legacy extra is not installed")
    strategy = two_replicas()
    with strategy.scope():
        norm = tf_keras.layers.BatchNormalization()
        norm.build((None, 1))
    for copy, value in zip(norm.moving_mean.values, (5.0, 7.0), strict=True):
        copy.assign([value])
    path = tf.train.Checkpoint(mean=norm.moving_mean).write(str(tmp_path / "saved"))
    saved = tf.train.load_variable(path, "mean/.ATTRIBUTES/VARIABLE_VALUE")
    assert saved.tolist() == [6]


def test_adams_first_step_makes_3_percent_of_a_learning_rate_of_a_gradient_of_1e_7():
    weight = keras.Variable(0.0)
    keras.optimizers.Adam(0.001).apply([tf.constant(1e-7)], [weight])
    assert float(weight.value) == pytest.approx(-3e-5, rel=0.05)


def test_the_mean_of_the_variances_of_shares_is_too_small():
    shares = np.array([[0.0, 2.0], [10.0, 12.0]])
    assert np.var(shares, axis=1).mean() == 1
    assert np.var(shares) == 26


def test_the_gradient_of_a_mean_over_nothing_is_0():
    """Only what is logged becomes NaN where a replica has no example."""
    bias = tf.Variable(tf.zeros([10]))
    with tf.GradientTape() as tape:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
            tf.zeros([0], tf.int32), tf.zeros([0, 10]) + bias
        )
        loss = tf.reduce_mean(losses)
    assert np.isnan(loss.numpy())
    assert not tape.gradient(loss, bias).numpy().any()
