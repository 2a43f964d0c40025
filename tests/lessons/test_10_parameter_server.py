"""The checks of lesson 10: right answers pass on a real coordinator, wrong ones are named."""

import collections
import functools
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
from distlab.checks.lesson_10_parameter_server import shards as shards_module
from distlab.checks.registry import checks_of
from distlab.checks.run_check import run_check
from distlab.errors import TaskFailed
from distlab.source_lines import keep_lines
from tests.support.lesson_checks import (
    assert_mistake_is_caught,
    assert_solution_passes,
    load_solution,
    load_stub,
)
from tests.support.repository import ROOT

STEM = "10_parameter_server"
CHECKS = {check.name: check for check in checks_of(STEM)}
LOOP, STALENESS, SHARDS, SUM = CHECKS.values()
solution = functools.cache(functools.partial(load_solution, STEM))
named = functools.partial(pytest.mark.parametrize, ids=lambda v: v if isinstance(v, str) else "")


def test_the_sum_to_repair_counts_a_step_twice():
    stub = load_stub(STEM)["add_up"]
    assert_mistake_is_caught(SUM, stub, "assumes_exactly_once", seeds=[1])


# --- coordinate


def looping(
    *,
    make=lambda coordinator, make_data: iter(coordinator.create_per_worker_dataset(make_data)),
    send=lambda coordinator, step, data: coordinator.schedule(step, args=(data,)),
    end=lambda coordinator, losses: coordinator.fetch(losses),
    times=1,
    limit=lambda ahead: ahead,
):
    """An answer to `coordinate`, with parts that may be wrong."""

    def train(coordinator, step, make_data, steps, ahead):
        data, losses = make(coordinator, make_data), []
        for number in range(times * steps):
            if number >= limit(ahead):
                wait_for(losses[number - limit(ahead)])
            losses.append(send(coordinator, step, data))
        return end(coordinator, losses)

    return train


def wait_for(promise):
    if hasattr(promise, "fetch"):  # else it is the loss already
        promise.fetch()


def join_and(what):
    def end(coordinator, losses):
        coordinator.join()
        return what(losses)

    return end


def made_here(coordinator, make_data):
    data = make_data()
    return iter(coordinator.create_per_worker_dataset(lambda: data))


def given_here(coordinator, make_data):
    return iter(coordinator.create_per_worker_dataset(make_data()))


def sending_batches(coordinator, step, make_data, steps, ahead):
    batches = iter(make_data())
    losses = [coordinator.schedule(step, args=(next(batches),)) for _ in range(steps)]
    coordinator.join()
    return coordinator.fetch(losses)


def distributed(coordinator, make_data):
    return iter(coordinator.strategy.experimental_distribute_dataset(make_data()))


def each_anew(coordinator, step, data):
    return coordinator.schedule(step, args=(iter(data),))


def promised(losses):
    return losses


def one_by_one(losses):
    return [loss.fetch() for loss in losses]


def in_one_tensor(coordinator, step, make_data, steps, ahead):
    """A function around the step and one around the data, a queue, and one tensor in the end."""
    data = iter(coordinator.create_per_worker_dataset(lambda: make_data().prefetch(1)))
    wrapped = tf.function(lambda iterator: step(iterator))
    under_way, losses = collections.deque(), []
    for _ in range(steps):
        if len(under_way) == ahead:
            losses.append(under_way.popleft().fetch())
        under_way.append(coordinator.schedule(wrapped, (data,)))
    return tf.stack(losses + coordinator.fetch(list(under_way)))


def in_rounds(coordinator, step, make_data, steps, ahead):
    """As many as may be under way, until all of them are done, and again."""
    data, losses = iter(coordinator.create_per_worker_dataset(make_data)), np.zeros(0)
    while len(losses) < steps:
        sent = range(min(ahead, steps - len(losses)))
        promises = [coordinator.schedule(step, args=[data]) for _ in sent]
        while not coordinator.done():
            pass
        losses = np.append(losses, coordinator.fetch(promises))
    return losses


RIGHT_LOOPS = (looping(), looping(end=join_and(one_by_one)), in_one_tensor, in_rounds)


@pytest.mark.parametrize("right", RIGHT_LOOPS, ids=range(4))
def test_other_right_loops_pass(right):
    assert_solution_passes(LOOP, right, seeds=range(1))


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (lambda found: None, "is there a `return`?"),
        (lambda found: found[-1], "yours:    2\n"),
        (np.mean, "yours:    1.125\n"),
    ],
    ids=["nothing", "last", "mean"],
)
def test_what_is_no_list_of_losses_is_shown_as_it_is(end, told):
    def train(*given):
        return end(sorted(looping()(*given)))

    report = run_check(LOOP, train, seeds=[1])
    assert told in repr(report)
    assert not report.mistake


def fetched(coordinator, step, data):
    return coordinator.schedule(step, args=(data,)).fetch()


def joined(coordinator, step, data):
    promise = coordinator.schedule(step, args=(data,))
    coordinator.join()
    return promise


def here_alone(coordinator, step, make_data, steps, ahead):
    data = iter(make_data())
    return [step(data) for _ in range(steps)]


def called(coordinator, step, data):
    return coordinator.schedule(step(data))


def without_tuple(coordinator, step, data):
    return coordinator.schedule(step, args=data)


def per_worker(coordinator, make_data):
    return coordinator.create_per_worker_dataset(make_data)


@named(
    ("wrong", "mistake"),
    [
        (looping(make=made_here), "dataset_on_coordinator"),
        (looping(make=given_here), "data_through_coordinator"),
        (looping(make=per_worker), "no_iterator"),
        (looping(make=distributed), "dataset_on_coordinator"),
        (sending_batches, "dataset_on_coordinator"),
        (looping(send=fetched, end=join_and(list)), "fetch_each_step"),
        (looping(send=joined), "fetch_each_step"),
        (looping(limit=lambda ahead: 1), "fetch_each_step"),
        (looping(limit=lambda ahead: 1000), "too_far_ahead"),
        (looping(limit=lambda ahead: ahead + 1), "too_far_ahead"),
        (here_alone, "nothing_sent"),
        (looping(send=called), "step_called_here"),
        (looping(send=without_tuple), "args_is_no_tuple"),
        (looping(end=lambda _, losses: losses), "no_join"),
        (looping(end=lambda _, losses: [0.0 for _ in losses]), "no_join"),
        (looping(end=join_and(promised)), "not_fetched"),
        (looping(make=per_worker, send=each_anew), "new_iterator_each_step"),
        (looping(times=2), "steps_for_each_worker"),
    ],
)
def test_wrong_loops_are_named(wrong, mistake):
    assert_mistake_is_caught(LOOP, wrong, mistake)


@pytest.mark.parametrize("wrong", [here_alone, looping(send=fetched), looping(send=joined)])
def test_a_loop_without_two_workers_at_once_earns_nothing(wrong):
    report = run_check(LOOP, wrong, seeds=[1])
    assert report.earned == 0
    assert [one.label for one in report.criteria] == ["workers in a step at once"]


def test_the_lessons_own_loop_earns_little_for_it_has_no_limit():
    report = run_check(LOOP, looping(limit=lambda ahead: 1000), seeds=[1])
    assert (report.earned, report.points) == (1.5, 6)


# --- staleness


def staleness_of(*, since="read", keep_first=False, own=0, what="written", by_number=True):
    """An answer to `staleness`, which counts something from some event on."""

    def staleness(log):
        count, seen, found = 0, {}, {}
        for event, step in log:
            if event == "written":
                found[step] = count - seen[step] + own
            if event == what:
                count += 1
            if event == since and not (keep_first and step in seen):
                seen[step] = count
        return [found[step] for step in (sorted(found) if by_number else found)]

    return staleness


def between_lines(log):
    read, found = {}, {}
    for line, (event, step) in enumerate(log):
        if event == "read":
            read[step] = line
        elif event == "written":
            found[step] = line - read[step] - 1
    return [found[step] for step in sorted(found)]


def by_who_is_at_work(log):
    """Each writing makes all that are at work one update older."""
    ages = {}
    for event, step in log:
        if event == "read":
            ages[step] = 0
        elif event == "written":
            written = [other for e, other in log[: log.index((event, step))] if e == "written"]
            ages = {s: age + (s != step and s not in written) for s, age in ages.items()}
    return tuple(float(ages[step]) for step in sorted(ages))


def test_a_dictionary_of_steps_is_told_that_a_list_was_asked_for():
    report = run_check(STALENESS, lambda log: dict(enumerate(staleness_of()(log))))
    assert report.failure.error.endswith("return a list in the order of the steps; yours is a dict")


@named(
    ("wrong", "mistake"),
    [
        (staleness_of(since="sent"), "counted_at_send"),
        (staleness_of(keep_first=True), "first_reading"),
        (staleness_of(own=1), "counts_itself"),
        (staleness_of(what="read"), "counts_readings"),
        (staleness_of(by_number=False), "in_order_of_writing"),
        (between_lines, "counts_lines"),
    ],
)
def test_wrong_staleness_is_named(wrong, mistake):
    assert_mistake_is_caught(STALENESS, wrong, mistake)


def between_places(log):
    """The writings between a step's last reading and its own."""
    steps = {step for _, step in log}
    found = []
    for step in sorted(steps):
        written = log.index(("written", step))
        read = max(n for n, event in enumerate(log[:written]) if event == ("read", step))
        found.append(sum(what == "written" for what, _ in log[read:written]))
    return np.array(found)


@pytest.mark.parametrize(
    "right", [staleness_of(), between_places, by_who_is_at_work], ids=["counts", "places", "ages"]
)
def test_other_right_staleness_passes(right):
    assert_solution_passes(STALENESS, right)


def test_logs_hold_each_step_once_and_one_that_was_read_twice():
    for seed in range(20):
        log = STALENESS.inputs(seed)["log"]
        steps = sorted({step for _, step in log})
        assert steps == list(range(len(steps)))
        for event in ("sent", "written"):
            assert sorted(step for what, step in log if what == event) == steps
        read = [step for what, step in log if what == "read"]
        assert len(read) == len(steps) + 1
        assert max(STALENESS.expected({"log": log})["staleness"]) >= 3


# --- shard_rows


def tables(shares):
    """An answer to `shard_rows`; `shares` has the number of shards from a rounded one."""

    def shard_rows(rows, row_bytes, least_bytes, servers):
        return shares(rows, rows * row_bytes / least_bytes, servers)

    return shard_rows


def even(rows, shards):
    return [len(part) for part in np.array_split(np.arange(rows), shards)]


def dealt(rows, row_bytes, least_bytes, servers):
    """Row by row, as cards are dealt."""
    shards = 1
    while shards < servers and rows * row_bytes >= least_bytes * (shards + 1):
        shards += 1
    return [len(range(shard, rows, shards)) for shard in range(shards)]


def one_by_one_less(rows, shards):
    return tuple((rows + shards - 1 - shard) // shards for shard in range(shards))


def ends(rows, shards):
    """The right sizes, and those with a row more are here and there."""
    return np.diff([rows * shard // shards for shard in range(shards + 1)])


@pytest.mark.parametrize(
    "right",
    [
        tables(lambda rows, n, servers: even(rows, max(1, min(servers, int(n))))),
        dealt,
        tables(lambda rows, n, servers: one_by_one_less(rows, max(1, min(servers, int(n))))),
    ],
    ids=["array_split", "dealt", "one_less"],
)
def test_other_right_shards_pass(right):
    assert_solution_passes(SHARDS, right)


def sharing(share):
    """As many shards as asked for, shared out differently."""
    return lambda rows, n, servers: share(rows, max(1, min(servers, int(n))))


@named(
    ("wrong", "mistake"),
    [
        (
            tables(lambda rows, n, servers: even(rows, max(1, min(servers, int(np.ceil(n)))))),
            "shard_too_small",
        ),
        (tables(lambda rows, n, servers: even(rows, max(1, int(n)))), "more_shards_than_servers"),
        (tables(lambda rows, n, servers: even(rows, servers)), "always_all_servers"),
        (
            tables(
                lambda rows, n, servers: (
                    [rows // max(1, min(servers, int(n)))] * max(1, min(servers, int(n)))
                )
            ),
            "rest_is_lost",
        ),
        (
            tables(sharing(lambda rows, k: [rows // k] * (k - 1) + [rows - rows // k * (k - 1)])),
            "one_takes_the_rest",
        ),
        (
            tables(sharing(lambda rows, k: [rows - rows // k * (k - 1)] + [rows // k] * (k - 1))),
            "one_takes_the_rest",
        ),
        (
            tables(
                sharing(lambda rows, k: [-(-rows // k)] * (k - 1) + [rows + rows // -k * -(1 - k)])
            ),
            "one_takes_the_rest",
        ),
        (tables(sharing(lambda rows, k: even(rows, k)[::-1])), "in_a_different_order"),
        (tables(sharing(ends)), "in_a_different_order"),
        (
            tables(lambda rows, n, servers: even(rows, max(1, min(servers, round(n))))),
            "shard_too_small",
        ),
        (
            tables(lambda rows, n, servers: even(rows, max(1, min(servers, int(np.ceil(n)) - 1)))),
            "one_too_few",
        ),
        (tables(lambda rows, n, servers: even(rows, min(servers, int(n)))), "no_shard"),
        (
            lambda rows, row_bytes, least, servers: even(rows, max(1, min(servers, rows // least))),
            "rows_for_bytes",
        ),
        (
            lambda rows, row_bytes, *of: [row_bytes * n for n in dealt(rows, row_bytes, *of)],
            "bytes_for_rows",
        ),
        (
            lambda rows, row_bytes, least, servers: [
                *dealt(rows, row_bytes, least, servers),
                0,
                0,
                0,
                0,
            ][:servers],
            "for_each_server_a_number",
        ),
    ],
)
def test_wrong_shards_are_named(wrong, mistake):
    assert_mistake_is_caught(SHARDS, wrong, mistake)


def test_tensorflows_own_partitioner_rounds_up_as_the_check_says():
    inputs = SHARDS.inputs(1)
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
        min_shard_bytes=inputs["least_bytes"], max_shards=inputs["servers"]
    )
    for rows in inputs["tables"]:
        shape = tf.TensorShape([rows, inputs["row_bytes"] // 4])
        expected = min(inputs["servers"], shards_module._rounded_up(rows, inputs))
        assert partitioner(shape, tf.float32) == [expected, 1]


# --- survive_kill


def summing(record, read):
    """An answer to `survive_kill` with a variable on the server."""

    def add_up(coordinator, work, numbers):
        with coordinator.strategy.scope():
            results = tf.Variable(tf.zeros([len(numbers)]))

        @tf.function
        def step(place, number):
            record(results, place, work(number))

        for place, number in enumerate(numbers):
            coordinator.schedule(step, args=(tf.constant(place), tf.constant(number)))
        coordinator.join()
        return read(results)

    return add_up


def set_place(results, place, value):
    results.scatter_nd_update([[place]], [value])


def add_to_place(results, place, value):
    results.scatter_nd_add([[place]], [value])


def total(results):
    return float(tf.reduce_sum(results))


def fetched_one_by_one(coordinator, work, numbers):
    @tf.function
    def step(number):
        return {"result": work(number)}

    promised = [coordinator.schedule(step, args=(tf.constant(one),)) for one in numbers]
    return sum(float(result.fetch()["result"]) for result in promised)


def with_a_note_of_what_is_done(coordinator, work, numbers):
    """A sum on the server, and beside it which numbers are in it."""
    with coordinator.strategy.scope():
        is_in, total = tf.Variable([False] * len(numbers)), tf.Variable(0.0)

    @tf.function
    def step(place, number):
        result = work(number)
        if not is_in[place]:
            is_in.scatter_nd_update([[place]], [True])
            total.assign_add(result)

    for place, number in enumerate(numbers):
        coordinator.schedule(step, args=(tf.constant(place), tf.constant(number)))
    coordinator.join()
    return total


def as_pairs(coordinator, work, numbers):
    """Results under their places, as keyword arguments; and a NumPy number."""
    step = tf.function(lambda place, number: (place, work(number)), autograph=False)
    given = ({"place": tf.constant(n), "number": tf.constant(x)} for n, x in enumerate(numbers))
    promises = [coordinator.schedule(step, kwargs=one) for one in given]
    coordinator.join()
    return np.sum(list(dict(map(tuple, coordinator.fetch(promises))).values()))


@pytest.mark.parametrize(
    "right",
    [summing(set_place, total), fetched_one_by_one, with_a_note_of_what_is_done, as_pairs],
    ids=["places", "fetched", "noted", "pairs"],
)
def test_other_right_sums_pass(right):
    assert_solution_passes(SUM, right, seeds=range(1))


def here(coordinator, work, numbers):
    return float(sum(work(number) for number in numbers))


def without_join(coordinator, work, numbers):
    step = tf.function(work)
    results = [coordinator.schedule(step, args=(tf.constant(number),)) for number in numbers]
    return 0.0 if coordinator.done() else float(len(results))


def without_the_first(coordinator, work, numbers):
    return solution()["add_up"](coordinator, work, numbers) - 2 * numbers[0]


def without_the_last(coordinator, work, numbers):
    return solution()["add_up"](coordinator, work, numbers[:-1])


def by_number(coordinator, work, numbers):
    """Results under their numbers, not under their places."""
    step = tf.function(work)
    promises = {n: coordinator.schedule(step, args=(tf.constant(n),)) for n in numbers}
    coordinator.join()
    return float(sum(coordinator.fetch(list(promises.values()))))


def not_added(coordinator, work, numbers):
    step = tf.function(work)
    promises = [coordinator.schedule(step, args=(tf.constant(number),)) for number in numbers]
    coordinator.join()
    return coordinator.fetch(promises)


def one_by_one_joined(coordinator, work, numbers):
    results = []
    for number in numbers:
        results.append(coordinator.schedule(tf.function(work), args=(tf.constant(number),)))
        coordinator.join()
    return sum(coordinator.fetch(results))


def test_a_sum_made_on_the_coordinator_earns_nothing():
    report = run_check(SUM, here, seeds=[1])
    assert (report.status, report.earned) == ("not yet", 0)


def test_a_sum_that_is_not_returned_is_told_so():
    def silent(*given):
        as_pairs(*given)

    report = run_check(SUM, silent, seeds=[1])
    assert "is there a `return`?" in repr(report)
    assert not report.mistake


@named(
    ("wrong", "mistake"),
    [
        (summing(add_to_place, total), "assumes_exactly_once"),
        (here, "on_the_coordinator"),
        (without_the_first, "lost_step"),
        (by_number, "equal_numbers_merged"),
        (without_the_last, "not_all_sent"),
        (not_added, "not_added"),
        (one_by_one_joined, "one_at_a_time"),
        (without_join, "no_join"),
    ],
)
def test_wrong_sums_are_named(wrong, mistake):
    assert_mistake_is_caught(SUM, wrong, mistake)


# --- what the lesson claims


def make_coordinator(partitioner=None):
    """On a coordinator: the one of this process, or a new one."""
    import __main__

    if not hasattr(__main__, "coordinator"):
        tf.get_logger().setLevel("CRITICAL")
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        strategy = tf.distribute.ParameterServerStrategy(resolver, partitioner)
        __main__.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    return __main__.coordinator


def one_step(make_coordinator):
    coordinator = make_coordinator()
    with coordinator.strategy.scope():
        count = tf.Variable(0)

    @tf.function
    def step():
        count.assign_add(1)

    coordinator.schedule(step)
    coordinator.join()
    return int(count)


def processes(cluster):
    return {task.task: task.pid for task in cluster.status().tasks}


def test_after_a_lost_server_a_new_coordinator_finds_the_same_workers():
    with dl.LocalCluster(workers=2, parameter_servers=1) as cluster:
        assert cluster.run(one_step, make_coordinator, tasks="chief") == [1]
        before = processes(cluster)
        cluster.kill("ps:0")
        with pytest.raises(TaskFailed, match=r"UnavailableError|AbortedError"):
            cluster.run(one_step, make_coordinator, tasks="chief", timeout_secs=60)
        cluster.restart(["chief:0", "ps:0"])
        assert cluster.run(one_step, make_coordinator, tasks="chief", timeout_secs=60) == [1]
        after = processes(cluster)
    assert {task for task in before if before[task] == after[task]} == {"worker:0", "worker:1"}


def failing_on_four(coordinator):
    """A step that fails on the number 4, the gate at which steps wait, and how many are done."""
    with coordinator.strategy.scope():
        done, gate = tf.Variable(0), tf.Variable(0)

    @tf.function
    def step(number):
        opened = gate.read_value()
        while opened < 1:
            opened = gate.read_value()
        good = tf.debugging.assert_none_equal(number, 4, message="a bad batch")
        with tf.control_dependencies([good]):
            done.assign_add(opened)

    return step, gate, done


def awaited_by_the_count(step):
    """The kinds of the operations that are certain to run before a step counts."""
    operations = step.get_concrete_function(tf.constant(0)).graph.get_operations()
    (count,) = (one for one in operations if one.type == "AssignAddVariableOp")
    found, to_do = set(), [count]
    while to_do:
        one = to_do.pop()
        before = {*(given.op for given in one.inputs), *one.control_inputs} - found
        found |= before
        to_do += before
    return {one.type for one in found}


def test_the_failing_step_counts_after_the_gate_and_the_check():
    step, gate, done = failing_on_four(types.SimpleNamespace(strategy=tf.distribute.get_strategy()))
    assert {"While", "Assert"} <= awaited_by_the_count(step)
    gate.assign(1)
    step(tf.constant(3))
    with pytest.raises(tf.errors.InvalidArgumentError, match="a bad batch"):
        step(tf.constant(4))
    assert int(done) == 1


def test_tensorflow_does_not_order_a_gate_a_check_and_a_count():
    count, gate = tf.Variable(0), tf.Variable(0)

    @tf.function
    def step(number):
        while gate < 1:
            pass
        tf.debugging.assert_none_equal(number, 4)
        count.assign_add(1)

    assert not {"While", "Assert"} & awaited_by_the_count(step)


def steps_around_a_failing_one(make_coordinator, sent):
    coordinator = make_coordinator()
    step, gate, done = failing_on_four(coordinator)

    promises = [coordinator.schedule(step, args=(tf.constant(n),)) for n in range(sent)]
    gate.assign(1)
    try:
        coordinator.join()
    except tf.errors.InvalidArgumentError:
        return int(done), sum(map(is_cancelled, promises))


def is_cancelled(promise):
    try:
        promise.fetch()
    except tf.errors.CancelledError:
        return True
    except tf.errors.InvalidArgumentError:
        return False
    return False


def a_layer_in_shards(make_coordinator):
    cut = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    coordinator = make_coordinator(cut)
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


def rows_that_learn(make_coordinator, ids):
    cut = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    coordinator = make_coordinator(cut)
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


def test_one_failing_step_cancels_the_queue_and_tables_but_no_layers_can_be_cut():
    with dl.LocalCluster(workers=2, parameter_servers=2) as cluster:
        ((done, cancelled),) = cluster.run(
            steps_around_a_failing_one, make_coordinator, 200, tasks="chief"
        )
        assert 3 <= done < 100 < cancelled  # of the 4 before, one may still be under way
        cluster.restart("chief:0")
        ids = [2, 500, 1000]
        assert cluster.run(rows_that_learn, make_coordinator, ids, tasks="chief") == [(ids, [0, 1])]
        (error,) = cluster.run(a_layer_in_shards, make_coordinator, tasks="chief")
    assert "'ShardedVariable' object has no attribute 'handle'" in error


@pytest.fixture(scope="module")
def two_workers():
    with dl.LocalCluster(workers=2, parameter_servers=1) as cluster:
        yield cluster


def done_before_the_error_is_raised(make_coordinator, sent):
    """Waits until all steps but the failing one are done, and then sends more."""
    coordinator = make_coordinator()
    step, gate, done = failing_on_four(coordinator)

    for number in range(sent):
        coordinator.schedule(step, args=(tf.constant(number),))
    gate.assign(1)
    while int(done) < sent - 1:
        pass
    with pytest.raises(tf.errors.InvalidArgumentError):
        while True:
            coordinator.schedule(step, args=(tf.constant(0),))
    coordinator.join()  # the error was raised, and is not raised again
    return True


def test_until_an_error_is_raised_workers_go_on_and_schedule_raises_it(two_workers):
    given = (done_before_the_error_is_raised, make_coordinator, 20)
    assert two_workers.run(*given, tasks="chief", timeout_secs=60) == [True]


def shuffled_by_two(make_coordinator, global_seed):
    """The first 20 numbers that each worker reads, by the time at which it made its data set."""
    coordinator = make_coordinator()
    if global_seed:
        tf.random.set_seed(global_seed)

    def make_data():
        made = tf.timestamp()
        numbers = tf.data.Dataset.range(20).shuffle(20).repeat()
        return numbers.map(lambda number: (made, number))

    numbers = iter(coordinator.create_per_worker_dataset(make_data))
    step = tf.function(lambda numbers: next(numbers))
    read: dict[float, list[int]] = {}
    for _ in range(1000):  # mostly they take turns
        made, number = coordinator.schedule(step, args=(numbers,)).fetch()
        read.setdefault(float(made), []).append(int(number))
        if len(read) == 2 and min(map(len, read.values())) >= 20:
            break
    return [numbers[:20] for numbers in read.values()]


def test_workers_shuffle_differently_unless_a_global_seed_is_set(two_workers):
    given = (shuffled_by_two, make_coordinator)
    ((first, second),) = two_workers.run(*given, None, tasks="chief", timeout_secs=60)
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second
    ((first, second),) = two_workers.run(*given, 1, tasks="chief", timeout_secs=60)
    assert first == second


@pytest.mark.parametrize(
    ("staleness", "rate", "converges"),
    [(0, 1.9, True), (0, 2.1, False), (1, 0.9, True), (1, 1.1, False)],
)
def test_with_a_staleness_of_one_only_rates_below_one_converge(staleness, rate, converges):
    """The lesson's model: the gradient of a weight is the weight."""
    weights = [1.0] * (staleness + 1)
    for _ in range(200):
        weights.append(weights[-1] - rate * weights[-1 - staleness])
    last = max(map(abs, weights[-6:]))
    assert last < 1e-3 if converges else last > 1e3


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


def run_loop(code, make_coordinator, build, make_data, steps):
    coordinator = make_coordinator()
    given = {"build": build, "make_data": make_data, "steps": steps, "coordinator": coordinator}
    names = {"tf": tf, "strategy": coordinator.strategy, **given}
    keep_lines({"loop.py": code.splitlines(keepends=True)})
    exec(compile(code, "loop.py", "exec"), names)
    return names["losses"], names["model"].get_weights()


def test_the_loop_that_the_lesson_shows_folded_takes_the_steps_of_one_device():
    source = (ROOT / "lessons" / STEM / "lesson.py").read_text(encoding="utf-8")
    _, _, text = source.partition("In plain TensorFlow: the loop")
    block = text.split("# ```python\n")[1].split("# ```")[0]
    code = "\n".join(line.removeprefix("#").removeprefix(" ") for line in block.splitlines())
    with dl.LocalCluster(workers=1, parameter_servers=1) as cluster:
        ((losses, weights),) = cluster.run(
            run_loop, code, make_coordinator, a_small_model, make_data, 6, tasks="chief"
        )
    one = a_small_model()
    one.fit(make_data(), steps_per_epoch=6, shuffle=False, verbose=0)
    assert len(losses) == 6
    for ours, theirs in zip(weights, one.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_with_two_workers_the_loss_falls_as_well():
    def fit(build, make_data):
        model = dl.distribute(build, dl.make_strategy("parameter_server"))
        logs = model.fit(make_data(), steps_per_epoch=6, epochs=8, shuffle=False, verbose=0)
        return logs.history["loss"]

    with dl.LocalCluster(workers=2, parameter_servers=1) as cluster:
        (losses,) = cluster.run(fit, a_small_model, make_data, tasks="chief")
    assert losses[-1] < 0.9 * losses[0]


def test_keras_own_fit_stops_under_a_parameter_server_strategy():
    def fit(make_coordinator, build, make_data):
        with make_coordinator().strategy.scope():
            model = build()
        model.fit(make_data(), steps_per_epoch=2, verbose=0)

    with (
        dl.LocalCluster(workers=1, parameter_servers=1) as cluster,
        pytest.raises(TaskFailed, match="Error"),
    ):
        cluster.run(fit, make_coordinator, a_small_model, make_data, tasks="chief", timeout_secs=60)


def test_tensorflows_partitioner_makes_three_shards_where_the_task_asks_for_two():
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(64, 4)
    assert partitioner(tf.TensorShape([10, 4]), tf.float32) == [3, 1]
    assert solution()["shard_rows"](10, 16, 64, 4) == [5, 5]


def test_keras_counts_a_step_by_reading_and_then_writing():
    """So two workers that count at the same time can lose a count: see the page of pitfalls."""
    iterations = keras.Variable(0, dtype="int64", trainable=False)
    graph = tf.function(lambda: iterations.assign_add(1)).get_concrete_function().graph
    kinds = {operation.type for operation in graph.get_operations()}
    assert {"ReadVariableOp", "AssignVariableOp"} <= kinds
    assert "AssignAddVariableOp" not in kinds


def made_by_the_coordinator():
    data = tf.data.Dataset.range(8)
    return lambda: data


def made_by_the_worker():
    return lambda: tf.data.Dataset.range(8)


def read_a_number(make_coordinator, made):
    coordinator = make_coordinator()
    data = iter(coordinator.create_per_worker_dataset(made()))
    number = coordinator.schedule(tf.function(lambda data: next(data)), args=(data,))
    coordinator.join()
    return int(number.fetch())


def test_a_data_set_made_on_the_coordinator_cannot_be_sent_to_a_worker():
    with dl.LocalCluster(workers=1, parameter_servers=1) as cluster:
        with pytest.raises(TaskFailed, match="Unable to parse tensor proto") as failed:
            cluster.run(read_a_number, make_coordinator, made_by_the_coordinator, tasks="chief")
        assert failed.value.pitfall == "Unable to parse tensor proto"
        made = made_by_the_worker
        assert cluster.run(read_a_number, make_coordinator, made, tasks="chief") == [0]
