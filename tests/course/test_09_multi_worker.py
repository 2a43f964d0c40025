"""The checks of lesson 09: right answers pass on real workers, wrong ones are named, also hangs."""

import functools
import json
import re
import sys

import cloudpickle
import keras
import numpy as np
import tensorflow as tf

import distlab as dl
from distlab.cluster.spec import read_cluster
from distlab.course.checks.registry import checks_of
from distlab.course.checks.run_check import run_check
from distlab.course.lesson_09_multi_worker.checks import training
from distlab.course.runs.cluster_calls import call_on_workers
from tests.support.lesson_checks import (
    assert_feedback_says,
    assert_mistake_is_caught,
    assert_mistakes_are_caught,
    assert_right_answers_pass,
    edited_solution,
    edited_solutions,
    load_solution,
    load_stub,
)

STEM = "09_multi_worker"
CONFIGS, TRAIN, DIAGNOSE, EPOCH, SAVE = checks_of(STEM)
ONE_DRAW = (1,)
edited = functools.partial(edited_solution, STEM)
# A process that gets an answer is spared the import of this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def index_of(strategy):
    return strategy.cluster_resolver.task_id


# --- tf_configs


def with_more_in_it(addresses):
    """In an array, indented, and with a key that TensorFlow reads too."""

    def config(n):
        task, workers = {"index": n, "type": "worker"}, {"worker": addresses}
        return json.dumps({"task": task, "cluster": workers, "rpc_layer": "grpc"}, indent=2)

    return np.array([config(n) for n in range(len(addresses))])


def test_configs_are_judged_and_right_ones_are_what_distlab_reads():
    assert_right_answers_pass(CONFIGS, with_more_in_it)
    addresses = CONFIGS.inputs(1)["addresses"]
    for n, text in enumerate(with_more_in_it(addresses)):
        cluster = read_cluster({"TF_CONFIG": str(text)})
        assert str(cluster.task) == f"worker:{n}"
        assert cluster.address_of(cluster.task) == addresses[n]

    as_python_writes = edited("tf_configs", {"json.dumps": "str"})
    chief = {'{"worker": addresses}': '{"worker": addresses, "chief": addresses[:1]}'}
    wrong = {
        "not_json": as_python_writes,
        "dictionaries": edited("tf_configs", {"json.dumps": "dict"}),
        "other_tasks": edited("tf_configs", chief),
    }
    assert_mistakes_are_caught(CONFIGS, wrong, earned={"other_tasks": 2})
    said = {
        "is there a `return`?": lambda addresses: None,
        "3 strings were asked for, one for each worker; yours are 0": lambda addresses: [],
        "a string that is no JSON: []": lambda addresses: ["[]"] * 3,
        "no string: 1": lambda addresses: [1, 2, 3],
    }
    assert_feedback_says(CONFIGS, said)


# --- train_on_two_workers


def by_distribute(strategy, build, x, y, per_worker_batch, epochs):
    """Where one knows the helper. It gives examples of no weight to who has none."""
    model = dl.distribute(build, strategy)
    data = tf.data.Dataset.from_tensor_slices((x, y))
    data = data.batch(per_worker_batch * strategy.num_replicas_in_sync)
    history = model.fit(data, epochs=epochs, shuffle=False, verbose=0)
    return [model, np.array(history.history["loss"])]


def by_keras_own_fit(strategy, build, x, y, per_worker_batch, epochs):
    with strategy.scope():
        model = build()
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    return model, model.fit(data, epochs=epochs, shuffle=False, verbose=0).history["loss"]


DISTRIBUTED = "strategy.experimental_distribute_dataset(data)"
# The part that a hand shares out: one worker has a batch more.
OWN_PART = {DISTRIBUTED: "data.unbatch().shard(2, strategy.cluster_resolver.task_id).batch(4)"}


GLOBAL_BATCH = "per_worker_batch * strategy.num_replicas_in_sync"
OF_A_SHARE = f"strategy.distribute_datasets_from_function(lambda _: {OWN_PART[DISTRIBUTED]})"
LOG_OF_OWN = {
    "mean_loss.update_state(losses)": "return losses",
    "step(batch)": "mine = step(batch)",
    "float(mean_loss.result())": "float(tf.reduce_mean(mine))",
}


def test_loops_that_differ_from_one_device_are_named():
    assert_right_answers_pass(TRAIN, by_distribute, seeds=ONE_DRAW)
    nominal = {"tf.reduce_sum(losses) / count": f"tf.reduce_sum(losses) / ({GLOBAL_BATCH})"}
    wrong = {
        "outside_scope": {"with strategy.scope():": "if strategy:"},
        "per_worker_batch_as_global": {f"= {GLOBAL_BATCH}": "= per_worker_batch"} | nominal,
        "global_batch_on_each": {DISTRIBUTED: OF_A_SHARE.replace("(4)", "(8)")},
        "own_losses": LOG_OF_OWN,
    }
    wrong = edited_solutions(STEM, "train", wrong)
    assert_mistakes_are_caught(TRAIN, wrong, seeds=ONE_DRAW)
    without_an_example = LOG_OF_OWN | {"step(batch)": "mine = float(step(batch)[0])"}
    said = {
        "on worker:1, after step 3, which had 0 examples here": edited("train", without_an_example),
        "of 34 examples in 2 epochs they trained on": edited("train", {DISTRIBUTED: "data"}),
        "convert a value (PerReplica": by_keras_own_fit,
    }
    assert_feedback_says(TRAIN, said)


def test_a_loop_with_unequal_steps_is_stopped_and_named(monkeypatch):
    """In a second epoch, or where a metric is read, the step too many meets a collective."""
    soon = functools.partial(call_on_workers, timeout_secs=4)  # what hangs still hangs
    monkeypatch.setattr(training, "call_on_workers", soon)
    quiet = {"float(mean_loss.result())": "0.0", "range(epochs)": "range(1)"}
    for edits, error, line in (
        (quiet, "TimeoutError: worker:0 still waits here; worker:1 has finished", "step(batch)"),
        ({}, "Shape mismatch in the collective", ""),
    ):
        unequal = edited("train", OWN_PART | edits)
        report = assert_mistake_is_caught(TRAIN, unequal, "unequal_steps", seeds=ONE_DRAW)
        assert error in report.failure.error
        assert line in report.failure.lines[-1]


# --- save_from_many


def by_what_the_strategy_says(strategy, checkpoint, path):
    if strategy.extended.should_save_summary:
        checkpoint.write(path)
        return
    aside = f"{path}_aside_{index_of(strategy)}"
    checkpoint.write(f"{aside}/model")
    tf.io.gfile.rmtree(aside)


def test_saves_are_judged_and_a_chief_that_saves_alone_is_stopped():
    assert_right_answers_pass(SAVE, by_what_the_strategy_says, seeds=ONE_DRAW)
    aside = 'str(Path(folder, "unused"))'
    wrong = {
        "same_path": {aside: "path"},
        "numbered": {"checkpoint.write(path)": "checkpoint.save(path)"},
        "left_behind": {aside: 'f"{path}-1"'},
    }
    wrong = edited_solutions(STEM, "save", wrong)
    assert_mistakes_are_caught(SAVE, wrong, seeds=ONE_DRAW)
    alone = edited("save", {f"checkpoint.write({aside})": "pass"})
    report = assert_mistake_is_caught(SAVE, alone, "chief_only", seeds=ONE_DRAW)
    assert ": checkpoint.write(path)" in report.failure.lines[0]


# --- diagnose


def test_diagnoses_are_judged_fact_by_fact():
    right = load_solution(STEM)["diagnose"]
    assert_right_answers_pass(DIAGNOSE, lambda case: np.array(right(case)))

    blames_the_network = edited("diagnose", {"collective_in_chief_only": "slow_network"})
    assert_mistakes_are_caught(DIAGNOSE, {"blames_the_network": blames_the_network}, earned=3.5)
    assert run_check(DIAGNOSE, lambda case: right(case)[0]).earned == 2
    said = {
        "is there a `return`?": lambda case: None,
        "two strings were asked for": lambda case: "both, wait_for_each_other",
        "not one of worker:0": lambda case: ("Both", "slow"),
    }
    assert_feedback_says(DIAGNOSE, said)
    assert not any(run_check(DIAGNOSE, answer).mistake for answer in said.values())


# --- end_of_epoch


def test_the_function_to_repair_hangs_and_is_named():
    stub = load_stub(STEM)["end_of_epoch"]
    report = assert_mistake_is_caught(EPOCH, stub, "decided_by_own_loss")
    assert re.fullmatch(
        r"TimeoutError: worker:(\d) still waits here; worker:(?!\1)\d has finished",
        report.failure.error,
    )
    assert report.failure.lines == (
        'line 11 in end_of_epoch: mean = strategy.reduce("MEAN", loss, axis=None)',
    )


def by_metric(strategy, loss, log):
    with strategy.scope():
        mean = keras.metrics.Mean()
    strategy.run(mean.update_state, args=(loss,))
    now = float(mean.result())
    if not log or now < min(log):
        log.append(now)


def test_a_repair_by_a_metric_passes():
    assert_right_answers_pass(EPOCH, by_metric, seeds=ONE_DRAW)


# --- what the lesson says and does not run


def read_by(strategy, global_seed):
    tf.random.set_seed(None if global_seed is None else global_seed + index_of(strategy))
    data = tf.data.Dataset.range(32).shuffle(32, seed=1).batch(8)
    batches = strategy.experimental_distribute_dataset(data)
    return [int(n) for batch in batches for n in strategy.experimental_local_results(batch)[0]]


def test_workers_with_different_global_seeds_shuffle_differently_with_one_seed():
    alike = call_on_workers(_use, read_by, None)
    assert sorted(alike[0] + alike[1]) == list(range(32))
    apart = call_on_workers(_use, read_by, 1)
    assert sorted(apart[0] + apart[1]) != list(range(32))


def _use(strategy, function, *args):
    return function(strategy, *args)
