"""The checks of lesson 16: right answers pass, wrong ones are named; and what the lesson counts."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

import distlab as dl
from distlab.checks.lesson_16_choosing_a_strategy import cases
from distlab.checks.registry import checks_of
from distlab.checks.run_check import run_check
from tests.support.lesson_checks import (
    assert_mistake_is_caught,
    assert_solution_passes,
    load_solution,
    load_stub,
)
from tests.support.repository import ROOT

STEM = "16_choosing_a_strategy"
CHECKS = {check.name: check for check in checks_of(STEM)}
CHOOSE, COMPARE, WORTH = CHECKS.values()
solution = functools.cache(functools.partial(load_solution, STEM))


# --- choose_and_defend


def choose_but(**others):
    right = solution()["choose"]
    return lambda case: others.get(case, right(case))


def test_no_strategy_where_the_device_does_not_matter_is_right_as_well():
    assert_solution_passes(CHOOSE, choose_but(A=("default", "batch_too_small")), seeds=range(3))


@pytest.mark.parametrize("form", [list, np.array])
def test_answers_as_lists_and_arrays_pass(form):
    assert_solution_passes(CHOOSE, lambda case: form(solution()["choose"](case)), seeds=range(3))


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        ({"A": ("mirrored", "copies_in_one_host")}, "more_devices_always"),
        ({"B": ("mirrored", "always_faster")}, "more_devices_always"),
        ({"F": ("central_storage", "copies_too_large")}, "more_devices_always"),
        ({"C": ("mirrored", "hosts_step_together")}, "mirrored_across_hosts"),
        ({"D": ("mirrored", "no_waiting")}, "mirrored_across_hosts"),
        ({"C": ("parameter_server", "hosts_step_together")}, "ps_for_bitwise"),
        ({"D": ("multi_worker", "hosts_step_together")}, "waits_for_the_slowest"),
        ({"E": ("mirrored", "copies_in_one_host")}, "mirrored_saves_memory"),
        ({"B": ("mirrored", "less_memory_each")}, "mirrored_saves_memory"),
    ],
    ids=str,
)
def test_wrong_choices_are_named(wrong, mistake):
    assert_mistake_is_caught(CHOOSE, choose_but(**wrong), mistake)


def test_each_strategy_and_each_reason_earns_half_a_point():
    assert run_check(CHOOSE, choose_but(B=("mirrored", "no_waiting"))).earned == 5.5
    assert run_check(CHOOSE, choose_but(B=("default", "no_waiting"))).earned == 5


@pytest.mark.parametrize(
    "answer", [("mirrored", "copies_in_one_host"), ("default", "batch_too_small"), "none"], ids=str
)
def test_the_same_answer_to_every_case_earns_nothing(answer):
    report = run_check(CHOOSE, lambda case: answer)
    assert report.earned == 0
    assert "the same answer to every case" in repr(report)


def test_cases_that_are_not_answered_yet_do_not_hide_those_that_are():
    def one_case_only(case):
        return solution()["choose"](case) if case == "B" else None

    report = run_check(CHOOSE, one_case_only)
    assert report.earned == 1
    assert "your function returned None for this case" in repr(report)


ONLY = {
    "A": {"one_device", "default"},
    "B": {"mirrored"},
    "C": {"multi_worker"},
    "D": {"parameter_server"},
    "E": {"central_storage"},
    "F": {"none"},
}


@pytest.mark.parametrize("case", ONLY)
def test_no_other_strategy_and_no_other_reason_passes(case):
    strategy, reason = solution()["choose"](case)
    passing = {
        (s, r)
        for s in cases.STRATEGIES
        for r in cases.REASONS
        if run_check(CHOOSE, choose_but(**{case: (s, r)}), seeds=[1]).passed
    }
    assert passing == {(s, reason) for s in ONLY[case]}
    assert strategy in ONLY[case]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (("Mirrored", 3), "not one of"),
        (None, "is there a `return`?"),
        ("mirrored", "two words were asked for"),
        (("mirrored",), "two words were asked for"),
        ({"strategy": "mirrored"}, "two words were asked for"),
        (7, "two words were asked for"),
    ],
    ids=str,
)
def test_answers_in_a_different_form_fail_and_the_report_says_what_is_asked(answer, said):
    report = run_check(CHOOSE, choose_but(B=answer))
    assert report.earned == (5.5 if answer == "mirrored" else 5)
    assert said in repr(report)


def test_two_strategies_for_one_case_are_not_a_choice():
    hedged = choose_but(A=(["one_device", "default"], "batch_too_small"))
    assert run_check(CHOOSE, hedged).earned == 5.5


def test_the_feedback_asks_and_never_tells_the_answer():
    messages = [ask for *_, ask in cases.CASES.cases.values()]
    names = (*cases.STRATEGIES, *cases.REASONS)
    assert not [(m, name) for m in messages for name in names if name in m.lower()]
    wrong = {"A": ("multi_worker", "no_waiting")}
    report = run_check(CHOOSE, lambda case: wrong.get(case, ("tpu", "always_faster")))
    assert len(report.criteria) == 12
    assert all(not criterion.expected for criterion in report.criteria)


def test_every_name_that_the_exercise_lists_is_one_the_check_knows():
    text = (ROOT / "lessons" / STEM / "exercise.py").read_text(encoding="utf-8")
    assert [name for name in (*cases.STRATEGIES, *cases.REASONS) if f'`"{name}"`' not in text] == []


# --- compare_strategies


def all_apart(one, model, *, weights="weights", allowed=1e-5, far=np.abs):
    """The paths of all weights that differ, as an answer with these habits sees them."""
    pairs = zip(getattr(one, weights), getattr(model, weights), strict=True)
    return [a.path for a, b in pairs if far(np.subtract(a, b)).max() > allowed]


def first_of(**habits):
    return lambda one, model, *_: next(iter(all_apart(one, model, **habits)), None)


first_apart = first_of()


def comparer(make=dl.distribute, differs=first_apart, copies=None):
    """An answer to `compare_strategies`; each part may be replaced."""

    def compare_strategies(build, dataset, strategies):
        one = build()
        expected = one.fit(dataset, verbose=0, shuffle=False).history["loss"]
        table = {}
        for name, strategy in strategies.items():
            model = make(build, strategy)
            found = model.fit(dataset, verbose=0, shuffle=False).history["loss"]
            counted = len(strategy.experimental_local_results(model.weights[0].value))
            table[name] = {
                "differs": differs(one, model, expected, found),
                "copies": copies(strategy) if copies else counted,
            }
        return table

    return compare_strategies


def keras_own(build, strategy):
    with strategy.scope():
        return build()


def by_saved_weights(build, dataset, strategies):
    """Another right answer: weights by their paths, copies by what a variable is made of."""

    def trained(model):
        model.fit(dataset, verbose=0, shuffle=False)
        return model, {weight.path: weight.numpy() for weight in model.weights}

    _, expected = trained(build())
    table = {}
    for name, strategy in strategies.items():
        model, found = trained(dl.distribute(build, strategy))
        first = model.weights[0].value
        equal = {path: np.allclose(found[path], expected[path], 0, 1e-5) for path in expected}
        table[name] = {
            "differs": next((path for path, same in equal.items() if not same), None),
            "copies": len(getattr(first, "values", [first])),
        }
    return table


def all_in_one(build, dataset, strategies):
    """The strategies first, the arrays apart from their paths, and values that are not Python's."""

    def ends(model):
        model.fit(dataset, verbose=0)
        return model.get_weights()

    models = {name: dl.distribute(build, strategy) for name, strategy in strategies.items()}
    found = {name: ends(model) for name, model in models.items()}
    one = ends(build())
    table = {}
    for name, strategy in strategies.items():
        weights = models[name].weights
        copies = strategy.experimental_local_results(weights[0].value)
        apart = [np.abs(a - b).max() > 1e-5 for a, b in zip(found[name], one, strict=True)]
        path = np.str_(weights[np.argmax(apart)].path) if any(apart) else None
        table[name] = {"copies": tf.constant(len(copies)), "differs": path}
    return table


def by_own_loop(build, dataset, strategies):
    """A loop of its own in the place of `dl.distribute`, and NumPy's own comparison."""
    one = build()
    one.fit(dataset, verbose=0, shuffle=False)
    table = {}
    for name, strategy in strategies.items():
        with strategy.scope():
            model = build()

        def replica_step(x, y, model=model):
            count = tf.cast(tf.shape(x)[0], tf.float32)
            count = tf.distribute.get_replica_context().all_reduce("SUM", count)
            with tf.GradientTape() as tape:
                losses = tf.reduce_mean((model(x, training=True) - y) ** 2, axis=-1)
                loss = tf.reduce_sum(losses) / count
            weights = model.trainable_variables
            model.optimizer.apply(tape.gradient(loss, weights), weights)

        for batch in strategy.experimental_distribute_dataset(dataset):
            tf.function(strategy.run)(replica_step, args=batch)
        differs = None
        for a, b in zip(one.weights, model.weights, strict=True):
            try:
                np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=0, atol=1e-5)
            except AssertionError:
                differs = b.path
                break
        copies = strategy.experimental_local_results(model.weights[0].value)
        table[name] = {"differs": differs, "copies": len(copies)}
    return table


@pytest.mark.parametrize(
    "right",
    [comparer(), by_saved_weights, all_in_one, by_own_loop],
    ids=["losses_too", "by_path", "all_in_one", "own_loop"],
)
def test_other_right_comparisons_pass(right):
    assert_solution_passes(COMPARE, right, seeds=range(3))


def farthest(one, model, *_):
    pairs = zip(one.weights, model.weights, strict=True)
    far = {a.path: np.abs(np.subtract(a, b)).max() for a, b in pairs}
    worst = max(far, key=far.get)
    return worst if far[worst] > 1e-5 else None


def by_losses(one, model, expected, found):
    return None if np.allclose(expected, found, atol=1e-5) else one.weights[0].path


def by_one_weight(place):
    def differs(one, model, *_):
        weight = one.weights[place]
        return weight.path if weight.path in all_apart(one, model) else None

    return differs


WRONG = {
    "built_outside_scope": comparer(make=lambda build, strategy: build(), copies=lambda s: 1),
    "keras_own_fit": comparer(make=keras_own),
    "name_for_path": comparer(differs=lambda *a: (first_apart(*a) or "").split("/")[-1] or None),
    "all_that_differ": comparer(differs=lambda one, model, *_: all_apart(one, model)),
    "exact_equality": comparer(differs=first_of(allowed=0)),
    "differs_later": comparer(differs=lambda one, model, *_: [None, *all_apart(one, model)][-1]),
    "compares_losses_only": comparer(differs=by_losses),
    "too_tolerant": comparer(differs=first_of(allowed=1e-2)),
    "never_differs": comparer(differs=lambda one, *_: first_apart(one, one)),
    "counts_the_name": comparer(copies=lambda strategy: 1),
    "counts_replicas": comparer(copies=lambda strategy: strategy.num_replicas_in_sync),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_wrong_comparisons_are_named(mistake):
    earned = assert_mistake_is_caught(COMPARE, WRONG[mistake], mistake).earned
    assert earned == (3 if mistake in {"counts_the_name", "counts_replicas"} else 0)


def test_copies_of_untrained_models_earn_nothing():
    def counted_only(build, dataset, strategies):
        weights = {name: dl.distribute(build, s).weights[0] for name, s in strategies.items()}
        return {
            name: {
                "differs": None,
                "copies": len(strategy.experimental_local_results(weights[name].value)),
            }
            for name, strategy in strategies.items()
        }

    assert run_check(COMPARE, counted_only).earned == 0


@pytest.mark.parametrize(
    ("differs", "mistake"),
    [
        (first_of(weights="trainable_weights"), "compares_losses_only"),
        (by_one_weight(0), "compares_losses_only"),
        (by_one_weight(-1), "differs_later"),
        (farthest, "differs_later"),
        (first_of(far=np.positive), "differs_later"),
        (first_of(far=np.negative), "differs_later"),
    ],
    ids=["trained", "first", "last", "farthest", "above_only", "below_only"],
)
def test_a_part_of_the_difference_is_not_all_of_it(differs, mistake):
    assert_mistake_is_caught(COMPARE, comparer(differs=differs), mistake)


def test_the_trained_weights_are_not_asked_before_the_others():
    def sorted_by_training(one, model, *_):
        kinds = ("trainable_weights", "non_trainable_weights")
        found = [path for kind in kinds for path in all_apart(one, model, weights=kind)]
        return next(iter(found), None)

    assert_mistake_is_caught(COMPARE, comparer(differs=sorted_by_training), "differs_later")


def test_one_model_for_all_strategies_is_named():
    def one_for_all(build, dataset, strategies):
        model = build()
        return {name: dl.distribute(lambda: model, s).name for name, s in strategies.items()}

    assert_mistake_is_caught(COMPARE, one_for_all, "one_model_for_all")


ROW_OF_THE_LESSON = {"mirrored": {"equal": True, "copies": 2}}


@pytest.mark.parametrize("answer", [None, {}, {"mirrored": True}, [1], ROW_OF_THE_LESSON], ids=str)
def test_tables_in_a_different_form_earn_nothing_and_are_shown_as_they_are(answer):
    report = run_check(COMPARE, lambda *_: answer)
    assert (report.earned, "cannot read" in repr(report)) == (0, False)
    no_model = answer in ({}, ROW_OF_THE_LESSON)
    assert report.mistake == ("built_outside_scope" if no_model else "")


# --- worth_it


def reader(*, of_steps=np.median, equal_only=True, examples=True, worth=1.1):
    """An answer to `worth_it` with these habits."""

    def worth_it(measured):
        rows = {name: row for name, row in measured.items() if row["equal"] or not equal_only}
        speeds = {
            name: (row["global_batch"] if examples else 1) / of_steps(row["step_ms"])
            for name, row in rows.items()
        }
        best = max(speeds, key=speeds.__getitem__)
        return best if speeds[best] >= worth * speeds["one_device"] else "one_device"

    return worth_it


def middle(times):
    return sorted(times)[len(times) // 2]


def without_the_ends(times):
    return np.mean(sorted(times)[1:-1])


def by_rates(measured):
    """Examples a second of each step, the worth of it asked first, and its input changed."""
    found = "one_device"
    speeds = {}
    for name in sorted(measured):
        row = measured.pop(name)
        rates = np.sort(1000 * row["global_batch"] / np.array(row["step_ms"]))
        speeds[name] = rates[3] if row["equal"] else 0
    for name, speed in speeds.items():
        if speed >= max(1.1 * speeds["one_device"], speeds[found]):
            found = name
    return np.str_(found)


@pytest.mark.parametrize(
    "right",
    [
        reader(of_steps=middle),
        reader(of_steps=without_the_ends),
        reader(of_steps=lambda times: np.percentile(times, 50)),
        by_rates,
    ],
    ids=["middle", "trimmed", "percentile", "rates"],
)
def test_other_right_readers_pass(right):
    assert_solution_passes(WORTH, right)


def asked_last(measured):
    """The weights are looked at when the fastest is found."""
    best = reader(equal_only=False)(measured)
    return best if measured[best]["equal"] else "one_device"


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        (reader(of_steps=min, equal_only=False, examples=False), "as_handed_out"),
        (reader(equal_only=False), "wrong_weights_win"),
        (reader(examples=False), "steps_for_examples"),
        (reader(of_steps=min), "lucky_step"),
        (reader(of_steps=min, equal_only=False), "wrong_weights_win"),
        (reader(of_steps=min, examples=False), "steps_for_examples"),
        (asked_last, "equal_asked_last"),
        (reader(of_steps=lambda times: times[0]), "one_step"),
        (reader(of_steps=lambda times: times[3]), "one_step"),
        (reader(of_steps=lambda times: times[-1]), "one_step"),
        (reader(of_steps=np.mean), "mean_of_steps"),
        (reader(of_steps=max), "mean_of_steps"),
        (reader(of_steps=lambda times: np.mean(times[1:])), "mean_of_steps"),
        (reader(worth=1.0), "speedup_within_noise"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_measurements_that_are_misread_are_named(wrong, mistake):
    assert_mistake_is_caught(WORTH, wrong, mistake)


def test_the_reader_to_repair_misreads_all_tables():
    report = assert_mistake_is_caught(WORTH, load_stub(STEM)["worth_it"], "as_handed_out")
    assert report.earned == 0


def test_one_device_for_every_table_earns_nothing():
    assert run_check(WORTH, lambda measured: "one_device").earned == 0


# --- what the lesson says and does not run


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


@pytest.fixture(scope="module")
def lesson():
    """The functions that the lesson defines, without running it."""
    text = (ROOT / "lessons" / STEM / "lesson.py").read_text(encoding="utf-8")
    start = text.index("def bytes_moved")
    names = {}
    exec(text[start : text.index("# %%", start)], names)
    return names


@pytest.mark.parametrize("kind", ["mirrored", "central_storage"])
@pytest.mark.parametrize("replicas", [2, 3])
def test_a_compiled_step_sends_the_bytes_that_the_lesson_counts(lesson, kind, replicas):
    sent, weights = sizes_sent(lambda devices: dl.make_strategy(kind, devices=devices), replicas)
    assert sent == lesson["bytes_moved"](kind, replicas, weights)


@pytest.mark.parametrize("replicas", [2, 3])
def test_tensorflows_own_central_storage_sends_two_s_more(lesson, replicas):
    own = tf.distribute.experimental.CentralStorageStrategy
    sent, weights = sizes_sent(lambda devices: own(devices, parameter_device="CPU:0"), replicas)
    assert sent == lesson["bytes_moved"]("central_storage", replicas, weights) + 2 * weights


def small_model():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.1), loss="mse")
    return model


def a_step_by_hand(strategy, model):
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        weights = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, weights), weights)

    before = model.get_weights()[0]
    strategy.run(tf.function(step, autograph=False), args=(tf.ones((3, 4)),))
    return np.abs(model.get_weights()[0] - before).max()


@pytest.mark.parametrize("kind", ["one_device", "mirrored"])
def test_distribute_refuses_a_model_that_was_built_outside_its_scope(kind):
    model = small_model()
    with pytest.raises(ValueError, match="scope"):
        dl.distribute(lambda: model, dl.make_strategy(kind))


def test_by_hand_one_device_trains_a_model_that_was_built_outside_its_scope():
    with tf.device("CPU:0"):
        model = small_model()
    second = dl.split_devices(4)[1]
    assert a_step_by_hand(dl.make_strategy("one_device", devices=[second]), model) > 0.01
    assert model.weights[0].value.device.endswith("CPU:0")


def test_by_hand_mirrored_stops_at_a_model_that_was_built_outside_its_scope():
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


def test_keras_own_evaluate_is_wrong_under_central_storage_as_well():
    central = dl.make_strategy("central_storage", devices=2)

    def build():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile(loss="mse")
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


NO_AGGREGATION = "You must specify an aggregation method"


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (lambda: keras.optimizers.SGD(0.1, use_ema=True), NO_AGGREGATION),
        (
            lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
            NO_AGGREGATION,
        ),
        (lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), "merge_call"),
        (lambda: keras.optimizers.Muon(0.01), NO_AGGREGATION),
        (lambda: keras.optimizers.Nadam(0.01), NO_AGGREGATION),
    ],
    ids=["ema", "loss_scale", "accumulation", "muon", "nadam"],
)
def test_keras_own_fit_stops_under_central_storage_with_the_lessons_message(optimizer, said):
    def build():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile(optimizer(), loss="mse")
        return model

    model = keras_own(build, dl.make_strategy("central_storage", devices=2))
    with pytest.raises((ValueError, RuntimeError), match=said):
        model.fit(np.ones((4, 4)), np.ones((4, 2)), verbose=0)


def test_an_embedding_of_keras_reads_its_whole_table_and_a_raw_variable_some_rows():
    def reads(look_up):
        traced = tf.function(look_up).get_concrete_function(tf.TensorSpec([None], tf.int32))
        kinds = {operation.type for operation in traced.graph.get_operations()}
        return kinds & {"ReadVariableOp", "ResourceGather"}

    layer, raw = keras.layers.Embedding(1000, 8), tf.Variable(tf.zeros([1000, 8]))
    layer.build((None,))
    assert reads(layer) == {"ReadVariableOp"}, "the whole variable"
    assert reads(lambda rows: tf.gather(raw, rows)) == {"ResourceGather"}, "rows of it"
