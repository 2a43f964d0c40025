"""Models on parameter servers: real ones, with real workers, some of which are killed."""

import contextlib
import signal
import time

import numpy as np
import pytest
import tensorflow as tf

from distlab.cluster.spec import TaskName
from distlab.errors import DeviceError
from distlab.training.keras_private import optimizers
from distlab.training.keras_private.optimizers import inner
from distlab.training.parameter_server.feeding import feed_of
from distlab.training.parameter_server.server_requirements import check_strategy
from distlab.training.parameter_server.tallying import part_of_metrics
from tests.support.clusters import result_of, run_on_tasks, started_tasks
from tests.support.distribution import (
    EXAMPLES,
    OPTIMIZERS,
    X,
    Y,
    assert_same,
    builder,
    one_device,
    shuffled,
    strategy_of,
)

CHIEF, WORKER, SERVER = TaskName("chief", 0), TaskName("worker", 0), TaskName("ps", 0)
CASES = "support.parameter_server_cases:"


def on_cluster(target, folder, *, workers, servers, args=()):
    """What the chief returned."""
    (result,) = run_on_tasks(
        CASES + target,
        folder,
        workers=workers,
        parameter_servers=servers,
        chief=True,
        only=["chief"],
        args=args,
        timeout_secs=500,  # dozens of models: half a minute on a quiet machine
    )
    return result


def cases_of(folder, names, *, workers, servers):
    results = on_cluster("run_cases", folder, workers=workers, servers=servers, args=[names])

    def case(name):
        if isinstance(results[name], Exception):
            raise results[name]
        return results[name]

    return case


@pytest.fixture(scope="module")
def one_worker(tmp_path_factory):
    names = ["optimizers", "fed", "batch_normalization", "dropout", "placed"]
    names += ["other_calls", "out_of_order", "too_few", "largest"]
    return cases_of(tmp_path_factory.mktemp("one"), names, workers=1, servers=2)


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory):
    names = ["shared", "dropout", "logs", "listening", "keras_callbacks", "failures"]
    names += ["failing_late", "refusals", "described"]
    return cases_of(tmp_path_factory.mktemp("two"), names, workers=2, servers=1)


# One worker


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_worker_trains_as_one_device_does(one_worker, optimizer):
    assert_same(one_worker("optimizers")[optimizer], one_device(optimizer))


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("several steps at once", None),
        ("endless", None),
        ("shuffled below cache", "a shuffle below cache or repeat"),
        ("unknown length", "it does not know its length"),
        ("unknown length, some steps an epoch", "it does not know its length"),
        ("arrays", None),
        ("fit again", None),
        ("read before", None),
    ],
)
def test_and_reads_any_data_in_the_order_of_one_device(one_worker, kind, told):
    here, alone, texts = one_worker("fed")[kind]
    assert_same(here, alone)
    assert bool(texts) == bool(told)
    assert told is None or all(told in text for text in texts)


def test_moving_statistics_are_those_of_one_device(one_worker):
    for here, alone in zip(*one_worker("batch_normalization"), strict=True):
        np.testing.assert_allclose(here, alone, atol=1e-6)


def test_variables_are_spread_over_the_servers(one_worker):
    devices = one_worker("placed")
    weights = [f"/job:ps/replica:0/task:{i % 2}/device:CPU:0" for i in range(4)]
    assert devices[:4] == weights
    assert all("/job:ps/" in device for device in devices)


def test_evaluate_predict_and_save_are_those_of_one_device(one_worker):
    here, alone, (kept, loaded), unbuilt = one_worker("other_calls")
    assert here.keys() == alone.keys()
    for name, values in here.items():
        np.testing.assert_allclose(values, alone[name], atol=1e-5, err_msg=name)
    for weight, same in zip(kept, loaded, strict=True):
        np.testing.assert_array_equal(weight, same)
    assert unbuilt == (EXAMPLES, 4)


def test_batches_that_a_worker_has_passed_are_read_again(one_worker):
    (seen,), iterations = one_worker("out_of_order")
    assert set(seen) == {1.0}
    assert iterations == [15]


def test_a_metric_that_does_not_add_up_over_batches_is_refused(one_worker):
    for kind, text in one_worker("largest"):
        assert kind == "ModelError"
        assert "count the metric 'largest' on parameter servers" in text
        assert "counted twice did not give twice the value" in text
        assert "let update_state only add (assign_add)" in text


def test_a_batch_that_no_worker_has_is_named(one_worker):
    kind, text = one_worker("too_few")
    assert kind == "DatasetError"
    assert "read batch 14 of a data set on the workers" in text
    assert "none of them has it, asked 5 times" in text
    assert "look whether files are the same on all machines" in text


# Several workers


@pytest.mark.parametrize("kind", ["seeded", "without a seed", "several steps at once", "arrays"])
def test_two_workers_see_each_example_once_an_epoch_and_lose_no_step(two_workers, kind):
    seen, iterations = two_workers("shared")[kind]
    assert [set(counts) for counts in seen] == [{1.0}] * 3
    assert iterations == [15, 30, 45]


def test_a_shuffle_without_a_seed_is_read_by_the_coordinator():
    tf.random.set_seed(None)
    feed = feed_of(tf.data.Dataset.range(8).shuffle(8).batch(2), coordinator=None)
    assert feed.reasons == ("Shuffle has no seed (give one: seed=...)",)
    assert len(list(feed._dataset)) == 4


@pytest.mark.parametrize("workers", ["one_worker", "two_workers"])
def test_dropout_draws_by_the_step_and_the_same_in_a_second_run(request, workers):
    (first, second), states = request.getfixturevalue(workers)("dropout")
    np.testing.assert_array_equal(first, second)
    assert len({mask.tobytes() for mask in first}) == len(first) == 3
    assert set(first.flatten()) == {0.0, 2.0}
    assert states == [[7, 0]] * 2  # all workers share it, so none may write there


def test_logs_are_the_mean_over_all_examples_of_the_epoch(two_workers):
    history, evaluated, alone = two_workers("logs")
    assert evaluated["seen"] == EXAMPLES
    for name, value in alone.items():
        expected = [value] * len(history[name])
        np.testing.assert_allclose(history[name], expected, rtol=1e-6)
        np.testing.assert_allclose(history[f"val_{name}"], expected, rtol=1e-6)
        np.testing.assert_allclose(evaluated[name], value, rtol=1e-6)


def test_a_callback_that_listens_to_batches_sees_one_step_at_a_time(two_workers):
    iterations, so_far, (whole, part), history = two_workers("listening")
    assert iterations == list(range(1, 21))  # it stopped training there
    assert so_far[:15] == [min(5.0 * (step + 1), EXAMPLES) for step in range(15)]
    assert set(whole) == {1.0}
    assert part.sum() == 25
    assert history["seen"] == [EXAMPLES, 25]


def test_callbacks_of_keras_work_with_two_workers(two_workers):
    files, rates, epochs = two_workers("keras_callbacks")
    assert files == ["1.keras", "2.keras", "log.csv"]
    np.testing.assert_allclose(rates, [0.1, 0.05])
    assert epochs == 2  # EarlyStopping


@pytest.mark.parametrize(
    ("name", "kind", "texts"),
    [
        ("not a number", "ModelError", ["a loss of nan on a worker in step 6, counted as"]),
        ("in a layer", "InvalidArgumentError", ["an input of 50 or more"]),
        ("in a callback", "KeyboardInterrupt", ["of the callback"]),
        ("in the data", "DatasetError", ["batches of shape (None, 5)"]),
        ("no end", "DatasetError", ["without an end", "give fit steps_per_epoch=..."]),
        ("no batch", "DatasetError", ["a data set without a batch"]),
        ("too short", "FailedPreconditionError", ["12 elements but contained only 10"]),
    ],
)
def test_what_goes_wrong_in_fit_is_raised_and_the_model_trains_on(two_workers, name, kind, texts):
    (raised, text), steps = two_workers("failures")[name]
    assert raised == kind
    assert all(part in text for part in texts)
    assert steps == 10  # of a `fit` after it


def test_after_an_error_nothing_is_under_way(two_workers):
    (kind, text), steps = two_workers("failing_late")
    assert kind == "ValueError"
    assert "a batch of another size" in text
    assert steps == 9


def test_a_loss_that_is_not_a_number_ends_training_where_a_callback_is_to_do_it(two_workers):
    assert two_workers("failures")["TerminateOnNaN"] == 1


@pytest.mark.parametrize(
    ("name", "kind", "texts"),
    [
        ("eager", "ModelError", ["run_eagerly=True", "only compiled functions can be sent"]),
        ("accumulation", "ModelError", ["gradient_accumulation_steps=2", "a larger batch"]),
        ("averages", "ModelError", ["ema_overwrite_frequency=2 and several workers"]),
        ("metric in a layer", "ModelError", ["inside the layer 'counting'", "to compile()"]),
        ("table", "ModelError", ["the layer 'words', whose table", "dataset.map(lambda x, y"]),
        (
            "metric in TensorFlow's variables",
            "ModelError",
            ["the metric 'seen' with a tf.Variable (count), which workers would", "add_weight"],
        ),
        ("distributed", "DatasetError", ["was distributed already", "the data set itself"]),
        (
            "own step",
            "ModelError",
            ["a custom train_step, which distribute cannot run under parameter servers"],
        ),
        (
            "legacy",
            "ModelError",
            ["a tf_keras model and parameter servers", "with keras (Keras 3)"],
        ),
    ],
)
def test_what_workers_cannot_share_is_refused(two_workers, name, kind, texts):
    if name == "legacy":
        pytest.importorskip("tf_keras", reason="the legacy extra is not installed")
    raised, text = two_workers("refusals")[name]
    assert raised == kind
    assert all(part in text for part in texts)


def test_the_strategy_is_described(two_workers):
    described = two_workers("described")
    assert described.kind == "parameter_server"
    assert described.workers == 2
    assert described.variables == "spread over the parameter servers"


def test_workers_with_several_gpus_are_refused():
    with pytest.raises(DeviceError, match="workers with 2 GPUs each") as told:
        check_strategy(strategy_of("mirrored", 2))  # all that is asked is the number of replicas
    assert "start one worker for each GPU" in str(told.value)


def operations(function, *args):
    """Types of the operations that write, of a function that is traced."""
    graph = tf.function(function).get_concrete_function(*args).graph
    writing = [op for op in graph.get_operations() if op.type.startswith("Assign")]
    return [(op.type, op.get_attr("dtype")) for op in writing]


@pytest.mark.parametrize("name", ["adam", "loss_scale"])
def test_a_step_is_counted_in_one_operation(name):
    model = builder(name)()
    model.optimizer.build(model.trainable_variables)
    gradients = [tf.zeros(variable.shape) for variable in model.trainable_variables]

    def step():
        with optimizers.counting_at_once(model.optimizer):
            inner(model.optimizer).apply(gradients, model.trainable_variables)

    counted = [kind for kind, dtype in operations(step) if dtype.is_integer]
    assert counted == ["AssignAddVariableOp"]


def test_a_step_writes_no_metric():
    model = builder()()
    model.evaluate(X, Y, verbose=0)
    seen = {"y": Y, "y_pred": X[:, :4], "masks": {}, "loss": tf.constant(1.0), "outputs": []}
    seen["in_all"] = seen["examples"] = tf.constant(float(EXAMPLES))
    assert operations(lambda: part_of_metrics(model, seen)) == []


# Variables in shards


@pytest.mark.parametrize(
    ("partitioner", "small"),
    [("fixed", [(2, 1), (1, 1)]), ("min size", [(3, 1)])],
)
def test_raw_variables_can_be_in_shards_and_those_of_keras_cannot(tmp_path, partitioner, small):
    (kind, text), where, losses = on_cluster(
        "partitioned", tmp_path, workers=1, servers=2, args=[partitioner]
    )
    assert kind == "ModelError"
    assert "that has a variable_partitioner" in text
    assert "Keras 3 trains no layer whose variables are in shards" in text
    assert "leave variable_partitioner out" in text
    assert "see: docs/pitfalls.md, 'A layer that is cut into shards: no attribute handle'" in text
    assert [shape for shape, _ in where["table"]] == [(5, 4), (4, 4)]
    assert [device[:24] for _, device in where["table"]] == [
        "/job:ps/replica:0/task:0",
        "/job:ps/replica:0/task:1",
    ]
    assert [shape for shape, _ in where["small"]] == small
    assert losses[0] == 39.0
    assert losses[-1] < 0.01


# Tasks that are lost


def wait_for(group, *paths, timeout_secs=180):
    """Waits for files that the chief makes; fails if it ends before."""
    deadline = time.monotonic() + timeout_secs
    while not all(path.exists() for path in paths):
        told = group.log_of(CHIEF).read_text()[-3000:]
        assert CHIEF not in group.ended(), f"the chief has ended\n{told}"
        assert time.monotonic() < deadline, f"{paths} did not come\n{told}"
        time.sleep(0.01)  # between looks at real processes


def wait_for_end(group, timeout_secs=180):
    """The chief's exit code."""
    deadline = time.monotonic() + timeout_secs
    while CHIEF not in group.ended():
        assert time.monotonic() < deadline, group.log_of(CHIEF).read_text()[-3000:]
        time.sleep(0.01)
    return group.ended()[CHIEF]


def kill(group, task):
    group.send_signal([task], signal.SIGKILL)
    while task not in group.ended():
        time.sleep(0.01)


@contextlib.contextmanager
def training(target, folder, *, workers, args):
    with started_tasks(
        CASES + target, folder, workers=workers, parameter_servers=1, chief=True, args=args
    ) as group:
        yield group


def test_the_only_worker_comes_back_and_the_result_is_that_of_one_device(tmp_path):
    """Lost between two epochs: its data are made anew, and go on in the order of the third."""
    args = [str(tmp_path), 4, 2]
    with training("lost_worker", tmp_path, workers=1, args=args) as group:
        wait_for(group, tmp_path / "epoch-2")
        kill(group, WORKER)
        group.start([WORKER])
        (tmp_path / "go-on").touch()
        assert wait_for_end(group) == 0
    logs, weights, iterations = result_of(tmp_path, CHIEF)
    model = builder("sgd_momentum")()
    alone = model.fit(shuffled(), epochs=4, verbose=0)
    assert iterations == 4 * 3
    expected = [weight.numpy() for weight in model.trainable_variables]
    assert_same((logs, weights), (alone.history, expected))


def test_training_goes_on_while_a_worker_is_lost_and_takes_it_up_again(tmp_path):
    with training("lost_worker", tmp_path, workers=2, args=[str(tmp_path), 10_000, None]) as group:
        wait_for(group, tmp_path / "epoch-5")
        kill(group, WORKER)
        there = sum(1 for _ in tmp_path.glob("epoch-*"))
        wait_for(group, tmp_path / f"epoch-{there + 5}")  # the other one goes on alone
        group.start([WORKER])
        wait_for(group, tmp_path / "copy-3")  # it has the data again
        there = sum(1 for _ in tmp_path.glob("epoch-*"))
        wait_for(group, tmp_path / f"epoch-{max(there + 5, 60)}")
        (tmp_path / "end").touch()
        assert wait_for_end(group) == 0
    logs, _, iterations = result_of(tmp_path, CHIEF)
    steps = 3 * len(logs["loss"])
    assert steps <= iterations <= steps + 2  # what a lost worker had under way may count twice
    alone = builder("sgd_momentum")().fit(shuffled(), epochs=60, verbose=0).history["loss"]
    # Two workers learn from weights that are a step old; two lost steps change little.
    assert logs["loss"][59] == pytest.approx(alone[59], rel=0.1)


@pytest.mark.parametrize("how", ["gone_for_good", "gone_with_a_result"])
def test_a_worker_that_does_not_come_back_is_named(tmp_path, how):
    with training(how, tmp_path, workers=1, args=[str(tmp_path)]) as group:
        wait_for(group, tmp_path / "epoch-1")
        kill(group, WORKER)
        (tmp_path / "go-on").touch()
        assert wait_for_end(group) == 0
        address = group.spec.address_of(WORKER)
    kind, text = result_of(tmp_path, CHIEF)
    assert kind == "ProcessError"
    assert f"worker:0 at {address} has not answered for" in text
    assert "and no worker does its steps" in text
    assert "start all tasks again; with dl.Resume(folder) among the callbacks" in text


@pytest.fixture(scope="module")
def undisturbed():
    model = builder("adam")()
    history = model.fit(shuffled(), epochs=6, verbose=0)
    return history.history, [weight.numpy() for weight in model.trainable_variables]


def test_a_lost_server_is_named_and_all_goes_on_from_the_checkpoint(tmp_path, undisturbed):
    args = [str(tmp_path), "lose"]
    with training("resumed", tmp_path, workers=1, args=args) as group:
        wait_for(group, tmp_path / "now")
        kill(group, SERVER)
        (tmp_path / "go-on").touch()
        assert wait_for_end(group) == 1
        told = group.log_of(CHIEF).read_text()
        address = group.spec.address_of(SERVER)
    assert f"the parameter server ps:0 at {address} was lost" in told
    assert "start all tasks again; with dl.Resume(folder) among the callbacks" in told
    *run, resumed_from = on_cluster("resumed", tmp_path, workers=1, servers=1, args=args)
    assert resumed_from in ("step 9: epoch 4", "step 10: epoch 4, batch 1 of 3")
    assert_same(run, undisturbed)


def test_a_coordinator_that_is_asked_to_leave_saves_and_goes_on_later(tmp_path, undisturbed):
    args = [str(tmp_path), "leave"]
    with training("resumed", tmp_path, workers=1, args=args) as group:
        assert wait_for_end(group) == 143
    *run, resumed_from = on_cluster("resumed", tmp_path, workers=1, servers=1, args=args)
    assert resumed_from.startswith("step 1")
    assert_same(run, undisturbed)
