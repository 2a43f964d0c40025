"""The checks of lesson 21: right answers pass, wrong ones are named; and what the lesson counts."""

import functools
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

import distlab as dl
from distlab.course.checks.registry import checks_of
from distlab.course.checks.run_check import run_check
from distlab.course.lesson_21_choosing_a_strategy.checks import (
    ANSWERS,
    CASES,
    DIVISIONS,
    REASONS,
    STRATEGIES,
)
from distlab.course.lesson_21_choosing_a_strategy.figures import FIELD
from distlab.course.lesson_21_choosing_a_strategy.strategy_card import CARD, ORDER, OTHERWISE
from tests.support.lesson_checks import (
    assert_feedback_says,
    assert_mistakes_are_caught,
    assert_right_answers_pass,
    edited_solution,
    load_solution,
)
from tests.support.repository import lesson_text

STEM = "21_choosing_a_strategy"
CHECKS = {check.name: check for check in checks_of(STEM)}
CHOOSE, COMPARE, WORTH = CHECKS.values()
solution = functools.cache(functools.partial(load_solution, STEM))
edited = functools.partial(edited_solution, STEM)


# --- choose_and_defend


def choose_but(**others):
    right = solution()["choose"]
    return lambda case: others.get(case, right(case))


def test_other_forms_of_the_choice_pass():
    assert_right_answers_pass(CHOOSE, lambda case: np.array(solution()["choose"](case)))


def test_wrong_choices_are_named():
    wrong = {
        "more_devices_always": choose_but(A=("mirrored", "always_faster")),
        "mirrored_across_hosts": choose_but(B=("mirrored", "hosts_step_together")),
        "mirrored_saves_memory": choose_but(E=("mirrored", "less_memory_each")),
        "divides_at_once": choose_but(D=("sharded_data", "replica_too_large")),
        "experts_save_memory": choose_but(F=("expert", "layer_too_large")),
        "layers_cut_first": choose_but(E=("tensor", "replica_too_large")),
        "layer_left_whole": choose_but(F=("pipeline", "layer_too_large")),
    }
    assert_mistakes_are_caught(CHOOSE, wrong)


def test_each_answer_and_each_reason_earns_half_a_point_if_the_answer_depends_on_the_case():
    half = {"case B: the reason": choose_but(B=("multi_worker", "no_waiting"))}
    assert_feedback_says(CHOOSE, half, earned=5.5)
    said = {
        "two words were asked for": choose_but(B=("multi_worker",)),
        "not one of": choose_but(B=("Mirrored", 3)),
        "is there a `return`?": choose_but(B=None),
    }
    assert_feedback_says(CHOOSE, said, earned=5)
    same = {"the same answer to every case": lambda case: ("mirrored", "batch_too_small")}
    assert_feedback_says(CHOOSE, same)

    def one_case_only(case):
        return solution()["choose"](case) if case == "B" else None

    assert_feedback_says(CHOOSE, {"None for this case": one_case_only}, earned=1)


def test_the_feedback_asks_and_never_tells_the_answer():
    messages = [ask for *_, ask in CASES.cases.values()]
    names = (*ANSWERS, *REASONS)
    assert not [(m, name) for m in messages for name in names if name in m.lower()]
    wrong = {"A": ("multi_worker", "no_waiting")}
    report = run_check(CHOOSE, lambda case: wrong.get(case, ("tpu", "always_faster")))
    assert len(report.criteria) == 12
    assert all(not criterion.expected for criterion in report.criteria)
    text = lesson_text(STEM, "exercise.py")
    assert [name for name in names if f'`"{name}"`' not in text] == []


def test_the_answers_are_those_of_the_card():
    strategies = {answer for _, answer in CARD.values() if " " not in answer} | {OTHERWISE}
    assert set(STRATEGIES) == strategies
    assert [way for way in ORDER if way in DIVISIONS] == list(DIVISIONS)


# --- compare_strategies


def comparing(edits):
    return edited("compare_strategies", edits)


def test_comparisons_are_judged():
    """In draw 1 weights differ that are not trained, and in draw 3 none do."""
    in_other_ways = {
        "np.allclose(a, b, rtol=0, atol=1e-5)": "np.abs(np.subtract(a, b)).max() <= 1e-5",
        "apart[0] if apart else None": "next(iter(apart), None)",
    }
    assert_right_answers_pass(COMPARE, comparing(in_other_ways), seeds=(1,))
    by_distribute = {
        "with strategy.scope():\n            model = build()": (
            "model = dl.distribute(build, strategy)"
        )
    }
    wrong = {
        "built_outside_scope": comparing({"with strategy.scope():": "if strategy:"}),
        "by_distribute": comparing(by_distribute),
        "compares_losses_only": comparing({".weights, ": ".trainable_weights, "}),
    }
    assert_mistakes_are_caught(COMPARE, wrong, earned=0, seeds=(1,))
    exact = comparing({"np.allclose(a, b, rtol=0, atol=1e-5)": "np.array_equal(a, b)"})
    assert_mistakes_are_caught(COMPARE, {"exact_equality": exact}, earned=0, seeds=(3,))


def test_tables_in_a_different_form_earn_nothing_and_are_shown_as_they_are():
    a_row_for_each = {"two": {"differs": None}}
    for answer in (None, a_row_for_each):
        report = run_check(COMPARE, lambda *_, answer=answer: answer, seeds=(1,))
        assert (report.earned, "cannot read" in repr(report)) == (0, False), answer


# --- worth_it


def by_rates(measured):
    """Examples a second of each step; the worth of it is asked first, and the input changed."""
    best, speeds = "one_device", {}
    for name in sorted(measured):
        row = measured.pop(name)
        rates = np.sort(1000 * row["global_batch"] / np.array(row["step_ms"]))
        speeds[name] = rates[3] if row["equal"] else 0
    for name, speed in speeds.items():
        if speed >= max(1.1 * speeds["one_device"], speeds[best]):
            best = name
    return np.str_(best)


def test_readers_of_measurements_are_judged():
    assert_right_answers_pass(WORTH, by_rates, seeds=range(20))
    assert_mistakes_are_caught(WORTH, {"lucky_step": edited("worth_it", {"np.median": "min"})})


# --- what the lesson and the pitfalls say and no cell runs


def sizes_sent(make, replicas):
    """How many bytes of weights and gradients a compiled step sends from device to device."""
    strategy = make(dl.split_devices(4)[1 : 1 + replicas])
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(5, use_bias=False)])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)

    def replica_step(x):
        with tf.GradientTape() as tape, tf.name_scope("counted_step"):
            loss = tf.reduce_sum(model(x) ** 2)
        weights = model.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)

    step = tf.function(lambda x: strategy.run(replica_step, args=(x,)))
    data = tf.data.Dataset.from_tensors(tf.ones((12, 8)))
    (batch,) = strategy.experimental_distribute_dataset(data)
    # TensorFlow keeps the graphs that it cut by device only while it is asked to.
    context.enable_run_metadata()
    step(batch)
    metadata = context.export_run_metadata()
    context.disable_run_metadata()
    # A thread of an earlier test may run a graph of its own meanwhile.
    graphs = [
        [node for graph in function.partition_graphs for node in graph.node]
        for function in metadata.function_graphs
    ]
    (nodes,) = [graph for graph in graphs if any("counted_step" in node.name for node in graph)]
    sent = [
        node
        for node in nodes
        # Control edges are sent as constants; the step counter is no float.
        if node.op == "_Send"
        and node.attr["T"].type == tf.float32.as_datatype_enum
        and "/ctrl/" not in node.input[0]
    ]
    return len(sent) * 8 * 5 * 4, 8 * 5 * 4


def test_a_compiled_step_sends_gradients_and_their_sum_and_central_storage_all_weights():
    """With N replicas and weights of size S: Mirrored 2 (N - 1) S, and CentralStorage 2 N S."""
    for kind, times in {"mirrored": 2 * (3 - 1), "central_storage": 2 * 3}.items():
        make = functools.partial(dl.make_strategy, kind)
        sent, weights = sizes_sent(lambda devices, make=make: make(devices=devices), 3)
        assert sent == times * weights, kind
    # TensorFlow's own CentralStorage sums on the CPU, so the sum travels twice more.
    own = tf.distribute.experimental.CentralStorageStrategy
    sent, weights = sizes_sent(lambda devices: own(devices, parameter_device="CPU:0"), 3)
    assert sent == (2 * 3 + 2) * weights


def keras_own(build, strategy):
    with strategy.scope():
        return build()


def small_model(optimizer=None):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile(optimizer or keras.optimizers.SGD(0.1), loss="mse")
    return model


def sgd(**options):
    return keras.optimizers.SGD(0.1, **options)


# What Keras's own fit stops at under CentralStorage, with the error's text.
STOPS = {
    "You must specify an aggregation method": (
        lambda: sgd(use_ema=True),
        lambda: keras.optimizers.LossScaleOptimizer(sgd()),
        lambda: keras.optimizers.Muon(0.01),
        lambda: keras.optimizers.Nadam(0.01),
    ),
    "merge_call": (lambda: sgd(gradient_accumulation_steps=2),),
}


def a_step_by_hand(strategy, model):
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        weights = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, weights), weights)

    before = model.get_weights()[0]
    strategy.run(tf.function(step, autograph=False), args=(tf.ones((3, 4)),))
    return np.abs(model.get_weights()[0] - before).max()


def test_distribute_refuses_a_model_that_was_built_outside_its_scope():
    model = small_model()
    for kind in ("one_device", "mirrored"):
        with pytest.raises(ValueError, match="scope"):
            dl.distribute(lambda: model, dl.make_strategy(kind))


def test_under_central_storage_distribute_trains_nadam_and_refuses_the_others():
    central, x = dl.make_strategy("central_storage", devices=2), np.ones((5, 4), "float32")
    ema, scaled, muon, nadam, accumulating = (make for makes in STOPS.values() for make in makes)
    dl.distribute(lambda: small_model(nadam()), central).fit(x, x[:, :2], verbose=0)
    for make in (ema, scaled, muon, accumulating):
        with pytest.raises(ValueError, match="cannot update the one copy"):
            dl.distribute(lambda make=make: small_model(make()), central)


def test_keras_own_fit_stops_under_central_storage_with_the_lessons_message():
    for text, makes in STOPS.items():
        for make in makes:
            central = dl.make_strategy("central_storage", devices=2)
            model = keras_own(lambda make=make: small_model(make()), central)
            with pytest.raises((ValueError, RuntimeError), match=text):
                model.fit(np.ones((4, 4)), np.ones((4, 2)), verbose=0)


def test_by_hand_one_device_trains_a_model_from_outside_its_scope_and_mirrored_stops():
    with tf.device("CPU:0"):
        model = small_model()
    second = dl.split_devices(4)[1]
    assert a_step_by_hand(dl.make_strategy("one_device", devices=[second]), model) > 0.01
    assert model.weights[0].value.device.endswith("CPU:0")
    with pytest.raises(AssertionError) as error:
        a_step_by_hand(dl.make_strategy("mirrored", devices=4), small_model())
    assert str(error.value) == ""


def test_the_only_compute_device_holds_the_one_copy_of_central_storage():
    device = dl.split_devices(4)[1]
    make = tf.distribute.experimental.CentralStorageStrategy
    strategies = {
        device: dl.make_strategy("central_storage", devices=[device]),
        "CPU:0": make([device], parameter_device="CPU:0"),
    }
    for where, strategy in strategies.items():
        model = keras_own(small_model, strategy)
        assert a_step_by_hand(strategy, model) > 0.01
        assert {weight.value.device[-5:] for weight in model.weights} == {where}


def test_keras_own_fit_logs_the_first_steps_most_under_central_storage():
    """A metric has one total there, and each replica's update counts the old total again."""
    central = dl.make_strategy("central_storage", devices=2)
    with central.scope():
        total = tf.Variable(10.0, aggregation=tf.VariableAggregation.SUM)
    central.run(tf.function(lambda: total.assign(total + 1.0)))
    assert total.numpy() == (10 + 1) + (10 + 1)

    def fit(model, steps):
        x = np.random.default_rng(1).normal(size=(2 * steps, 4)).astype("float32")
        data = tf.data.Dataset.from_tensor_slices((x, x @ np.ones((4, 2)))).batch(2)
        logged = model.fit(data, verbose=0, shuffle=False).history["loss"][-1]
        return logged, model.get_weights()

    def build():
        dl.set_seed(1)
        return small_model()

    logged, weights = fit(build(), 60)
    wrong, same = fit(keras_own(build, central), 60)
    for a, b in zip(weights, same, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    assert wrong > 1.5 * logged, "the first steps have the largest losses"
    assert np.isnan(fit(keras_own(build, central), 160)[0])
    assert fit(dl.distribute(build, central), 60)[0] == pytest.approx(logged, rel=1e-5)


def test_keras_own_evaluate_is_wrong_under_central_storage_as_well():
    central = dl.make_strategy("central_storage", devices=2)

    def build():
        model = small_model()
        model.set_weights([np.ones((4, 2)), np.zeros(2)])
        return model

    x, y = np.arange(32.0).reshape(8, 4), np.zeros((8, 2))
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(2)
    one = build().evaluate(data, verbose=0)
    assert keras_own(build, central).evaluate(data, verbose=0) != pytest.approx(one, rel=1e-2)
    assert dl.distribute(build, central).evaluate(data, verbose=0) == pytest.approx(one, rel=1e-5)


def test_a_callback_that_reads_the_log_stops_a_healthy_run_under_central_storage():
    """The total doubles in every step with two replicas, until float32 overflows."""

    def build():
        # A first loss of 1, not of chance: a smaller one needs more steps to overflow.
        layer = keras.layers.Dense(1, kernel_initializer="ones")
        model = keras.Sequential([keras.Input((2,)), layer])
        model.compile(keras.optimizers.SGD(0.01), loss="mse")
        return model

    data = tf.data.Dataset.from_tensor_slices((np.ones((280, 2)), np.ones((280, 1)))).batch(2)
    model = keras_own(build, dl.make_strategy("central_storage", devices=2))
    model.fit(data, verbose=0, callbacks=[keras.callbacks.TerminateOnNaN()])
    assert 120 <= model.optimizer.iterations.numpy() <= 130
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


def test_an_embedding_of_keras_reads_its_whole_table_and_a_raw_variable_some_rows():
    def reads(look_up):
        traced = tf.function(look_up).get_concrete_function(tf.TensorSpec([None], tf.int32))
        kinds = {operation.type for operation in traced.graph.get_operations()}
        return kinds & {"ReadVariableOp", "ResourceGather"}

    layer, raw = keras.layers.Embedding(1000, 8), tf.Variable(tf.zeros([1000, 8]))
    layer.build((None,))
    assert reads(layer) == {"ReadVariableOp"}, "the whole variable"
    assert reads(lambda rows: tf.gather(raw, rows)) == {"ResourceGather"}, "rows of it"


def test_the_text_tells_the_order_of_the_card():
    """The lesson's list, the figure and the card have one order."""
    listed = re.findall(r"^# \d\. \*\*(.+?)\*\*", lesson_text(STEM), re.MULTILINE)
    words = ("Sharded data", "Tensor", "Pipelines", "Experts", "long text")
    assert len(listed) == len(ORDER)
    assert [word for word, told in zip(words, listed, strict=True) if word not in told] == []
    assert [kind.name.partition(". ")[2] for kind in FIELD[1:]] == [
        way.name for way in ORDER.values()
    ]


def test_with_fewer_tokens_sharded_weights_are_what_travels_most():
    """The tokens at which four sums in each of 32 layers equal 6.7e9 weights, sent three times."""
    tokens = 3 * 6.7e9 / (4 * 32 * 2 * 4096)
    assert tokens == pytest.approx(19_000, rel=0.02)
