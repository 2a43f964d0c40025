"""The checks of lesson 01: right answers pass, mistakes are named, the lesson's claims hold."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
from distlab.checks.registry import checks_of
from distlab.checks.run_check import run_check
from tests.support.lesson_checks import (
    assert_mistake_is_caught,
    assert_solution_passes,
    assert_stub_earns_nothing,
    load_solution,
    load_stub,
)

STEM = "01_mirrored_strategy"
SCOPE, COMBINE, COUNT, DRIFT = checks_of(STEM)
SUM, MEAN = tf.VariableAggregation.SUM, tf.VariableAggregation.MEAN
FIRST = tf.VariableAggregation.ONLY_FIRST_REPLICA


@functools.cache
def solution():
    return load_solution(STEM)


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
    return dl.distribute(lambda: compiled(layer(units), keras.optimizers.Adam()), strategy)


def scope_in_two_blocks(strategy, units):
    with strategy.scope():
        model = layer(units)
    with strategy.scope():
        optimizer = keras.optimizers.SGD(0.1)
    return compiled(model, optimizer)


def scope_around_return(strategy, units):
    with strategy.scope():
        return compiled(layer(units), "sgd")


def scope_built_by_fit(strategy, units):
    with strategy.scope():
        return compiled(keras.Sequential([keras.layers.Dense(units)]), "sgd")


def scope_of_a_subclass(strategy, units):
    class OneLayer(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(units)

        def call(self, x):
            return self.dense(x)

    with strategy.scope():
        return compiled(OneLayer(), keras.optimizers.SGD(0.1, momentum=0.9))


@pytest.mark.parametrize(
    "answer",
    [
        scope_with_build_function,
        scope_in_two_blocks,
        scope_around_return,
        scope_built_by_fit,
        scope_of_a_subclass,
    ],
)
def test_scope_takes_other_right_answers(answer):
    assert_solution_passes(SCOPE, answer, seeds=range(4))


def test_scope_as_handed_out_earns_nothing_and_is_named():
    assert_stub_earns_nothing(SCOPE, stub()["make_model"], status="not yet")
    assert_mistake_is_caught(SCOPE, stub()["make_model"], "compile_only_inside")


def scope_optimizer_outside(strategy, units):
    optimizer = keras.optimizers.SGD(0.1)
    with strategy.scope():
        return compiled(layer(units), optimizer)


def scope_model_outside(strategy, units):
    model = layer(units)
    with strategy.scope():
        return compiled(model, keras.optimizers.SGD(0.1))


def scope_optimizer_by_name_outside(strategy, units):
    with strategy.scope():
        model = layer(units)
    return compiled(model, "sgd")


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (scope_optimizer_outside, "optimizer_outside"),
        (scope_optimizer_by_name_outside, "optimizer_outside"),
        (scope_model_outside, "model_outside"),
    ],
)
def test_scope_gives_half_for_half(answer, mistake):
    assert assert_mistake_is_caught(SCOPE, answer, mistake).earned == 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda strategy, units: None, "is there a `return`?"),
        (lambda strategy, units: (layer(units), 1), "your function returned no model: tuple"),
        (lambda strategy, units: layer(units), "the model has none: is it compiled?"),
        (lambda strategy, units: scope_in_two_blocks(strategy, 1), "units of its layer"),
    ],
    ids=["nothing", "a tuple", "not compiled", "other units"],
)
def test_scope_says_what_it_cannot_use(answer, said):
    report = run_check(SCOPE, answer)
    assert said in repr(report)
    assert report.earned == 0


def fitted_for_one_step(make_model):
    model = make_model(dl.make_strategy("mirrored", devices=2), 2)
    model.fit(np.ones((4, 3)), np.ones((4, 2)), batch_size=4, verbose=0)
    return model


def test_keras_trains_a_model_made_outside_on_one_device_and_says_nothing():
    model = fitted_for_one_step(stub()["make_model"])
    assert model.distribute_strategy.num_replicas_in_sync == 1


def test_keras_counts_steps_twice_with_the_optimizer_outside():
    assert fitted_for_one_step(solution()["make_model"]).optimizer.iterations.numpy() == 1
    assert fitted_for_one_step(scope_optimizer_outside).optimizer.iterations.numpy() == 2


def test_keras_stops_with_an_empty_error_with_the_model_outside():
    with pytest.raises(AssertionError, match=r"^$"):
        fitted_for_one_step(scope_model_outside)


# Task 2: combine_shares


def combine_sums_first(gradient, examples):
    mine = tf.math.multiply_no_nan(gradient, examples)
    total, count = on_replica().all_reduce("SUM", [mine, examples])
    return total / count


def combine_weighs_against_the_mean(gradient, examples):
    share = examples / on_replica().all_reduce(tf.distribute.ReduceOp.MEAN, examples)
    mine = tf.where(tf.math.is_nan(gradient), 0.0, gradient)
    return on_replica().all_reduce(tf.distribute.ReduceOp.MEAN, mine * share)


def combine_in_one_place(gradient, examples):
    def combined(strategy, *values):
        gradients, counts = map(strategy.experimental_local_results, values)
        pairs = zip(gradients, counts, strict=True)
        return sum(g * n for g, n in pairs if n > 0) / sum(counts)

    return on_replica().merge_call(combined, args=(gradient, examples))


@tf.function
def combine_gathered(gradient, examples):
    mine = tf.cond(examples > 0, lambda: gradient, lambda: tf.zeros_like(gradient))
    gradients = on_replica().all_gather(mine[None], axis=0)
    weights = on_replica().all_gather(examples[None], axis=0)
    return tf.linalg.matvec(gradients, weights / tf.reduce_sum(weights), transpose_a=True)


@pytest.mark.parametrize(
    "answer",
    [
        combine_sums_first,
        combine_weighs_against_the_mean,
        combine_in_one_place,
        combine_gathered,
    ],
)
def test_combine_takes_other_right_answers(answer):
    assert_solution_passes(COMBINE, answer)


COMBINE_MISTAKES = {
    "mean_of_means": lambda g, n: on_replica().all_reduce("MEAN", g),
    "sum_of_means": lambda g, n: on_replica().all_reduce("SUM", g),
    "not_divided": lambda g, n: on_replica().all_reduce("SUM", g * n),
    "mean_for_sum": lambda g, n: on_replica().all_reduce(
        "MEAN", g * n / on_replica().all_reduce("SUM", n)
    ),
    "divided_by_replicas": lambda g, n: (
        on_replica().all_reduce("SUM", g * n) / on_replica().num_replicas_in_sync
    ),
    "own_count": lambda g, n: on_replica().all_reduce("SUM", g * n) / n,
    "divided_again": lambda g, n: on_replica().all_reduce("SUM", g / n),
    "not_weighted": lambda g, n: (
        on_replica().all_reduce("SUM", g) / on_replica().all_reduce("SUM", n)
    ),
    "arguments_swapped": lambda g, n: on_replica().all_reduce(g * n, "SUM"),
    "no_all_reduce": lambda g, n: g,
    "not_summed": lambda g, n: g * n / on_replica().all_reduce("SUM", n),
    "reduce_on_a_replica": lambda g, n: tf.distribute.get_strategy().reduce("SUM", g, axis=None),
    "nan_of_nothing": lambda g, n: on_replica().all_reduce(
        "SUM", g * n / on_replica().all_reduce("SUM", n)
    ),
    "all_reduce_in_a_condition": lambda g, n: combine_sums_first(g, n) if n > 0 else g,
}


def test_combine_has_a_wrong_answer_for_each_mistake():
    assert set(COMBINE_MISTAKES) == {mistake.name for mistake in COMBINE.mistakes}


@pytest.mark.parametrize("mistake", COMBINE_MISTAKES)
def test_combine_names_the_mistake(mistake):
    assert_mistake_is_caught(COMBINE, COMBINE_MISTAKES[mistake], mistake)


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (lambda g, n: on_replica().all_reduce("MEAN", g * n) / n, "own_count"),
        (lambda g, n: on_replica().all_reduce("MEAN", g / n), "divided_again"),
        (
            lambda g, n: strategy_of_the_notebook().reduce("SUM", g * n, axis=None),
            "reduce_on_a_replica",
        ),
    ],
    ids=["own_count", "divided_again", "reduce_on_a_replica"],
)
def test_combine_names_the_mistake_in_another_form(answer, mistake):
    assert_mistake_is_caught(COMBINE, answer, mistake)


@functools.cache
def strategy_of_the_notebook():
    return dl.make_strategy("mirrored", devices=2)


def test_combine_does_not_say_that_equal_results_differ():
    report = run_check(COMBINE, COMBINE_MISTAKES["mean_of_means"])
    assert [row.label for row in report.criteria] == [
        "on every replica, the means over the global batch"
    ]
    assert report.earned == 0


def test_the_lines_of_the_lesson_earn_two_of_three_points():
    report = assert_mistake_is_caught(COMBINE, COMBINE_MISTAKES["nan_of_nothing"], "nan_of_nothing")
    assert (report.earned, COMBINE.points) == (2, 3)


def test_combine_says_so_when_nothing_is_returned():
    report = run_check(COMBINE, lambda gradient, examples: None)
    assert "is there a `return`?" in repr(report)


# Task 3: count_examples


def count_without_aggregation(kept, labels):
    everyone = on_replica().all_reduce("SUM", tf.shape(labels)[0])
    if "total" not in kept:
        kept["total"] = tf.Variable(0)
    kept["total"].assign_add(everyone)


def count_in_int64(kept, labels):
    if kept.get("total") is None:
        start = tf.zeros([], tf.int64)
        kept["total"] = tf.Variable(start, trainable=False, aggregation=SUM)
    kept["total"].assign_add(tf.size(labels, out_type=tf.int64))


def count_with_the_variable_first(kept, labels):
    if not kept:
        kept["total"] = tf.Variable(0.0, aggregation=FIRST)
    seen = tf.reduce_sum(tf.ones_like(labels, tf.float32))
    kept["total"].assign_add(on_replica().all_reduce("SUM", seen))


def count_in_a_keras_variable(kept, labels):
    if "total" not in kept:
        kept["total"] = keras.Variable(0, dtype="int32", trainable=False)
    kept["total"].assign_add(on_replica().all_reduce("SUM", tf.size(labels)))


def count_by_a_mean(kept, labels):
    try:
        total = kept["total"]
    except KeyError:
        total = kept["total"] = tf.Variable(0.0, aggregation=MEAN)
    total.assign_add(tf.cast(tf.size(labels) * on_replica().num_replicas_in_sync, tf.float32))


@pytest.mark.parametrize(
    "answer",
    [
        count_without_aggregation,
        count_in_int64,
        count_with_the_variable_first,
        count_in_a_keras_variable,
        count_by_a_mean,
    ],
)
def test_count_takes_other_right_answers(answer):
    assert_solution_passes(COUNT, answer, seeds=range(4))


def counting(aggregation, add, start=0):
    """An answer that is right but for its aggregation, what it adds, and to what."""

    def count(kept, labels):
        if "total" not in kept:
            kept["total"] = tf.Variable(start, aggregation=aggregation)
        kept["total"].assign_add(add(labels))

    return count


def own(labels):
    return tf.shape(labels)[0]


def count_recreated(kept, labels):
    kept["total"] = tf.Variable(0, aggregation=SUM)
    kept["total"].assign_add(own(labels))


def count_old_total_too(kept, labels):
    if "total" not in kept:
        kept["total"] = tf.Variable(0, aggregation=SUM)
    kept["total"].assign(kept["total"] + own(labels))


def count_by_who_made_it(kept, labels):
    if "total" not in kept:
        kept["total"] = tf.Variable(0, aggregation=SUM)
    else:
        kept["total"].assign_add(own(labels))


def count_by_plus(kept, labels):
    if "total" not in kept:
        kept["total"] = tf.Variable(0, aggregation=SUM)
    kept["total"] += own(labels)


def count_in_python(kept, labels):
    kept["total"] = kept.get("total", 0) + labels.shape[0]


def count_in_a_tensor(kept, labels):
    kept["total"] = kept.get("total", 0) + own(labels)


def count_last_batch(kept, labels):
    if "total" not in kept:
        kept["total"] = tf.Variable(0, aggregation=SUM)
    kept["total"].assign(own(labels))


def by_strategy(labels):
    return strategy_of_the_notebook().reduce("SUM", own(labels), axis=None)


COUNT_MISTAKES = {
    "recreated_each_call": count_recreated,
    "python_number": counting(SUM, lambda labels: len(labels)),
    "own_share_only": counting(tf.VariableAggregation.NONE, own),
    "first_replica_only": counting(FIRST, own),
    "added_twice": counting(SUM, lambda labels: on_replica().all_reduce("SUM", own(labels))),
    "last_batch_only": count_last_batch,
    "other_dtype": counting(SUM, own, start=0.0),
    "replicas_do_otherwise": count_by_who_made_it,
    "variable_replaced": count_by_plus,
    "reduce_on_a_replica": counting(SUM, by_strategy),
    "no_variable": count_in_python,
    "mean_for_sum": counting(MEAN, lambda labels: tf.cast(own(labels), tf.float32), start=0.0),
    "old_total_added_too": count_old_total_too,
}


def test_count_has_a_wrong_answer_for_each_mistake():
    assert set(COUNT_MISTAKES) == {mistake.name for mistake in COUNT.mistakes}


@pytest.mark.parametrize("mistake", COUNT_MISTAKES)
def test_count_names_the_mistake(mistake):
    assert_mistake_is_caught(COUNT, COUNT_MISTAKES[mistake], mistake)


def test_count_says_so_when_nothing_was_kept():
    report = run_check(COUNT, lambda kept, labels: None)
    assert report.earned == 0
    assert "after a step there is none" in repr(report)


def test_count_says_so_when_a_tensor_was_kept():
    report = assert_mistake_is_caught(COUNT, count_in_a_tensor, "no_variable")
    assert "after a step it is none: SymbolicTensor" in repr(report)


def test_count_refuses_a_mean_of_whole_numbers():
    assert not run_check(COUNT, counting(MEAN, own)).passed


# Task 4: find_drifted


def drifted_by_range(strategy, variables):
    copies = {n: np.stack(strategy.experimental_local_results(v)) for n, v in variables.items()}
    return {name for name, values in copies.items() if np.ptp(values, axis=0).any()}


def drifted_by_values(strategy, variables):
    return sorted(
        name
        for name, variable in variables.items()
        if len({copy.numpy().tobytes() for copy in variable.values}) > 1
    )


def drifted_in_an_array(strategy, variables):
    names = list(variables)[::-1]
    copies = [strategy.experimental_local_results(variables[name]) for name in names]
    return np.array(names)[[bool((tf.stack(each) != each[0]).numpy().any()) for each in copies]]


def drifted_one_by_one(strategy, variables):
    for name, variable in variables.items():
        one, *others = (strategy.run(lambda v=variable: v + 0)).values
        if any(tf.reduce_any(one != other) for other in others):
            yield name


@pytest.mark.parametrize(
    "answer", [drifted_by_range, drifted_by_values, drifted_in_an_array, drifted_one_by_one]
)
def test_drift_takes_other_right_answers(answer):
    assert_solution_passes(DRIFT, answer)


def drifted_by_primary(strategy, variables):
    return [name for name, v in variables.items() if (v.numpy() != v.read_value().numpy()).any()]


def drifted_by_first_two(strategy, variables):
    pairs = {n: strategy.experimental_local_results(v)[:2] for n, v in variables.items()}
    return [name for name, (a, b) in pairs.items() if not np.array_equal(a, b)]


def drifted_by_aggregation(strategy, variables):
    none = tf.VariableAggregation.NONE
    return [name for name, variable in variables.items() if variable.aggregation == none]


def drifted_where(differ):
    def find_drifted(strategy, variables):
        found = []
        for name, variable in variables.items():
            first, *others = (c.numpy() for c in strategy.experimental_local_results(variable))
            found += [name] * differ(first, others)
        return found

    return find_drifted


def drifted_and_mended(strategy, variables):
    found = list(drifted_one_by_one(strategy, variables))
    for name in found:
        variables[name].assign(strategy.experimental_local_results(variables[name])[0])
    return found


def drifted_inverted(strategy, variables):
    return [name for name in variables if name not in drifted_by_range(strategy, variables)]


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (drifted_by_primary, "checks_primary_only"),
        (drifted_by_first_two, "first_two_copies"),
        (drifted_by_aggregation, "aggregation_for_drift"),
        (drifted_inverted, "named_the_equal_ones"),
        (drifted_and_mended, "changed_by_looking"),
        (
            drifted_where(lambda one, others: any((one != other).all() for other in others)),
            "whole_copy_only",
        ),
        (
            drifted_where(lambda one, others: not all(np.allclose(one, o) for o in others)),
            "tolerance",
        ),
        (
            drifted_where(lambda one, others: sum(bool((one != o).any()) for o in others)),
            "named_twice",
        ),
    ],
)
def test_drift_names_the_mistake(answer, mistake):
    assert_mistake_is_caught(DRIFT, answer, mistake)


# Claims of the lesson that its cells do not show


def test_a_checkpoint_keeps_only_the_first_copy(tmp_path):
    strategy = dl.make_strategy("mirrored", devices=2)
    with strategy.scope():
        variable = tf.Variable(0.0)
    copies = strategy.experimental_local_results(variable)
    for copy, value in zip(copies, (5.0, 6.0), strict=True):
        copy.assign(value)
    path = tf.train.Checkpoint(variable=variable).write(str(tmp_path / "saved"))
    tf.train.Checkpoint(variable=variable).read(path)
    assert [float(copy) for copy in copies] == [5.0, 5.0]


def test_a_variable_is_read_from_the_device_on_which_you_ask():
    strategy = dl.make_strategy("mirrored", devices=2)
    with strategy.scope():
        variable = tf.Variable(0.0)
    copies = strategy.experimental_local_results(variable)
    for copy, value in zip(copies, (5.0, 6.0), strict=True):
        copy.assign(value)
    assert variable.numpy() == 5
    with tf.device(copies[1].device):
        assert variable.numpy() == 6


def test_the_last_batch_of_the_digits_is_shared_as_the_lesson_says():
    train, _ = dl.load_dataset("digits", batch_size=32)
    strategy = dl.make_strategy("mirrored", devices=2)
    *_, (_, labels) = strategy.experimental_distribute_dataset(train)
    assert [len(part) for part in strategy.experimental_local_results(labels)] == [16, 13]


def test_keras_own_fit_is_one_device_with_full_batches_only():
    strategy = dl.make_strategy("mirrored", devices=2)
    x = np.random.default_rng(0).normal(size=(11, 3)).astype("float32")

    def trained(scope, rows):
        data = tf.data.Dataset.from_tensor_slices((x, x[:, :2])).take(rows).batch(4)
        with scope:
            dl.set_seed(1)
            model = compiled(layer(2), keras.optimizers.SGD(0.1))
        model.fit(data, epochs=2, shuffle=False, verbose=0)
        return np.concatenate([weights.ravel() for weights in model.get_weights()])

    def apart(rows):
        one = trained(dl.make_strategy("default").scope(), rows)
        return np.abs(one - trained(strategy.scope(), rows)).max()

    assert apart(rows=8) < 1e-6
    assert apart(rows=11) > 1e-4


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
    step = tf.function(reduce_only_on_replica_0)
    with pytest.raises(RuntimeError, match="`merge_call` called while defining a new graph"):
        two_replicas().run(step)


def all_reduced_if(condition):
    return on_replica().all_reduce("SUM", tf.constant(1.0)) if condition else 0.0


@pytest.mark.parametrize("compiled", [False, True])
def test_an_all_reduce_in_an_if_of_python_on_which_all_replicas_agree_is_fine(compiled):
    strategy = two_replicas()
    step = tf.function(all_reduced_if) if compiled else all_reduced_if
    results = strategy.run(step, args=(True,))
    assert [float(each) for each in strategy.experimental_local_results(results)] == [2, 2]


def test_a_compiled_all_reduce_in_an_if_on_a_tensor_is_refused_even_if_all_replicas_agree():
    with pytest.raises(RuntimeError, match="`merge_call` called while defining a new graph"):
        two_replicas().run(tf.function(all_reduced_if), args=(tf.constant(True),))


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


def small():
    model = keras.Sequential(
        [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss)
    return model


def apart_after_fit(examples):
    (digits,) = dl.load_dataset("digits", splits=[f"train[:{examples}]"], batch_size=32)
    trained = []
    for scope in (tf.device("CPU:0"), two_replicas().scope()):
        keras.utils.set_random_seed(1)
        with scope:
            model = small()
        model.fit(digits, epochs=2, shuffle=False, verbose=0)
        trained.append(model.get_weights())
    return max(np.abs(a - b).max() for a, b in zip(*trained, strict=True))


def test_keras_fit_in_the_scope_differs_by_the_partial_batch_only():
    assert apart_after_fit(96) < 1e-6
    assert apart_after_fit(96 + 29) > 1e-4


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
