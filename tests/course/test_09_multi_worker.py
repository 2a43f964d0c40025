"""The checks of lesson 09: right answers pass on real workers, wrong ones are named, also hangs."""

import contextlib
import functools
import json
import re
import sys
import tempfile

import cloudpickle
import keras
import numpy as np
import tensorflow as tf

import distlab as dl
from distlab.cluster.spec import read_cluster
from distlab.course.checks.registry import checks_of
from distlab.course.checks.run_check import run_check
from distlab.course.lesson_09_multi_worker.checks import collectives, training_loop
from distlab.course.runs.cluster_calls import call_on_workers
from tests.support.lesson_checks import (
    assert_feedback_says,
    assert_mistake_is_caught,
    assert_mistakes_are_caught,
    assert_right_answers_pass,
    load_stub,
)

STEM = "09_multi_worker"
CONFIGS, PART, TRAIN, SAVE, DIAGNOSE, EPOCH = checks_of(STEM)
ONE_DRAW = (1,)
# A process that gets an answer is spared the import of this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def index_of(strategy):
    return strategy.cluster_resolver.task_id


# --- tf_configs


def configs(*, index=lambda n: n, cluster=lambda addresses, n: addresses, write=json.dumps):
    def config(addresses, n):
        task = {"index": index(n), "type": "worker"}
        return write({"task": task, "cluster": {"worker": cluster(addresses, n)}})

    return lambda addresses: [config(addresses, n) for n in range(len(addresses))]


def by_hand(addresses):
    """JSON that no library wrote, with more white space than it needs."""
    workers = ", ".join(f'"{address}"' for address in addresses)
    return [
        f'{{ "cluster": {{"worker": [{workers}] }},\n "task": {{"type":"worker","index": {n}}} }}'
        for n, _ in enumerate(addresses)
    ]


def with_more_in_it(addresses):
    """In an array, indented, and with a key that TensorFlow reads too."""
    write = configs(write=lambda config: json.dumps(config | {"rpc_layer": "grpc"}, indent=2))
    return np.array(write(addresses))


def test_other_right_configs_pass_and_are_what_distlab_reads():
    addresses = CONFIGS.inputs(1)["addresses"]
    assert_right_answers_pass(CONFIGS, by_hand, with_more_in_it)
    for right in (by_hand, with_more_in_it):
        for n, text in enumerate(right(addresses)):
            cluster = read_cluster({"TF_CONFIG": str(text)})
            assert str(cluster.task) == f"worker:{n}"
            assert cluster.address_of(cluster.task) == addresses[n]


def test_wrong_configs_are_named():
    wrong = {
        "not_json": configs(write=str),
        "only_itself": configs(cluster=lambda addresses, n: [addresses[n]]),
        "index_is_text": configs(index=str),
        "own_address_first": configs(cluster=lambda addresses, n: addresses[n:] + addresses[:n]),
        "same_index": configs(index=lambda n: 0),
    }
    assert_mistakes_are_caught(CONFIGS, wrong)


def test_what_is_no_list_of_configs_is_told_so():
    told = {
        "is there a `return`?": lambda addresses: None,
        "3 texts were asked for, one for each worker; yours are 0": lambda addresses: [],
        "text that is no JSON: {": lambda addresses: ["{"] * 3,
        "no text: 1": lambda addresses: [1, 2, 3],
        "text that is no JSON: []": lambda addresses: ["[]"] * 3,
        "yours returned '{": lambda addresses: by_hand(addresses)[0],
    }
    assert_feedback_says(CONFIGS, told)


# --- my_part


def part(*, before=lambda data, seed: data, after=lambda data, seed: data, shard=None, batch=None):
    """An answer to `my_part`, with what is done before and after the shard."""

    def my_part(context, numbers, global_batch, seed):
        data = before(tf.data.Dataset.from_tensor_slices(numbers), seed)
        data = data.shard(*(shard or (context.num_input_pipelines, context.input_pipeline_id)))
        local = context.get_per_replica_batch_size(global_batch)
        return after(data, seed).batch(batch or local)

    return my_part


def shuffled(data, seed):
    return data.shuffle(1000, seed=seed)


def unseeded(data, seed):
    return data.shuffle(1000)


def of_each_global_batch(context, numbers, global_batch, seed):
    """One order for all, and of each global batch this worker's share."""
    share = context.get_per_replica_batch_size(global_batch)
    begin = context.input_pipeline_id * share
    data = tf.data.Dataset.from_tensor_slices(numbers).shuffle(1000, seed=seed)
    return data.batch(global_batch).map(lambda batch: batch[begin : begin + share])


def test_other_right_parts_pass():
    assert_right_answers_pass(PART, of_each_global_batch, part(before=shuffled), seeds=ONE_DRAW)


def test_wrong_parts_are_named():
    wrong = {
        "both_read_all": part(shard=(1, 0), after=shuffled),
        "overlap": part(before=unseeded),
        "global_batch_each": part(after=shuffled, batch=8),
        "not_shuffled": part(),
    }
    earned = {"both_read_all": 0, "overlap": 0, "global_batch_each": 3, "not_shuffled": 3}
    assert_mistakes_are_caught(PART, wrong, earned=earned, seeds=ONE_DRAW)


def test_what_is_no_part_is_told_so():
    endless = part(after=lambda data, seed: shuffled(data, seed).repeat())
    report = run_check(PART, endless, seeds=ONE_DRAW)
    assert (report.status, report.mistake) == ("not yet", "")
    said = "TypeError: your function returned None: is there a `return`?"
    assert_feedback_says(PART, {said: lambda *_: None})


# --- train_on_two_workers


def sum_over_count(losses):
    mine = tf.cast(tf.size(losses), tf.float32)
    count = tf.distribute.get_replica_context().all_reduce("SUM", mine)
    return tf.reduce_sum(losses) / count


def trainer(
    *, weigh=sum_over_count, data_of=None, once=False, log=lambda mean: mean.result(), in_scope=True
):
    """An answer to `train`, made of the parts given."""

    def train(strategy, build, x, y, per_worker_batch, epochs):
        data = tf.data.Dataset.from_tensor_slices((x, y))
        if data_of:
            data = data_of(data, strategy)
        else:
            data = strategy.experimental_distribute_dataset(data.batch(8))
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        with strategy.scope() if in_scope else contextlib.nullcontext():
            model, mean = build(), keras.metrics.Mean()

        def replica_step(x, y):
            with tf.GradientTape() as tape:
                losses = loss_of(y, model(x))
                loss = weigh(losses)
            weights = model.trainable_variables
            gradients = tape.gradient(loss, weights)
            model.optimizer.apply_gradients(zip(gradients, weights, strict=True))
            mean.update_state(losses)

        step = tf.function(lambda batch: strategy.run(replica_step, args=batch))
        means = []
        for _ in range(1 if once else epochs):
            mean.reset_state()
            for share in data:
                step(share)
            means.append(log(mean))
        return model, means

    return train


def by_distribute(strategy, build, x, y, per_worker_batch, epochs):
    """Where one knows the helper. It gives examples of no weight to who has none."""
    model = dl.distribute(build, strategy)
    data = tf.data.Dataset.from_tensor_slices((x, y))
    data = data.batch(per_worker_batch * strategy.num_replicas_in_sync)
    history = model.fit(data, epochs=epochs, shuffle=False, verbose=0)
    return [model, np.array(history.history["loss"])]


def test_other_right_loops_pass():
    assert_right_answers_pass(TRAIN, trainer(), by_distribute, seeds=ONE_DRAW)


def on_everything(data, strategy):
    return data.batch(8)


def own_part(data, strategy):
    """The part that a hand shares out: one worker has a batch more."""
    return data.shard(2, index_of(strategy)).batch(4)


def by_keras_own_fit(strategy, build, x, y, per_worker_batch, epochs):
    with strategy.scope():
        model = build()
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    return model, model.fit(data, epochs=epochs, shuffle=False, verbose=0).history["loss"]


def test_loops_that_differ_from_one_device_are_named():
    wrong = {
        "mean_of_means": trainer(weigh=lambda losses: tf.reduce_mean(losses) / 2),
        "outside_scope": trainer(in_scope=False),
    }
    assert_mistakes_are_caught(TRAIN, wrong, seeds=ONE_DRAW)
    said = {
        "of 34 examples in 2 epochs they trained on": trainer(data_of=on_everything),
        "convert a value (PerReplica": by_keras_own_fit,
    }
    assert_feedback_says(TRAIN, said)


def test_what_is_no_model_with_its_losses_is_told_so():
    def swapped(strategy, build, *_):
        return [1.0, 1.0], build()

    told = "TypeError: first the model was asked for, then the losses"
    assert_feedback_says(TRAIN, {told: swapped})


def test_a_loop_with_unequal_steps_is_stopped_and_named(monkeypatch):
    soon = functools.partial(call_on_workers, timeout_secs=4)  # what hangs still hangs
    monkeypatch.setattr(training_loop, "call_on_workers", soon)
    quiet = trainer(data_of=own_part, log=lambda mean: 0.0, once=True)
    report = assert_mistake_is_caught(TRAIN, quiet, "unequal_steps", seeds=ONE_DRAW)
    assert report.failure.error == "TimeoutError: worker:0 still waits here; worker:1 has finished"
    (line,) = report.failure.lines
    assert "step(share)" in line


def test_a_step_too_many_that_meets_another_collective_is_named_as_well():
    """The other worker reads its metric, which is a collective of another shape."""
    unequal = trainer(data_of=own_part)
    report = assert_mistake_is_caught(TRAIN, unequal, "unequal_steps", seeds=ONE_DRAW)
    assert "Shape mismatch in the collective" in report.failure.error


# --- save_from_many


def saver(*, other="{folder}/model", method="write"):
    """An answer to `save`: where the worker that is not the chief writes, and how."""

    def save(strategy, checkpoint, path):
        with tempfile.TemporaryDirectory() as folder:
            place = path if index_of(strategy) == 0 else other.format(path=path, folder=folder)
            if place:
                getattr(checkpoint, method)(place)

    return save


def by_what_the_strategy_says(strategy, checkpoint, path):
    if strategy.extended.should_save_summary:
        checkpoint.write(path)
        return
    aside = f"{path}_aside_{index_of(strategy)}"
    checkpoint.write(f"{aside}/model")
    tf.io.gfile.rmtree(aside)


def test_other_right_places_pass():
    assert_right_answers_pass(SAVE, saver(), by_what_the_strategy_says, seeds=ONE_DRAW)


def test_wrong_places_are_named():
    wrong = {
        "same_path": saver(other="{path}"),
        "numbered": saver(method="save"),
        "left_behind": saver(other="{path}-1"),
    }
    assert_mistakes_are_caught(SAVE, wrong, seeds=ONE_DRAW)


def test_a_chief_that_saves_alone_is_stopped_and_named():
    report = assert_mistake_is_caught(SAVE, saver(other=""), "chief_only", seeds=ONE_DRAW)
    assert ": getattr(checkpoint, method)(" in report.failure.lines[0]


# --- diagnose


def answers(**changed):
    return lambda case: {**collectives._CASES, **changed}[case][:2]


def test_other_forms_of_the_diagnosis_pass():
    in_lists, in_arrays = (lambda case, of=of: of(answers()(case)) for of in (list, np.array))
    assert_right_answers_pass(DIAGNOSE, in_lists, in_arrays)


def test_wrong_diagnoses_are_named_and_each_fact_is_worth_the_same():
    wrong = {
        "finished_for_waiting": answers(
            A=("worker:1", "collective_in_chief_only"), B=("worker:0", "unequal_steps")
        ),
        "blames_the_network": answers(A=("worker:0", "slow_network")),
        "silence_is_success": answers(D=("both", "met_another_collective")),
    }
    earned = {mistake: 3 if mistake == "finished_for_waiting" else 3.5 for mistake in wrong}
    assert_mistakes_are_caught(DIAGNOSE, wrong, earned=earned)
    assert run_check(DIAGNOSE, lambda case: collectives._CASES[case][0]).earned == 2


def test_a_diagnosis_of_another_form_is_told_so_and_no_mistake_is_guessed():
    told = {
        "is there a `return`?": lambda case: None,
        "two texts were asked for": lambda case: "both, wait_for_each_other",
        "not one of worker:0": lambda case: ("Both", "slow"),
    }
    assert_feedback_says(DIAGNOSE, told)
    assert not any(run_check(DIAGNOSE, answer).mistake for answer in told.values())


# --- end_of_epoch


def test_the_function_to_repair_hangs_and_is_named():
    stub = load_stub(STEM)["end_of_epoch"]
    report = assert_mistake_is_caught(EPOCH, stub, "decided_by_own_loss")
    assert re.fullmatch(
        r"TimeoutError: worker:(\d) still waits here; worker:(?!\1)\d has finished",
        report.failure.error,
    )
    assert report.failure.lines == (
        'line 4 in end_of_epoch: mean = strategy.reduce("MEAN", loss, axis=None)',
    )


def epoch_end(*, mean, best_only=True):
    """An answer to `end_of_epoch`: what it compares, and whether it logs the best only."""

    def end_of_epoch(strategy, loss, log):
        now = float(mean(strategy, loss))
        if not (best_only and log) or now < min(log):
            log.append(now)

    return end_of_epoch


def by_gather(strategy, loss):
    return tf.reduce_mean(strategy.gather(strategy.run(lambda: loss[None]), axis=0))


def by_metric(strategy, loss):
    with strategy.scope():
        mean = keras.metrics.Mean()
    strategy.run(mean.update_state, args=(loss,))
    return mean.result()


def test_other_right_repairs_pass():
    rights = (epoch_end(mean=mean) for mean in (by_gather, by_metric))
    assert_right_answers_pass(EPOCH, *rights, seeds=ONE_DRAW)


def test_other_wrong_repairs_are_named():
    wrong = {
        "own_loss_only": epoch_end(mean=lambda strategy, loss: loss),
        "logs_every_epoch": epoch_end(mean=by_gather, best_only=False),
    }
    assert_mistakes_are_caught(EPOCH, wrong, seeds=ONE_DRAW)


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
