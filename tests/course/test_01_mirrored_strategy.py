"""The checks of lesson 01: right answers pass, mistakes are named, the lesson's claims hold."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
from distlab.course.checks.registry import checks_of
from tests.support.lesson_checks import (
    assert_feedback_says,
    assert_mistakes_are_caught,
    assert_right_answers_pass,
    load_stub,
)

STEM = "01_mirrored_strategy"
SCOPE, COMBINE, COUNT, DRIFT = checks_of(STEM)
SUM, FIRST = tf.VariableAggregation.SUM, tf.VariableAggregation.ONLY_FIRST_REPLICA


def two_replicas():
    return dl.make_strategy("mirrored", devices=2)


def on_replica():
    return tf.distribute.get_replica_context()


def all_reduced(how, value):
    return on_replica().all_reduce(how, value)


# --- scope


def compiled(model, optimizer):
    model.compile(optimizer=optimizer, loss="mse")
    return model


def layer(units):
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(units)])


def with_distribute(strategy, units):
    return dl.distribute(lambda: compiled(layer(units), "adam"), strategy)


def optimizer_outside(strategy, units):
    optimizer = keras.optimizers.SGD(0.1)
    with strategy.scope():
        return compiled(layer(units), optimizer)


def model_outside(strategy, units):
    model = layer(units)
    with strategy.scope():
        return compiled(model, keras.optimizers.SGD(0.1))


def test_scope():
    assert_right_answers_pass(SCOPE, with_distribute)
    wrong = {"optimizer_outside": optimizer_outside, "model_outside": model_outside}
    assert_mistakes_are_caught(SCOPE, wrong, earned=1)
    one_unit = {"units_ignored": lambda strategy, units: with_distribute(strategy, 1)}
    assert_mistakes_are_caught(SCOPE, one_unit, earned=0)
    said = {
        "yours returned 'tuple'": lambda strategy, units: (layer(units), 1),
        "nothing: is there a `return`?": lambda strategy, units: None,
        "the model has none: is it compiled?": lambda strategy, units: layer(units),
        "units of its layer": lambda strategy, units: with_distribute(strategy, 1),
    }
    assert_feedback_says(SCOPE, said)


def test_keras_trains_on_one_device_counts_twice_or_stops_with_a_part_outside_the_scope():
    def fitted(make_model):
        model = make_model(two_replicas(), 2)
        model.fit(np.ones((4, 3)), np.ones((4, 2)), batch_size=4, verbose=0)
        return model

    whole_outside = load_stub(STEM)["make_model"](two_replicas(), 2)
    assert whole_outside.distribute_strategy.num_replicas_in_sync == 1
    assert fitted(optimizer_outside).optimizer.iterations.numpy() == 2
    with pytest.raises(AssertionError, match=r"^$"):
        fitted(model_outside)


# --- combine_shares


def sums_first(gradient, examples):
    mine = tf.math.multiply_no_nan(gradient, examples)
    total, count = all_reduced("SUM", [mine, examples])
    return total / count


def test_combine_shares():
    """The lines of the lesson, with NaN from a replica without examples, earn two points."""
    assert_right_answers_pass(COMBINE, sums_first)
    wrong = {
        "mean_of_means": lambda g, n: all_reduced("MEAN", g),
        "nan_of_nothing": lambda g, n: all_reduced("SUM", g * n / all_reduced("SUM", n)),
        "all_reduce_in_a_condition": lambda g, n: sums_first(g, n) if n > 0 else g,
        "reduce_on_a_replica": lambda g, n: tf.distribute.get_strategy().reduce(
            "SUM", g, axis=None
        ),
    }
    assert_mistakes_are_caught(COMBINE, wrong, earned={"mean_of_means": 0, "nan_of_nothing": 2})


# --- count_examples


def counted(aggregation, add):
    """An answer with this aggregation, which adds what `add` makes of the labels."""

    def count(kept, labels):
        if "total" not in kept:
            kept["total"] = tf.Variable(0, aggregation=aggregation)
        kept["total"].assign_add(add(labels))

    return count


def own(labels):
    return tf.shape(labels)[0]


def recreated(kept, labels):
    kept["total"] = tf.Variable(0, aggregation=SUM)
    kept["total"].assign_add(own(labels))


def replaced(kept, labels):
    if "total" not in kept:
        kept["total"] = tf.Variable(0, aggregation=SUM)
    kept["total"] += own(labels)


def test_count_examples():
    everyone = counted(FIRST, lambda labels: all_reduced("SUM", own(labels)))
    assert_right_answers_pass(COUNT, everyone)
    wrong = {
        "recreated_each_call": recreated,
        "python_number": counted(SUM, len),
        "variable_replaced": replaced,
        "own_share_only": counted(tf.VariableAggregation.NONE, own),
    }
    assert_mistakes_are_caught(COUNT, wrong)
    assert_feedback_says(COUNT, {"after a step there is none": lambda kept, labels: None})


# --- find_drifted


def by_bytes(strategy, variables):
    copies = {n: strategy.experimental_local_results(v) for n, v in variables.items()}
    return {n for n, each in copies.items() if len({copy.numpy().tobytes() for copy in each}) > 1}


def by_range(strategy, variables):
    copies = {n: np.stack(strategy.experimental_local_results(v)) for n, v in variables.items()}
    return {name for name, values in copies.items() if np.ptp(values, axis=0).any()}


def by_primary(strategy, variables):
    return [name for name, v in variables.items() if (v.numpy() != v.read_value().numpy()).any()]


def by_allclose(strategy, variables):
    copies = {n: strategy.experimental_local_results(v) for n, v in variables.items()}
    return [name for name, (first, second, *_) in copies.items() if not np.allclose(first, second)]


def test_find_drifted():
    assert_right_answers_pass(DRIFT, by_bytes)
    wrong = {
        "checks_primary_only": by_primary,
        "nan_differs": by_range,
        "first_two_only": by_allclose,
    }
    assert_mistakes_are_caught(DRIFT, wrong, earned={"checks_primary_only": 0, "nan_differs": 1.5})


# --- what the lesson says and does not show


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


def test_a_total_under_sum_needs_assign_add():
    strategy = two_replicas()
    with strategy.scope():
        added, assigned = (tf.Variable(0.0, aggregation=SUM) for _ in range(2))

    def count_one():
        added.assign_add(tf.constant(1.0))
        assigned.assign(assigned + 1.0)

    for _ in range(2):
        strategy.run(count_one)
    assert (added.numpy(), assigned.numpy()) == (4, 6)


def test_the_last_batch_of_the_digits_is_shared_as_the_lesson_says():
    train, _ = dl.load_dataset("digits", batch_size=32)
    strategy = two_replicas()
    *_, (_, labels) = strategy.experimental_distribute_dataset(train)
    assert [len(part) for part in strategy.experimental_local_results(labels)] == [16, 13]


def test_keras_divides_a_loss_that_is_called_in_the_scope():
    loss = keras.losses.MeanSquaredError()
    one, zero = np.ones((2, 1)), np.zeros((2, 1))
    assert float(loss(one, zero)) == 1
    with two_replicas().scope():
        assert float(loss(one, zero)) == 0.5


def only_on_replica_0():
    if on_replica().replica_id_in_sync_group == 0:
        all_reduced("SUM", tf.constant(1.0))


def test_an_all_reduce_that_some_replicas_skip_is_refused():
    with pytest.raises(RuntimeError, match="different number of replica_context"):
        two_replicas().run(only_on_replica_0)


def test_a_compiled_all_reduce_in_a_condition_is_refused():
    """Where all replicas agree it is refused in an `if` on a tensor, and not in one of Python."""

    def all_reduced_if(condition):
        return all_reduced("SUM", tf.constant(1.0)) if condition else 0.0

    strategy, refused = two_replicas(), "`merge_call` called while defining a new graph"
    with pytest.raises(RuntimeError, match=refused):
        strategy.run(tf.function(only_on_replica_0))
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

    def one_more():
        replica = tf.get_static_value(on_replica().replica_id_in_sync_group)
        traced.append((replica, "steps" in kept))
        if "steps" not in kept:
            kept["steps"] = tf.Variable(0, aggregation=FIRST)
        kept["steps"].assign_add(1)

    tf.function(lambda: strategy.run(one_more))()
    assert traced[:2] == [(0, False), (1, True)]
    copies = strategy.experimental_local_results(kept["steps"])
    assert [int(copy.numpy()) for copy in copies] == [1, 1]


def test_keras_2_saved_the_mean_of_the_moving_statistics_over_the_replicas(tmp_path):
    tf_keras = pytest.importorskip("tf_keras", reason="the legacy extra is not installed")
    with two_replicas().scope():
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
