"""The checks of lesson 09: right answers pass on real workers, wrong ones are named, also hangs."""

import functools
import json
import shutil
import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from distlab.cluster.spec import read_cluster
from distlab.grading.clusters import call_on_workers
from distlab.grading.lesson_09_multi_worker import saving_and_hangs, training_loop
from distlab.grading.registry import checks_of
from distlab.grading.running import run_check
from tests.lessons.support import (
    assert_mistake_is_caught,
    assert_solution_passes,
    assert_stub_earns_nothing,
    load_solution,
    load_stub,
    problems_of,
)

STEM = "09_multi_worker"
CHECKS = {check.name: check for check in checks_of(STEM)}
CONFIGS, PART, TRAIN, SAVE, DIAGNOSE, EPOCH = CHECKS.values()
solution = functools.cache(functools.partial(load_solution, STEM))


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_every_check_is_complete(check):
    assert problems_of(check) == []


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_solution_passes(check):
    # The others use workers; of their draws two differ in more than the numbers.
    seeds = range(20) if check in (CONFIGS, DIAGNOSE) else range(2)
    assert_solution_passes(check, solution()[check.function], seeds=seeds)


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_exercise_as_handed_out_earns_nothing(check):
    status = "error in your code" if check is EPOCH else "not started"  # it hangs
    assert_stub_earns_nothing(check, load_stub(STEM)[check.function], status=status)


# --- tf_configs


def configs(*, index=lambda n: n, cluster=lambda addresses, n: addresses, write=json.dumps):
    def tf_configs(addresses):
        return [
            write(
                {
                    "task": {"index": index(n), "type": "worker"},
                    "cluster": {"worker": cluster(addresses, n)},
                }
            )
            for n in range(len(addresses))
        ]

    return tf_configs


def others(addresses, n):
    return addresses[:n] + addresses[n + 1 :]


def by_hand(addresses):
    """JSON that no library wrote, with more white space than it needs."""
    workers = ", ".join(f'"{address}"' for address in addresses)
    return [
        f'{{ "cluster": {{"worker": [{workers}] }},\n "task": {{"type":"worker","index": {n}}} }}'
        for n, _ in enumerate(addresses)
    ]


def test_configs_written_by_hand_pass():
    assert_solution_passes(CONFIGS, by_hand)


def test_configs_that_pass_are_what_distlab_reads():
    assert_solution_passes(CONFIGS, configs())
    addresses = CONFIGS.inputs(1)["addresses"]
    for n, text in enumerate(configs()(addresses)):
        cluster = read_cluster({"TF_CONFIG": text})
        assert str(cluster.task) == f"worker:{n}"
        assert cluster.address_of(cluster.task) == addresses[n]


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        (configs(write=str), "not_json"),
        (configs(index=str), "index_is_text"),
        (configs(cluster=others), "own_address_missing"),
        (configs(cluster=lambda all_, n: [all_[n], *others(all_, n)]), "own_address_first"),
        (configs(index=lambda n: 0), "same_index"),
        (configs(index=lambda n: n + 1), "index_from_one"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_configs_are_named(wrong, mistake):
    assert_mistake_is_caught(CONFIGS, wrong, mistake)


def test_a_cluster_with_addresses_of_its_own_does_not_pass():
    made_up = configs(cluster=lambda addresses, n: ["localhost:1"] * len(addresses))
    report = run_check(CONFIGS, made_up)
    assert [c.label for c in report.criteria if not c.passed] == [
        "every task names the whole cluster, in the same order"
    ]


# --- my_part


def part(*, before=lambda data, seed: data, after=lambda data, seed: data, shard=True, batch=None):
    """An answer to `my_part`, with what is done before and after the shard."""

    def my_part(context, numbers, global_batch, seed):
        data = before(tf.data.Dataset.from_tensor_slices(numbers), seed)
        if shard:
            data = data.shard(context.num_input_pipelines, context.input_pipeline_id)
        local = context.get_per_replica_batch_size(global_batch)
        return after(data, seed).batch(batch or local)

    return my_part


def shuffled(data, seed):
    return data.shuffle(1000, seed=seed)


def shuffled_without_seed(data, seed):
    return data.shuffle(1000)


def half(context, numbers, global_batch, seed):
    """Halves, one after the other: also each number once."""
    mine = np.array_split(numbers, context.num_input_pipelines)[context.input_pipeline_id]
    data = tf.data.Dataset.from_tensor_slices(np.random.permutation(mine))
    return data.batch(global_batch // context.num_input_pipelines)


@pytest.mark.parametrize(
    "right", [part(before=shuffled), part(after=shuffled_without_seed), half], ids=range(3)
)
def test_other_right_parts_pass(right):
    assert_solution_passes(PART, right, seeds=range(2))


@pytest.mark.parametrize(
    ("wrong", "mistake", "earned"),
    [
        (part(after=shuffled, shard=False), "both_read_all", 1),
        (part(before=shuffled_without_seed), "overlap", 2),
        (part(after=shuffled, batch=8), "global_batch_each", 3),
        (part(), "not_shuffled", 3),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_parts_are_named(wrong, mistake, earned):
    assert assert_mistake_is_caught(PART, wrong, mistake).earned == earned


def test_a_part_without_an_end_is_judged_all_the_same():
    endless = part(after=lambda data, seed: shuffled(data, seed).repeat())
    report = run_check(PART, endless, seeds=[1])
    assert report.status == "not yet"
    assert not report.mistake


# --- train_on_two_workers


def sum_over_count(losses):
    mine = tf.cast(tf.size(losses), tf.float32)
    count = tf.distribute.get_replica_context().all_reduce("SUM", mine)
    return tf.reduce_sum(losses) / count


def trainer(*, weigh=sum_over_count, batch=8, once=False, log=None, data_of=None, own=False):
    """An answer to `train`, made of the parts given."""

    def train(strategy, build, x, y, per_worker_batch, epochs):
        data = tf.data.Dataset.from_tensor_slices((x, y))
        data = data_of(data, strategy) if data_of else data.batch(batch)
        data = data if own else strategy.experimental_distribute_dataset(data)
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        with strategy.scope():
            model, mean = build(), keras.metrics.Mean()

        def replica_step(x, y):
            with tf.GradientTape() as tape:
                losses = loss_of(y, model(x))
                loss = weigh(losses)
            weights = model.trainable_variables
            gradients = tape.gradient(loss, weights)
            model.optimizer.apply_gradients(zip(gradients, weights, strict=True))
            mean.update_state(losses)

        step = tf.function(lambda one: strategy.run(replica_step, args=one))
        means = []
        for _ in range(1 if once else epochs):
            mean.reset_state()
            for one in data:
                step(one)
            means.append(log(mean) if log else mean.result())
        return model, means

    return train


def in_one_function(strategy, build, x, y, per_worker_batch, epochs):
    """Epochs compiled, losses added up by `reduce`, gradients by hand."""
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    with strategy.scope():
        model = build()
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(per_worker_batch * 2)
    data = strategy.experimental_distribute_dataset(data)

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x))
        context = tf.distribute.get_replica_context()
        gradients = tape.gradient(loss, model.trainable_variables)
        total = context.all_reduce("SUM", [*gradients, tf.cast(tf.size(y), tf.float32)])
        for variable, gradient in zip(model.trainable_variables, total[:-1], strict=True):
            variable.assign_sub(model.optimizer.learning_rate * gradient / total[-1])
        return loss

    @tf.function
    def epoch():
        total = 0.0
        for batch in data:
            total += strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)
        return total / len(y)

    return model, [epoch() for _ in range(epochs)]


@pytest.mark.parametrize("right", [trainer(), in_one_function], ids=["by_apply", "by_hand"])
def test_other_right_loops_pass(right):
    assert_solution_passes(TRAIN, right, seeds=range(2))


def own_part(data, strategy):
    """The part that a hand shares out: one worker has a batch more."""
    return data.shard(2, strategy.cluster_resolver.task_id).batch(4)


def logs_its_own(strategy, *given):
    model, losses = trainer()(strategy, *given)
    return model, [loss + strategy.cluster_resolver.task_id for loss in losses]


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        (trainer(batch=4), "per_worker_batch_as_global"),
        (trainer(weigh=lambda losses: tf.reduce_mean(losses) / 2), "mean_of_means"),
        (trainer(weigh=lambda losses: tf.reduce_sum(losses) / 8), "nominal_batch"),
        (trainer(weigh=tf.reduce_mean), "not_divided"),
        (trainer(data_of=lambda data, _: data.batch(8, drop_remainder=True)), "remainder_dropped"),
        (trainer(own=True, data_of=lambda data, _: data.batch(8)), "both_read_all"),
        (trainer(once=True), "one_epoch"),
        (logs_its_own, "own_losses"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_loops_that_differ_from_one_device_are_named(wrong, mistake):
    assert_mistake_is_caught(TRAIN, wrong, mistake)


def test_a_loop_with_unequal_steps_is_stopped_and_named():
    quiet = trainer(own=True, data_of=own_part, log=lambda mean: 0.0, once=True)
    report = assert_mistake_is_caught(TRAIN, quiet, "unequal_steps")
    assert report.failure.error == "TimeoutError: worker:0 still waits here; worker:1 has finished"
    (line,) = report.failure.lines
    assert line.endswith("in train: step(one)")


def test_a_step_too_many_that_meets_another_collective_is_named_as_well():
    """The other worker reads its metric, which is a collective of another shape."""
    report = assert_mistake_is_caught(TRAIN, trainer(own=True, data_of=own_part), "unequal_steps")
    assert "Shape mismatch in the collective" in report.failure.error


def test_what_the_check_expects_is_what_fit_does_on_one_device():
    for seed in (1, 2):
        inputs = TRAIN.inputs(seed)
        layer = keras.layers.Dense(3)
        model = keras.Sequential([keras.Input((4,)), layer])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(training_loop._RATE), loss=loss)
        model.set_weights([inputs["kernel"], np.zeros(3)])
        logs = model.fit(
            inputs["x"],
            inputs["y"],
            batch_size=training_loop._GLOBAL,
            epochs=training_loop._EPOCHS,
            shuffle=False,
            verbose=0,
        ).history
        worker = {
            "kernel": layer.kernel.numpy(),
            "bias": layer.bias.numpy(),
            "losses": logs["loss"],
            "trained on": len(inputs["y"]) * training_loop._EPOCHS // 2,
        }
        assert TRAIN.judge(inputs, [worker, worker]).passed


# --- save_from_many


def saver(*, chief=True, other="temporary"):
    def save(strategy, checkpoint, path):
        if strategy.cluster_resolver.task_id == 0:
            if chief:
                checkpoint.write(path)
        elif other == "temporary":
            with tempfile.TemporaryDirectory() as folder:
                checkpoint.write(f"{folder}/model")
        elif other:
            checkpoint.write(other.format(path=path))

    return save


def test_a_place_beside_the_chiefs_that_is_cleared_passes():
    def save(strategy, checkpoint, path):
        index = strategy.cluster_resolver.task_id
        place = path if index == 0 else f"{path}-{index}"
        checkpoint.write(place)
        for file in Path(path).parent.glob(f"{Path(path).name}-*") if index else ():
            file.unlink()

    assert_solution_passes(SAVE, save, seeds=range(2))


def test_a_place_for_all_that_only_the_chief_leaves_passes():
    def save(strategy, checkpoint, path):
        place = tempfile.mkdtemp(dir=Path(path).parent.parent)
        is_chief = not strategy.cluster_resolver.task_id
        checkpoint.write(path if is_chief else f"{place}/{Path(path).name}")
        shutil.rmtree(place)

    assert_solution_passes(SAVE, save, seeds=range(2))


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        (saver(other="{path}"), "same_path"),
        (saver(other="{path}-1"), "left_behind"),
        (
            lambda strategy, checkpoint, path: saver(other="{path}-1")(
                strategy, checkpoint, path + str(strategy.cluster_resolver.task_id)
            ),
            "nothing_kept",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_places_are_named(wrong, mistake):
    assert_mistake_is_caught(SAVE, wrong, mistake)


def test_a_chief_that_saves_alone_is_stopped_and_named():
    report = assert_mistake_is_caught(SAVE, saver(other=""), "chief_only")
    assert report.failure.lines[0].endswith(": checkpoint.write(path)")


# --- diagnose


def answers(**changed):
    return lambda case: {**saving_and_hangs._CASES, **changed}[case][:2]


def test_each_fact_is_worth_the_same():
    report = run_check(DIAGNOSE, answers(B=("worker:0", "unequal_steps")))
    assert (report.status, report.earned) == ("not yet", 3.5)


def in_words(case):
    """As lists, and told from what each worker does."""
    if case == "D":
        return ["nobody", "met_another_collective"]
    waits = {"A": "worker:0", "B": "worker:1"}.get(case, "both")
    causes = {"worker:0": "collective_in_chief_only", "worker:1": "unequal_steps"}
    return [waits, causes.get(waits, "wait_for_each_other")]


@pytest.mark.parametrize("right", [answers(), in_words], ids=["tuples", "lists"])
def test_other_forms_of_the_diagnosis_pass(right):
    assert_solution_passes(DIAGNOSE, right, seeds=range(3))


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        (
            answers(A=("worker:1", "collective_in_chief_only"), B=("worker:0", "unequal_steps")),
            "finished_for_waiting",
        ),
        (answers(A=("worker:0", "slow_network")), "blames_the_network"),
        (answers(D=("both", "met_another_collective")), "silence_is_success"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_diagnoses_are_named(wrong, mistake):
    assert_mistake_is_caught(DIAGNOSE, wrong, mistake)


def test_an_answer_of_one_text_is_read_as_far_as_it_goes():
    report = run_check(DIAGNOSE, lambda case: saving_and_hangs._CASES[case][0])
    assert report.earned == 2


# --- end_of_epoch


def test_the_function_to_repair_hangs_and_is_named():
    stub = load_stub(STEM)["end_of_epoch"]
    report = assert_mistake_is_caught(EPOCH, stub, "collective_in_chief_only")
    assert report.failure.error == "TimeoutError: worker:0 still waits here; worker:1 has finished"
    assert report.failure.lines == (
        'line 4 in end_of_epoch: mean = strategy.reduce("MEAN", loss, axis=None)',
    )


def by_all_reduce(strategy, loss, log):
    mean = strategy.run(
        lambda: tf.distribute.get_replica_context().all_reduce("MEAN", tf.identity(loss))
    )
    if not strategy.cluster_resolver.task_id:
        log.append(mean.numpy())


def by_sum(strategy, loss, log):
    total = strategy.reduce(tf.distribute.ReduceOp.SUM, loss, axis=None)
    log += [total / strategy.num_replicas_in_sync][strategy.cluster_resolver.task_id :]


@pytest.mark.parametrize("right", [by_all_reduce, by_sum])
def test_other_right_repairs_pass(right):
    assert_solution_passes(EPOCH, right, seeds=range(1))


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        (
            lambda strategy, loss, log: (
                log.append(loss) if strategy.cluster_resolver.task_id == 0 else None
            ),
            "own_loss_only",
        ),
        (
            lambda strategy, loss, log: log.append(strategy.reduce("MEAN", loss, axis=None)),
            "everybody_logs",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_wrong_repairs_are_named(wrong, mistake):
    assert_mistake_is_caught(EPOCH, wrong, mistake)


# --- what the lesson says and does not run


def read_by(strategy, global_seed):
    index = strategy.cluster_resolver.task_id
    tf.random.set_seed(None if global_seed is None else global_seed + index)
    data = tf.data.Dataset.range(32).shuffle(32, seed=1).batch(8)
    batches = strategy.experimental_distribute_dataset(data)
    return [int(n) for one in batches for n in strategy.experimental_local_results(one)[0]]


def test_workers_with_different_global_seeds_shuffle_differently_with_one_seed():
    alike = call_on_workers(_use, read_by, None)
    assert sorted(alike[0] + alike[1]) == list(range(32))
    apart = call_on_workers(_use, read_by, 1)
    assert sorted(apart[0] + apart[1]) != list(range(32))


def _use(strategy, function, *args):
    return function(strategy, *args)
