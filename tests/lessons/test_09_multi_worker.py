"""The checks of lesson 09: right answers pass on real workers, wrong ones are named, also hangs."""

import contextlib
import functools
import json
import os
import re
import shutil
import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
from distlab.checks.lesson_09_multi_worker import diagnosing, one_device
from distlab.checks.registry import checks_of
from distlab.checks.run_check import run_check
from distlab.cluster.spec import read_cluster
from distlab.coursework.cluster_calls import call_on_workers
from tests.support.lesson_checks import (
    assert_mistake_is_caught,
    assert_solution_passes,
    load_solution,
    load_stub,
)

STEM = "09_multi_worker"
CHECKS = {check.name: check for check in checks_of(STEM)}
CONFIGS, PART, TRAIN, SAVE, DIAGNOSE, EPOCH = CHECKS.values()
solution = functools.cache(functools.partial(load_solution, STEM))


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


def with_more_in_it(addresses):
    """A tuple, indented, and with a key that TensorFlow reads too."""
    texts = []
    while len(texts) < len(addresses):
        task = {"type": "worker", "index": len(texts)}
        config = {"task": task, "cluster": {"worker": [*addresses]}, "rpc_layer": "grpc"}
        texts.append(json.dumps(config, indent=2))
    return tuple(texts)


def as_an_array(addresses):
    return np.array(configs()(addresses))


@pytest.mark.parametrize("right", [by_hand, with_more_in_it, as_an_array])
def test_other_right_configs_pass(right):
    assert_solution_passes(CONFIGS, right)


def test_configs_that_pass_are_what_distlab_reads():
    assert_solution_passes(CONFIGS, configs())
    addresses = CONFIGS.inputs(1)["addresses"]
    for n, text in enumerate(configs()(addresses)):
        cluster = read_cluster({"TF_CONFIG": text})
        assert str(cluster.task) == f"worker:{n}"
        assert cluster.address_of(cluster.task) == addresses[n]


def with_a_chief(addresses):
    cluster = {"chief": addresses[:1], "worker": addresses[1:]}
    tasks = [("chief", 0), *(("worker", index) for index in range(len(addresses) - 1))]
    return [
        json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
        for kind, index in tasks
    ]


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        (configs(write=str), "not_json"),
        (configs(write=dict), "no_text"),
        (lambda addresses: configs()(addresses)[0], "one_for_all"),
        (lambda addresses: json.dumps(configs(write=dict)(addresses)), "one_for_all"),
        (
            lambda addresses: [t.replace("worker", "workers") for t in by_hand(addresses)],
            "other_keys",
        ),
        (
            lambda addresses: [
                json.dumps({"cluster": {"worker": addresses}, "type": "worker", "index": index})
                for index, _ in enumerate(addresses)
            ],
            "other_keys",
        ),
        (with_a_chief, "names_a_chief"),
        (configs(cluster=lambda addresses, n: [addresses[n]]), "only_itself"),
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


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (None, "is there a `return`?"),
        ([], "3 texts were asked for, one for each worker; yours are 0"),
        (["{", "{", "{"], "text that is no JSON: {"),
        ([1, 2, 3], "no text: 1"),
        (["[]", "[]", "[]"], "text that is no JSON: []"),
    ],
    ids=str,
)
def test_what_is_no_list_of_configs_is_told_so(answer, told):
    report = run_check(CONFIGS, lambda addresses: answer, seeds=[1])
    assert (report.status, report.earned) == ("not yet", 0)
    assert told in repr(report)


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
    data = tf.data.Dataset.from_tensor_slices(np.random.default_rng(seed).permutation(mine))
    return data.batch(global_batch // context.num_input_pipelines)


def of_each_global_batch(context, numbers, global_batch, seed):
    """One order for all, and of each global batch this worker's share."""
    share = context.get_per_replica_batch_size(global_batch)
    begin = context.input_pipeline_id * share
    data = tf.data.Dataset.from_tensor_slices(numbers).shuffle(1000, seed=seed)
    return data.batch(global_batch).map(lambda batch: batch[begin : begin + share])


def by_generator(context, numbers, global_batch, seed):
    mine = np.random.default_rng(seed).permutation(numbers)
    mine = mine[context.input_pipeline_id :: context.num_input_pipelines]
    signature = tf.TensorSpec((), tf.int64)
    data = tf.data.Dataset.from_generator(lambda: iter(mine), output_signature=signature)
    return data.batch(context.get_per_replica_batch_size(global_batch), drop_remainder=True)


@pytest.mark.parametrize(
    "right",
    [
        part(before=shuffled),
        half,
        of_each_global_batch,
        by_generator,
    ],
    ids=range(4),
)
def test_other_right_parts_pass(right):
    assert_solution_passes(PART, right, seeds=range(2))


def backwards(context, numbers, global_batch, seed):
    return part()(context, numbers[::-1], global_batch, seed)


def with_one_seed_for_all(context, numbers, global_batch, seed):
    return part(after=shuffled)(context, numbers, global_batch, 1)


def unbatched(*given):
    return part()(*given).unbatch()


def part_of_batches(context, numbers, global_batch, seed):
    return part()(context, numbers, global_batch, seed).shuffle(1000, seed=seed)


@pytest.mark.parametrize(
    ("wrong", "mistake", "earned"),
    [
        (part(after=lambda data, seed: data.shard(0, 2), shard=False), "shard_arguments", 0),
        (
            part(shard=False, after=lambda data, seed: shuffled(data.shard(2, 0), seed)),
            "same_part",
            0,
        ),
        (unbatched, "not_batched", 0),
        (part_of_batches, "shuffles_batches", 3),
        (part(after=shuffled, shard=False), "both_read_all", 0),
        (part(before=shuffled_without_seed), "overlap", 0),
        (part(after=shuffled, batch=8), "global_batch_each", 3),
        (part(), "not_shuffled", 3),
        (backwards, "not_shuffled", 3),
        (part(after=shuffled_without_seed), "no_seed", 3),
        (with_one_seed_for_all, "same_for_every_seed", 3),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_parts_are_named(wrong, mistake, earned):
    assert assert_mistake_is_caught(PART, wrong, mistake).earned == earned


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda numbers: None, "your function returned None: is there a `return`?"),
        (lambda numbers: numbers, "a tf.data.Dataset was asked for; yours is a ndarray"),
        (lambda numbers: [numbers], "a tf.data.Dataset was asked for; yours is a list"),
    ],
    ids=["nothing", "array", "list"],
)
def test_what_is_no_data_set_is_told_so(answer, told):
    report = run_check(PART, lambda context, numbers, *_: answer(numbers), seeds=[1])
    assert report.failure.error == f"TypeError: {told}"


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


def trainer(
    *, weigh=sum_over_count, batch=8, once=False, log=None, data_of=None, own=False,
    reset=True, in_scope=True, of_batches=None,
):  # fmt: skip
    """An answer to `train`, made of the parts given."""

    def train(strategy, build, x, y, per_worker_batch, epochs):
        data = tf.data.Dataset.from_tensor_slices((x, y))
        data = data_of(data, strategy) if data_of else data.batch(batch)
        data = data if own else strategy.experimental_distribute_dataset(data)
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
            return loss

        step = tf.function(lambda one: strategy.run(replica_step, args=one))
        means = []
        for _ in range(1 if once else epochs):
            if reset:
                mean.reset_state()
            shares = [step(one) for one in data]
            if of_batches:
                sums = [float(strategy.reduce("SUM", share, axis=None)) for share in shares]
                means.append(of_batches(sums))
            else:
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


def by_slices(strategy, build, x, y, per_worker_batch, epochs):
    """No data set at all: each takes its slice of a global batch, and arrays come back."""
    workers, me = strategy.num_replicas_in_sync, strategy.cluster_resolver.task_id
    with strategy.scope():
        model = build()

    def replica_step(x, y, count):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(
                keras.losses.sparse_categorical_crossentropy(y, model(x), from_logits=True)
            )
            loss = loss / count
        weights = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, weights), weights)
        return loss * count

    losses = np.zeros(epochs)
    for epoch in range(epochs):
        for start in range(0, len(y), workers * per_worker_batch):
            places = np.arange(len(y))[start:][: workers * per_worker_batch]
            mine = np.array_split(places, workers)[me]
            given = (tf.constant(x[mine]), tf.constant(y[mine]), float(len(places)))
            mine_lost = strategy.run(replica_step, args=given)
            losses[epoch] += strategy.reduce("SUM", mine_lost, axis=None).numpy() / len(y)
    return [model, losses]


def by_distribute(strategy, build, x, y, per_worker_batch, epochs):
    """Where one knows the helper. It gives examples of no weight to who has none."""
    model = dl.distribute(build, strategy)
    data = tf.data.Dataset.from_tensor_slices((x, y))
    data = data.batch(per_worker_batch * strategy.num_replicas_in_sync)
    history = model.fit(data, epochs=epochs, shuffle=False, verbose=0)
    return model, history.history["loss"]


RIGHT_LOOPS = {
    "by_apply": trainer(),
    "by_hand": in_one_function,
    "by_slices": by_slices,
    "by_distribute": by_distribute,
}


@pytest.mark.parametrize("right", RIGHT_LOOPS.values(), ids=RIGHT_LOOPS)
def test_other_right_loops_pass(right):
    assert_solution_passes(TRAIN, right, seeds=range(2))


def own_part(data, strategy):
    """The part that a hand shares out: one worker has a batch more."""
    return data.shard(2, strategy.cluster_resolver.task_id).batch(4)


def alone(strategy, build, x, y, per_worker_batch, epochs):
    """Each worker with its own examples, and nothing of `strategy`."""
    model, mine = build(), slice(strategy.cluster_resolver.task_id, None, 2)
    history = model.fit(x[mine], y[mine], epochs=epochs, batch_size=4, shuffle=False, verbose=0)
    return model, history.history["loss"]


def each_fits_everything(strategy, build, x, y, per_worker_batch, epochs):
    """What one device comes to, on each worker: no work is shared."""
    model = build()
    fit = model.fit(x, y, epochs=epochs, batch_size=8, shuffle=False, verbose=0)
    return model, fit.history["loss"]


def chief_trains_and_broadcasts(strategy, build, x, y, per_worker_batch, epochs):
    model, losses = build(), np.zeros(epochs)
    if not strategy.cluster_resolver.task_id:
        model, losses = each_fits_everything(strategy, build, x, y, per_worker_batch, epochs)
    is_chief = float(not strategy.cluster_resolver.task_id)

    def of_the_chief(array):
        mine = tf.constant(array * is_chief, tf.float32)
        return strategy.reduce("SUM", strategy.run(tf.identity, args=(mine,)), axis=None).numpy()

    model.set_weights([of_the_chief(array) for array in model.get_weights()])
    return model, of_the_chief(np.array(losses))


def by_keras_own_fit(strategy, build, x, y, per_worker_batch, epochs):
    with strategy.scope():
        model = build()
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    return model, model.fit(data, epochs=epochs, shuffle=False, verbose=0).history["loss"]


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
        (trainer(batch=16), "twice_the_global_batch"),
        (trainer(weigh=tf.reduce_sum), "sum_for_mean"),
        (trainer(weigh=lambda losses: tf.reduce_sum(losses) / 4), "not_divided"),
        (trainer(reset=False), "never_reset"),
        (trainer(of_batches=np.mean), "batches_for_examples"),
        (trainer(of_batches=lambda losses: losses[-1]), "batches_for_examples"),
        (trainer(in_scope=False), "outside_scope"),
        (by_keras_own_fit, "keras_own_fit"),
        (alone, "trained_alone"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_loops_that_differ_from_one_device_are_named(wrong, mistake):
    assert_mistake_is_caught(TRAIN, wrong, mistake)


@pytest.mark.parametrize(
    ("lonely", "mistake"),
    [
        (each_fits_everything, "both_read_all"),
        (chief_trains_and_broadcasts, "one_trains_for_all"),
    ],
)
def test_one_devices_weights_without_shared_work_earn_nothing(lonely, mistake):
    report = assert_mistake_is_caught(TRAIN, lonely, mistake)
    assert report.earned == 0
    assert [one.label for one in report.criteria] == ["the workers share each batch"]


def untrained(strategy, build, x, y, per_worker_batch, epochs):
    return build(), [1.0] * epochs


def without_workers(strategy, build, x, y, per_worker_batch, epochs):
    """What one device comes to, worked out by NumPy on each worker."""
    model = build()
    right = one_device.train({"x": x, "y": y, "kernel": model.get_weights()[0]})
    model.set_weights([right["kernel"], right["bias"]])
    return model, right["losses of worker:0"]


@pytest.mark.parametrize("wrong", [untrained, without_workers])
def test_what_takes_no_step_on_the_workers_earns_nothing(wrong):
    report = run_check(TRAIN, wrong)
    assert report.earned == 0
    (shares,) = [one for one in report.criteria if one.label == "the workers share each batch"]
    assert shares.message.endswith("they trained on [0, 0]")


@pytest.mark.parametrize(
    ("of", "told"),
    [
        (lambda model, losses: model, "two things were asked for"),
        (lambda model, losses: (losses, model), "first the model was asked for, then the losses"),
        (lambda model, losses: (model, losses[-1]), "a list with a loss for each epoch"),
    ],
    ids=["model", "the_other_way_round", "one_loss"],
)
def test_what_is_no_model_with_its_losses_is_told_so(of, told):
    report = run_check(TRAIN, lambda *given: of(*trainer()(*given)), seeds=[1])
    assert report.failure.error.startswith(f"TypeError: {told}")


def test_a_loop_with_unequal_steps_is_stopped_and_named():
    quiet = trainer(own=True, data_of=own_part, log=lambda mean: 0.0, once=True)
    report = assert_mistake_is_caught(TRAIN, quiet, "unequal_steps")
    assert report.failure.error == "TimeoutError: worker:0 still waits here; worker:1 has finished"
    (line,) = report.failure.lines
    assert "step(one)" in line


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
        model.compile(keras.optimizers.SGD(one_device.RATE), loss=loss)
        model.set_weights([inputs["kernel"], np.zeros(3)])
        logs = model.fit(
            inputs["x"],
            inputs["y"],
            batch_size=one_device.GLOBAL_BATCH,
            epochs=one_device.EPOCHS,
            shuffle=False,
            verbose=0,
        ).history
        fitted = {
            "kernel": layer.kernel.numpy(),
            "bias": layer.bias.numpy(),
            "losses of worker:0": logs["loss"],
        }
        outputs = TRAIN.expected(inputs) | fitted
        outputs |= {"other kernel": fitted["kernel"], "other bias": fitted["bias"]}
        assert TRAIN.verdict(inputs, outputs).passed


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


def test_a_checkpoint_that_the_chief_moves_to_its_place_passes():
    """All write for themselves, and one copies what is to stay."""

    def save(strategy, checkpoint, path):
        with tempfile.TemporaryDirectory() as folder:
            checkpoint.write(f"{folder}/{Path(path).name}")
            if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0:
                shutil.copytree(folder, Path(path).parent, dirs_exist_ok=True)

    assert_solution_passes(SAVE, save, seeds=range(2))


def test_who_should_save_by_what_the_strategy_says_passes():
    def save(strategy, checkpoint, path):
        if strategy.extended.should_save_summary:
            checkpoint.write(path)
            return
        aside = f"{path}_aside_{strategy.cluster_resolver.task_id}"
        checkpoint.write(f"{aside}/model")
        tf.io.gfile.rmtree(aside)

    assert_solution_passes(SAVE, save, seeds=range(2))


def saves_numbered(strategy, checkpoint, path):
    with tempfile.TemporaryDirectory() as folder:
        is_chief = strategy.cluster_resolver.task_id == 0
        checkpoint.save(path if is_chief else f"{folder}/model")


def the_other_one(strategy, checkpoint, path):
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.write(path if strategy.cluster_resolver.task_id else f"{folder}/model")


def without_the_count(strategy, checkpoint, path):
    if strategy.cluster_resolver.task_id == 0:
        tf.train.Checkpoint(kernel=checkpoint.kernel).write(path)


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        (saves_numbered, "numbered"),
        (the_other_one, "other_worker_keeps"),
        (without_the_count, "part_of_it"),
        (lambda *_: None, "nothing_kept"),
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
    return lambda case: {**diagnosing._CASES, **changed}[case][:2]


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


def in_an_array(case):
    return np.array(answers()(case))


@pytest.mark.parametrize(
    "right", [answers(), in_words, in_an_array], ids=["tuples", "lists", "arrays"]
)
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


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (None, "is there a `return`?"),
        ("both, wait_for_each_other", "two texts were asked for"),
        ({"waits": "both"}, "two texts were asked for"),
        (("Both", "slow"), "not one of worker:0"),
    ],
    ids=str,
)
def test_a_diagnosis_of_another_form_is_told_so_and_no_mistake_is_guessed(answer, told):
    report = run_check(DIAGNOSE, lambda case: answer)
    assert (report.earned, report.mistake) == (0, "")
    assert told in repr(report)


def test_an_answer_of_one_text_is_read_as_far_as_it_goes():
    report = run_check(DIAGNOSE, lambda case: diagnosing._CASES[case][0])
    assert report.earned == 2


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


def keep_best(mean, log):
    if not log or float(mean) < min(log):
        log.append(float(mean))


def by_all_reduce(strategy, loss, log):
    keep_best(
        strategy.run(
            lambda: tf.distribute.get_replica_context().all_reduce("MEAN", tf.identity(loss))
        ),
        log,
    )


def by_sum(strategy, loss, log):
    total = strategy.reduce(tf.distribute.ReduceOp.SUM, loss, axis=None)
    keep_best(total / strategy.num_replicas_in_sync, log)


def by_gather(strategy, loss, log):
    both = strategy.gather(strategy.run(lambda: loss[None]), axis=0)
    keep_best(tf.reduce_mean(both), log)


def by_metric(strategy, loss, log):
    with strategy.scope():
        mean = keras.metrics.Mean()
    strategy.run(mean.update_state, args=(loss,))
    keep_best(mean.result(), log)


@pytest.mark.parametrize("right", [by_all_reduce, by_sum, by_gather, by_metric])
def test_other_right_repairs_pass(right):
    assert_solution_passes(EPOCH, right, seeds=range(1))


def by_the_chief(strategy, loss, log):
    """The chief decides alone, and writes for itself."""
    mean = strategy.reduce("MEAN", loss, axis=None)
    if strategy.cluster_resolver.task_id == 0:
        keep_best(mean, log)


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        (lambda strategy, loss, log: keep_best(loss, log), "own_loss_only"),
        (by_the_chief, "chief_logs_alone"),
        (lambda strategy, loss, log: strategy.reduce("MEAN", loss, axis=None), "not_logged"),
        (
            lambda strategy, loss, log: keep_best(strategy.reduce("SUM", loss, axis=None), log),
            "sum_for_mean",
        ),
        (
            lambda strategy, loss, log: log.append(strategy.reduce("MEAN", loss, axis=None)),
            "logs_every_epoch",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_wrong_repairs_are_named(wrong, mistake):
    assert_mistake_is_caught(EPOCH, wrong, mistake)


def test_an_invented_mean_earns_nothing():
    report = run_check(EPOCH, lambda strategy, loss, log: log.append(1.5))
    assert (report.status, report.earned) == ("not yet", 0)


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
