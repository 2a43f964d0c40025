"""Models on parameter servers: real ones, with real workers, some of which are killed."""

import pickle
import signal
import time

import numpy as np
import pytest

from distlab.cluster.spec import TaskName
from distlab.errors import DeviceError
from distlab.training.parameter_server.server_fit import check_strategy
from tests.support import parameter_server_cases as cases
from tests.support.clusters import result_of, run_on_tasks, started_tasks
from tests.support.distribution import EXAMPLES, builder, shuffled, strategy_of
from tests.support.parity import unlike

CHIEF, SERVER = TaskName("chief", 0), TaskName("ps", 0)
FIRST, SECOND = TaskName("worker", 0), TaskName("worker", 1)
CASES = "support.parameter_server_cases:"


def until(holds, group, *, timeout_secs=900):
    """Waits for what the chief does; fails if it ends before."""
    deadline = time.monotonic() + timeout_secs
    while not holds():
        log = group.log_of(CHIEF).read_text()[-3000:]
        assert CHIEF not in group.ended(), f"the chief has ended\n{log}"
        assert time.monotonic() < deadline, f"it did not come\n{log}"
        time.sleep(0.02)  # between looks at real processes


def end_of_chief(group, timeout_secs=900):
    """Its exit code."""
    deadline = time.monotonic() + timeout_secs
    while CHIEF not in group.ended():
        assert time.monotonic() < deadline, group.log_of(CHIEF).read_text()[-3000:]
        time.sleep(0.02)
    return group.ended()[CHIEF]


# One worker


@pytest.fixture(scope="module")
def one_worker(tmp_path_factory):
    """What a chief, a worker and two servers came to, of which one server was lost in the end."""
    folder = tmp_path_factory.mktemp("one")
    layout = {"workers": 1, "parameter_servers": 2, "chief": True, "args": [str(folder)]}
    with started_tasks(f"{CASES}train_with_one_worker", folder, **layout) as group:
        until((folder / "now").exists, group)
        group.send_signal([SERVER], signal.SIGKILL)
        while SERVER not in group.ended():
            time.sleep(0.02)
        (folder / "go on").touch()
        results = {"code": end_of_chief(group), "log": group.log_of(CHIEF).read_text()}
        results["address"] = group.spec.address_of(SERVER)
    results |= pickle.loads((folder / "results.pickle").read_bytes())
    (results["resumed"],) = run_on_tasks(f"{CASES}go_on", folder, only=["chief"], **layout)
    return results


@pytest.mark.parametrize("name", cases.PARITY)
def test_one_worker_takes_the_steps_of_one_device(one_worker, name):
    assert unlike(cases.PARITY[name](lambda build: build()), one_worker[name]) == {}


def test_variables_are_spread_over_the_servers_and_saved_from_there(one_worker):
    assert one_worker["placed"][:4] == [
        f"/job:ps/replica:0/task:{i % 2}/device:CPU:0" for i in range(4)
    ]
    assert all("/job:ps/" in device for device in one_worker["placed"])
    for weight, loaded in zip(*one_worker["saved"], strict=True):
        np.testing.assert_array_equal(weight, loaded)


def test_a_metric_that_does_not_add_up_over_batches_is_refused(one_worker):
    kind, text = one_worker["largest"]
    assert kind == "ModelError"
    assert "count the metric 'largest' on parameter servers" in text
    assert ", to which it does more than add" in text
    assert "let update_state only add (assign_add)" in text


def test_a_lost_server_is_named_and_all_goes_on_from_the_checkpoint(one_worker):
    assert one_worker["code"] == 1
    assert f"the parameter server ps:0 at {one_worker['address']} was lost" in one_worker["log"]
    assert "start all tasks again; with dl.Resume(folder) among the callb" in one_worker["log"]
    *run, resumed_from = one_worker["resumed"]
    assert resumed_from.startswith(("step 3: epoch 2", "step 4: epoch 2", "step 5: epoch 2"))
    model = builder("adam")()
    history = model.fit(shuffled(), epochs=3, verbose=0)
    assert unlike((history.history, cases.weights_of(model)), run) == {}


# Several workers


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory):
    """What two workers came to, of which one was lost and came back, and then both were lost."""
    folder = tmp_path_factory.mktemp("two")
    target, layout = f"{CASES}train_with_two_workers", {"workers": 2, "parameter_servers": 1}

    def more_epochs():
        """Waits until some have been trained from start to end."""
        done = len(list(folder.glob("epoch-*")))
        until(lambda: len(list(folder.glob("epoch-*"))) >= done + 3, group)

    def kill(task):
        group.send_signal([task], signal.SIGKILL)
        until(lambda: task in group.ended(), group)

    with started_tasks(target, folder, chief=True, args=[str(folder)], **layout) as group:
        until((folder / "epoch-1").exists, group)
        kill(FIRST)
        more_epochs()
        before = group.log_of(FIRST).read_text().count("a step")
        group.start([FIRST])
        until(lambda: group.log_of(FIRST).read_text().count("a step") > before, group)
        (folder / "give up soon").touch()
        more_epochs()
        group.send_signal([FIRST, SECOND], signal.SIGKILL)
        assert end_of_chief(group) == 0, group.log_of(CHIEF).read_text()[-3000:]
        address = group.spec.address_of(FIRST)
    return result_of(folder, CHIEF) | {"address": address}


def test_two_workers_see_each_example_once_an_epoch_and_lose_no_step(two_workers):
    seen, iterations = two_workers["shared"]
    assert [set(counts) for counts in seen] == [{1.0}] * 4
    assert iterations == [15, 30, 45, 60]


def test_logs_are_the_mean_over_all_examples_of_the_epoch(two_workers):
    history, alone = two_workers["logs"]
    for name, value in alone.items():
        np.testing.assert_allclose(history[name], [value] * 2, rtol=1e-6)
        np.testing.assert_allclose(history[f"val_{name}"], [value] * 2, rtol=1e-6)


def test_a_callback_that_listens_to_batches_sees_each_step_and_those_of_keras_work(two_workers):
    iterations, so_far, history, files, rows = two_workers["callbacks"]
    assert iterations == list(range(1, 21)), "it stopped training there"
    assert so_far[:15] == [min(5.0 * (step + 1), EXAMPLES) for step in range(15)]
    assert history["seen"] == [EXAMPLES, 25]
    np.testing.assert_allclose(history["learning_rate"], [0.1, 0.05])
    assert (files, rows) == (["1.keras", "2.keras"], 3)


FAILURES = {
    # In the step after those that had ended by then: another may have been under way.
    "not a number": ("ModelError", "a loss of nan on a worker in step "),
    "in a callback": ("KeyboardInterrupt", "of the callback"),
    "in the data": ("ValueError", "expected shape=(None, 8), found shape=(None, 5)"),
    "no end": ("DatasetError", "without an end"),
    "no batch": ("DatasetError", "a data set without a batch"),
}
REFUSALS = {
    "eager": ("ModelError", "run_eagerly=True"),
    "accumulation": ("ModelError", "gradient_accumulation_steps=2"),
    "averages": ("ModelError", "ema_overwrite_frequency=2 and several workers"),
    "metric in a layer": ("ModelError", "inside the layer 'counting'"),
    "table": ("ModelError", "the layer 'words', whose table"),
    "metric in variables": ("ModelError", "the metric 'seen' with variables (count)"),
    "distributed": ("DatasetError", "was distributed already"),
    "own step": ("ModelError", "a custom train_step, which distribute cannot run under param"),
    "legacy": ("ModelError", "a tf_keras model"),
}


def test_what_goes_wrong_in_fit_is_raised_and_the_model_trains_on(two_workers):
    errors, steps = two_workers["failures"]
    for name, (kind, text) in FAILURES.items():
        assert errors[name] and errors[name][0] == kind and text in errors[name][1], name
    assert steps == 10


def test_what_workers_cannot_share_is_refused(two_workers):
    errors = two_workers["refusals"]
    assert REFUSALS.keys() - errors.keys() <= {"legacy"}, "whose extra may not be installed"
    for name, error in errors.items():
        kind, text = REFUSALS[name]
        assert error and error[0] == kind and text in error[1], (name, error)


def test_training_goes_on_while_a_worker_is_lost_and_takes_it_up_again(two_workers):
    """The fixture waits for that; here is only that nothing was lost meanwhile."""
    assert two_workers["steps"] >= 3 * two_workers["epochs"] > 0, "no step of an epoch is lost"


def test_workers_that_do_not_come_back_are_named(two_workers):
    kind, text = two_workers["lost"]
    assert kind == "ProcessError"
    assert "has not answered for" in text and "and no worker does its steps" in text
    assert "start all tasks again; with dl.Resume(folder) among the callbacks" in text


def test_the_strategy_is_described(two_workers):
    described = two_workers["described"]
    assert (described.kind, described.workers) == ("parameter_server", 2)
    assert described.is_chief  # the coordinator
    assert described.variables == "spread over the parameter servers"


# Without a cluster


def test_workers_with_several_gpus_are_refused():
    with pytest.raises(DeviceError, match="workers with 2 GPUs each"):
        check_strategy(strategy_of("mirrored", 2))  # all that is asked is the number of replicas
