"""The checks of lesson 10: right answers pass on a real coordinator, wrong ones are named."""

import functools
import sys
import time

import cloudpickle
import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
from distlab.course.checks.registry import checks_of
from distlab.course.lesson_10_parameter_server.checks import coordinator as coordinator_checks
from distlab.course.runs.cluster_calls import call_on_coordinator
from distlab.errors import TaskFailed
from tests.support.lesson_checks import (
    assert_feedback_says,
    assert_mistakes_are_caught,
    assert_right_answers_pass,
    edited_solution,
    edited_solutions,
    load_solution,
    load_stub,
)
from tests.support.limits import HANG_SECS
from tests.support.repository import lesson_text

STEM = "10_parameter_server"
LOOP, STALENESS, SHARDS, SUM = checks_of(STEM)
ONE_DRAW = (1,)
edited = functools.partial(edited_solution, STEM)
# A process that gets an answer is spared the import of this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


# --- coordinate


def test_loops_are_judged():
    """As the lesson's own loop, one that is too far ahead has both workers in a step."""
    in_a_tensor = {
        "losses + coordinator.fetch(promises[len(losses) :])": (
            "tf.stack([promise.fetch() for promise in promises])"
        )
    }
    assert_right_answers_pass(LOOP, edited("train", in_a_tensor), seeds=ONE_DRAW)
    wrong = {
        "step_called_here": {"coordinator.schedule(step, args=(data,))": "step(data)"},
        "dataset_on_coordinator": {
            "data = iter": "made = make_data()\n    data = iter",
            "(make_data)": "(lambda: made)",
        },
        "fetch_each_step": {"number >= ahead": "number", "[number - ahead]": "[-1]"},
        "too_far_ahead": {"number >= ahead": "number > ahead", "- ahead]": "- ahead - 1]"},
        "no_join": {"losses + coordinator.fetch(promises[len(losses) :])": "promises"},
    }
    wrong = edited_solutions(STEM, "train", wrong)
    earned = {"fetch_each_step": 0, "too_far_ahead": 1.5}
    assert_mistakes_are_caught(LOOP, wrong, earned=earned, seeds=ONE_DRAW)


# --- staleness


def test_staleness_is_judged():
    ordered = "[found[step] for step in sorted(found)]"
    in_a_tuple = edited("staleness", {ordered: "tuple(float(found[n]) for n in range(len(found)))"})
    assert_right_answers_pass(STALENESS, in_a_tuple)
    since_sent = edited("staleness", {'event == "read"': 'event == "sent"'})
    assert_mistakes_are_caught(STALENESS, {"counted_at_send": since_sent})
    message = "return a list in the order of the steps; yours is a dict"
    assert_feedback_says(STALENESS, {message: edited("staleness", {ordered: "found"})})


# --- shard_rows


def dealt(rows, row_bytes, least_bytes, servers):
    """Row by row, as cards are dealt."""
    shards = 1
    while shards < servers and rows * row_bytes >= least_bytes * (shards + 1):
        shards += 1
    return [len(range(shard, rows, shards)) for shard in range(shards)]


def test_shards_are_judged():
    assert_right_answers_pass(SHARDS, dealt)

    all_alike = {"[each + 1] * more + [each] * (shards - more)": "[each] * shards"}
    assert_mistakes_are_caught(SHARDS, {"rest_is_lost": edited("shard_rows", all_alike)})


def test_tensorflows_partitioner_makes_three_shards_where_the_task_asks_for_two():
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(64, 4)
    assert partitioner(tf.TensorShape([10, 4]), tf.float32) == [3, 1]
    assert load_solution(STEM)["shard_rows"](10, 16, 64, 4) == [5, 5]


# --- survive_kill


def test_sums_are_judged():
    one_by_one = edited("add_up", {"coordinator.fetch(results)": "r.fetch() for r in results"})
    assert_right_answers_pass(SUM, one_by_one, seeds=ONE_DRAW)
    too_early = {"    coordinator.join()\n": "", "float(sum(coordinator.fetch(results)))": "0.0"}
    wrong = {
        "no_join": edited("add_up", too_early),
        "assumes_exactly_once": load_stub(STEM)["add_up"],
    }
    assert_mistakes_are_caught(SUM, wrong, seeds=ONE_DRAW)

    def on_the_coordinator(coordinator, work, numbers):
        return float(sum(map(work, numbers)))

    assert_feedback_says(SUM, {"`work` did not run in a step on a worker": on_the_coordinator})


def test_a_sum_of_steps_one_at_a_time_waits_for_a_kill_in_vain(monkeypatch):
    soon = functools.partial(call_on_coordinator, timeout_secs=3)  # what is late stays late
    monkeypatch.setattr(coordinator_checks, "call_on_coordinator", soon)
    one_at_a_time = edited("add_up", {"in numbers]": "in numbers if not coordinator.join()]"})
    assert_mistakes_are_caught(SUM, {"one_at_a_time": one_at_a_time}, seeds=ONE_DRAW)


# --- what the lesson claims, on the coordinator of the checks


def on_coordinator(function, *args):
    return call_on_coordinator(_on_coordinator, function, *args, timeout_secs=HANG_SECS)


def _on_coordinator(stage, function, *args):
    return function(stage.coordinator, *args)


def awaited_by_the_count(step):
    """The kinds of the operations that are certain to run before a step counts."""
    operations = step.get_concrete_function(tf.constant(0)).graph.get_operations()
    to_do = [operation for operation in operations if operation.type == "AssignAddVariableOp"]
    awaited = set()
    while to_do:
        operation = to_do.pop()
        before = {*(tensor.op for tensor in operation.inputs), *operation.control_inputs} - awaited
        awaited |= before
        to_do += before
    return {operation.type for operation in awaited}


def test_tensorflow_does_not_order_a_gate_a_check_and_a_count():
    count, gate = tf.Variable(0), tf.Variable(0)

    @tf.function
    def step(number):
        while gate < 1:
            pass
        tf.debugging.assert_none_equal(number, 4)
        count.assign_add(1)

    assert not {"While", "Assert"} & awaited_by_the_count(step)


def shuffled_by_two(coordinator, global_seed):
    """The first 20 numbers that each worker reads, by the time at which it made its data set."""
    tf.random.set_seed(global_seed)

    def make_data():
        made = tf.timestamp()
        numbers = tf.data.Dataset.range(20).shuffle(20).repeat()
        return numbers.map(lambda number: (made, number))

    numbers = iter(coordinator.create_per_worker_dataset(make_data))
    step = tf.function(lambda numbers: next(numbers))
    read = {}
    for _ in range(100_000):  # mostly they take turns, but not on a busy machine
        made, number = coordinator.schedule(step, args=(numbers,)).fetch()
        read.setdefault(float(made), []).append(int(number))
        if len(read) == 2 and min(map(len, read.values())) >= 20:
            break
    return [numbers[:20] for numbers in read.values()]


def test_workers_shuffle_differently_unless_a_global_seed_is_set():
    first, second = on_coordinator(shuffled_by_two, None)
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second
    first, second = on_coordinator(shuffled_by_two, 1)
    assert first == second


def number_or_error(coordinator, is_made_here):
    data = tf.data.Dataset.range(8) if is_made_here else None
    made = (lambda: data) if is_made_here else (lambda: tf.data.Dataset.range(8))
    try:
        numbers = iter(coordinator.create_per_worker_dataset(made))
        number = coordinator.schedule(tf.function(lambda numbers: next(numbers)), args=(numbers,))
        coordinator.join()
        return int(number.fetch())
    except Exception as error:
        return str(error)


def test_a_data_set_made_on_the_coordinator_cannot_be_sent_to_a_worker():
    assert on_coordinator(number_or_error, False) == 0
    assert "Unable to parse tensor proto" in on_coordinator(number_or_error, True)


def replicas(coordinator):
    return coordinator.strategy.num_replicas_in_sync


def test_two_workers_are_one_replica():
    assert on_coordinator(replicas) == 1


def queue_with_a_bad_batch(coordinator):
    """Runs 20 steps whose fifth fails, with `join` or `schedule` after it."""
    with coordinator.strategy.scope():
        count, gate = tf.Variable(0), tf.Variable(0)

    @tf.function
    def step(number):
        """The first five steps wait until the gate is 1, the others until it is 2."""
        opens = tf.where(number < 5, 1, 2)
        tf.while_loop(lambda at: at < opens, lambda _: [gate.read_value()], [gate.read_value()])
        good = tf.debugging.assert_none_equal(number, 4, message="a bad batch")
        with tf.control_dependencies([good]):
            count.assign_add(1)

    def send():
        for number in range(20):
            coordinator.schedule(step, args=(tf.constant(number),))

    def error_of(call):
        try:
            call()
        except tf.errors.InvalidArgumentError as error:
            return "a bad batch" in str(error)

    send()
    seen = {"counted at once": int(count)}
    gate.assign(1)
    seen["join raises"] = error_of(coordinator.join)
    seen["counted at join"], seen["queue is empty"] = int(count), coordinator.done()

    count.assign(0), gate.assign(2)
    send()
    until = time.monotonic() + HANG_SECS
    while int(count) < 19 and time.monotonic() < until:
        time.sleep(0.01)  # between looks at the server
    seen["counted before a call"] = int(count)
    seen["schedule raises"] = error_of(send)
    coordinator.join()
    return seen


def test_the_first_call_after_an_error_raises_it_and_empties_the_queue():
    seen = on_coordinator(queue_with_a_bad_batch)
    assert seen["counted at once"] == 0
    assert seen["join raises"]
    assert seen["counted at join"] <= 4
    assert seen["queue is empty"]
    assert seen["counted before a call"] == 19
    assert seen["schedule raises"]


def a_small_model():
    dl.set_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.2), loss=loss)
    return model


def make_data():
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(24, 4)).astype("float32"), draw.integers(0, 3, size=24)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(8).repeat()


def error_of_keras_fit(coordinator):
    with coordinator.strategy.scope():
        model = a_small_model()
    try:
        model.fit(make_data(), steps_per_epoch=2, verbose=0)
    except Exception as error:
        return type(error).__name__


def test_keras_own_fit_stops_under_a_parameter_server_strategy():
    assert on_coordinator(error_of_keras_fit).endswith("Error")


def test_with_a_staleness_of_one_only_rates_below_one_converge():
    """The lesson's model: the gradient of a weight is the weight."""
    for staleness, rate, converges in (
        (0, 1.9, True),
        (0, 2.1, False),
        (1, 0.9, True),
        (1, 1.1, False),
    ):
        weights = [1.0] * (staleness + 1)
        for _ in range(200):
            weights.append(weights[-1] - rate * weights[-1 - staleness])
        last = max(map(abs, weights[-6:]))
        assert last < 1e-3 if converges else last > 1e3, (staleness, rate)


def test_keras_counts_a_step_by_reading_and_then_writing():
    """So two workers that count at the same time can lose a count: see the page of pitfalls."""
    iterations = keras.Variable(0, dtype="int64", trainable=False)
    graph = tf.function(lambda: iterations.assign_add(1)).get_concrete_function().graph
    kinds = {operation.type for operation in graph.get_operations()}
    assert {"ReadVariableOp", "AssignVariableOp"} <= kinds
    assert "AssignAddVariableOp" not in kinds


# --- what the lesson claims, on clusters of its own


def make_coordinator(partitioner=None):
    """On a chief: the coordinator of this process, or a new one."""
    import __main__

    if not hasattr(__main__, "coordinator"):
        tf.get_logger().setLevel("CRITICAL")
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        strategy = tf.distribute.ParameterServerStrategy(resolver, partitioner)
        __main__.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    return __main__.coordinator


def cut_in_two():
    return make_coordinator(tf.distribute.experimental.partitioners.FixedShardsPartitioner(2))


def count_one_step():
    coordinator = cut_in_two()
    with coordinator.strategy.scope():
        count = tf.Variable(0)

    @tf.function
    def step():
        count.assign_add(1)

    coordinator.schedule(step)
    coordinator.join()
    return int(count)


def rows_that_learn(ids):
    coordinator = cut_in_two()
    with coordinator.strategy.scope():
        table = tf.Variable(tf.zeros([1001, 4]))

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(tf.nn.embedding_lookup(table, ids) - 1.0))
        slices = tape.gradient(loss, table.variables)
        for part, gradient in zip(table.variables, slices, strict=True):
            part.scatter_nd_sub(gradient.indices[:, None], 0.5 * gradient.values)

    coordinator.schedule(step, args=(tf.constant(ids),))
    coordinator.join()
    learned = tf.concat(table.variables, axis=0)[:, 0]
    places = [tf.DeviceSpec.from_string(part.device).task for part in table.variables]
    return np.flatnonzero(learned).tolist(), sorted(places)


def a_layer_in_shards():
    coordinator = cut_in_two()
    with coordinator.strategy.scope():
        layer = keras.layers.Dense(4)
        layer.build((None, 8))

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(tf.ones((1, 8))))
        return tape.gradient(loss, layer.trainable_variables)

    try:
        coordinator.schedule(step)
    except AttributeError as error:
        return str(error).strip().splitlines()[-1].strip()


def processes(cluster):
    return {task.task: task.pid for task in cluster.status().tasks}


def test_tables_but_no_layers_can_be_cut_and_a_new_coordinator_finds_the_same_workers():
    with dl.LocalCluster(workers=2, parameter_servers=2) as cluster:
        ids = [2, 500, 1000]
        assert cluster.run(rows_that_learn, ids, tasks="chief") == [(ids, [0, 1])]
        (error,) = cluster.run(a_layer_in_shards, tasks="chief")
        assert "'ShardedVariable' object has no attribute 'handle'" in error

        before = processes(cluster)
        cluster.kill(["ps:0", "ps:1"])
        with pytest.raises(TaskFailed, match=r"UnavailableError|AbortedError"):
            cluster.run(count_one_step, tasks="chief")
        cluster.restart(["chief:0", "ps:0", "ps:1"])
        assert cluster.run(count_one_step, tasks="chief") == [1]
        after = processes(cluster)
    kept = {task for task in before if before[task] == after[task]}
    assert kept == {"worker:0", "worker:1"}


def run_loop(code, steps):
    """Runs the loop's lines with a step of one batch, and returns its losses and weights."""
    coordinator = make_coordinator()
    strategy = coordinator.strategy
    with strategy.scope():
        model = a_small_model()
        model.optimizer.build(model.trainable_variables)

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            loss = model.loss(y, model(x, training=True))
        weights = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    step = tf.function(lambda data: strategy.run(replica_step, args=next(data)))
    names = {"coordinator": coordinator, "make_data": make_data, "step": step, "steps": steps}
    exec(code, names)
    return names["losses"], model.get_weights()


def test_the_loop_that_the_lesson_shows_takes_the_steps_of_one_device():
    block = lesson_text(STEM).split("# ```python\n")[1].split("# ```")[0]
    code = "\n".join(line.removeprefix("# ") for line in block.splitlines())
    with dl.LocalCluster(workers=1, parameter_servers=1) as cluster:
        ((losses, weights),) = cluster.run(run_loop, code, 6, tasks="chief")
    alone = a_small_model()
    alone.fit(make_data(), steps_per_epoch=6, shuffle=False, verbose=0)
    assert len(losses) == 6
    for ours, theirs in zip(weights, alone.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)  # float32: sums in another order
