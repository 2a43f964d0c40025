"""The checks of lesson 08: right answers pass, wrong ones are named; and what the lesson claims."""

import functools
import logging
import tempfile
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

import distlab as dl
from distlab.course.checks.registry import checks_of
from distlab.course.checks.run_check import run_check
from distlab.course.runs.replicas import mirrored
from distlab.errors import TaskTimeout
from tests.support.lesson_checks import (
    assert_feedback_says,
    assert_mistakes_are_caught,
    assert_right_answers_pass,
)

STEM = "08_save_and_load"
MOVE, RESTORE, EXPORT, PATHS = checks_of(STEM)
load_model = keras.saving.load_model


# --- move_model


def loaded_in_scope(path, strategy, rate=0.1, **options):
    with strategy.scope():
        return load_model(path, **options)


def compiled_again(path, strategy, rate):
    with strategy.scope():
        model = load_model(path)
        model.compile(keras.optimizers.Adam(rate), loss="mse")
    return model


def compiled_in_no_scope(path, strategy, rate):
    model = loaded_in_scope(path, strategy, compile=False)
    model.compile(keras.optimizers.Adam(rate), loss="mse")
    return model


def distributed(path, strategy, rate):
    def build():
        model = load_model(path)
        model.optimizer.learning_rate = rate
        return model

    return dl.distribute(build, strategy)


def test_move_model():
    assert_right_answers_pass(MOVE, distributed)
    wrong = {
        "loaded_outside_scope": lambda path, strategy, rate: load_model(path),
        "optimizer_lost": compiled_again,
        "not_compiled": functools.partial(loaded_in_scope, compile=False),
    }
    earned = {"loaded_outside_scope": 0, "optimizer_lost": 1, "not_compiled": 0}
    assert_mistakes_are_caught(MOVE, wrong, earned=earned)
    report = repr(run_check(MOVE, compiled_in_no_scope, seeds=(1,)))
    assert "fit raises RuntimeError: Mixing different tf.distribute.Strategy objects" in report
    assert "0x" not in report


# --- partial_restore


def reads(asserts):
    """An answer to `partial_restore` that reads the body and asserts something."""

    def restore_body(path, body):
        getattr(tf.train.Checkpoint(body=body).read(path), asserts)()

    return restore_body


def compares(path, body):
    """Refuses what it should, and restores nothing."""
    there = {name for name, _ in tf.train.list_variables(path)}
    own = tf.train.Checkpoint(body=body).write(tempfile.mkdtemp() + "/own")
    wanted = {name for name, _ in tf.train.list_variables(own) if name.startswith("body")}
    if not wanted <= there:
        raise KeyError(sorted(wanted - there))


def by_hand(path, body):
    """A right answer: it compares the names itself."""
    compares(path, body)
    tf.train.Checkpoint(body=body).read(path).expect_partial()


def restores(path, body):
    tf.train.Checkpoint(body=body).restore(path).assert_existing_objects_matched()


def refuses(path, body):
    raise ValueError("never mind")


def test_partial_restore():
    assert_right_answers_pass(RESTORE, by_hand)
    wrong = {
        "nothing_asserted": reads("expect_partial"),
        "consumed_asserted": reads("assert_consumed"),
        "nothing_restored": compares,
        "restore_for_read": restores,
    }
    earned = dict.fromkeys(wrong, 0) | {"nothing_asserted": 1}
    assert_mistakes_are_caught(RESTORE, wrong, earned=earned)
    assert_feedback_says(RESTORE, {"ValueError: never mind": refuses})


# --- export_service


def best(chances):
    return {"digit": tf.argmax(chances, axis=1), "probability": tf.reduce_max(chances, axis=1)}


def exports(*, shape=(None, 8, 8, 1), dtype=tf.uint8, prepares=True, returns=best):
    """An answer to `export_service` without Keras in the export."""

    def export(model, prepare, folder):
        def answers(pixels):
            images = prepare(pixels) if prepares else tf.cast(pixels, tf.float32)
            return returns(tf.nn.softmax(model(images)))

        served = tf.Module()
        served.model = model
        served.answers = tf.function(answers, input_signature=[tf.TensorSpec(shape, dtype)])
        tf.saved_model.save(served, folder, signatures=served.answers)

    return export


def test_export_service():
    assert_right_answers_pass(EXPORT, exports())
    wrong = {
        "preprocessing_lost": exports(prepares=False),
        "takes_floats": exports(dtype=tf.float32),
        "fixed_batch": exports(shape=(1, 8, 8, 1)),
    }
    earned = {"preprocessing_lost": 0, "takes_floats": 2, "fixed_batch": 0.5}
    assert_mistakes_are_caught(EXPORT, wrong, earned=earned)
    said = {
        "no export in the folder": lambda model, prepare, folder: None,
        "no signature `serving_default`": lambda model, prepare, folder: tf.saved_model.save(
            tf.Module(), folder
        ),
        "1 inputs, and the outputs digit": exports(returns=lambda chances: {"digit": chances}),
    }
    assert_feedback_says(EXPORT, said)


# --- where_to_write


def writes(chief=None, other="temporary-{job}-{index}/model.keras"):
    """An answer to `where_to_write` with this rule for the chief and this path for the others."""
    chief = chief or (
        lambda job, index, jobs: job == "chief" or ("chief" not in jobs and not index)
    )

    def where(folder, job, index, jobs):
        name = "model.keras" if chief(job, index, jobs) else other.format(job=job, index=index)
        return f"{folder}/{name}"

    return where


def nowhere_but_the_chief(folder, *task):
    path = writes()(folder, *task)
    return path if path == f"{folder}/model.keras" else None


def folders_of_the_system(folder, job, index, jobs):
    if (job, index) == ("chief" if "chief" in jobs else "worker", 0):
        return Path(folder, "model.keras")
    return tempfile.mkdtemp() + "/model.keras"


def test_where_to_write():
    assert_right_answers_pass(PATHS, folders_of_the_system)
    wrong = {
        "same_path": writes(other="model.keras"),
        "second_chief": writes(lambda job, index, jobs: index == 0),
        "no_task_is_chief": writes(lambda job, index, jobs: job == "chief"),
        "shared_temporary": writes(other="temporary/model.keras"),
        "others_without_path": nowhere_but_the_chief,
    }
    earned = {"same_path": 0, "second_chief": 1.5, "shared_temporary": 1}
    assert_mistakes_are_caught(PATHS, wrong, earned=earned)
    inside = writes(other="model.keras/{job}-{index}.keras")
    assert_feedback_says(PATHS, {"a path leads through the chief's file": inside}, earned=1)


# --- what the lesson claims


def uncompiled():
    layers = [keras.layers.Dense(8, "relu"), keras.layers.Dense(3)]
    return keras.Sequential([keras.Input((4,)), *layers])


def build():
    model = uncompiled()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.05), loss=loss)
    return model


def batches():
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(48, 4)).astype("float32"), draw.integers(0, 3, size=48)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(12)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A trained model with its file and its checkpoint; not to be trained any further."""
    folder, model = tmp_path_factory.mktemp("saved"), dl.distribute(build, mirrored(2))
    model.fit(batches(), shuffle=False, verbose=0)
    model.save(file := folder / "model.keras")
    checkpoint = tf.train.Checkpoint(model=model).write(str(folder / "checkpoint"))
    return SimpleNamespace(model=model, file=file, checkpoint=checkpoint)


def test_weights_alone_are_loaded_with_a_warning_where_the_optimizer_is_not_built(saved, tmp_path):
    saved.model.save_weights(tmp_path / "model.weights.h5")

    def load(built):
        fresh = build()
        if built:
            fresh.optimizer.build(fresh.trainable_variables)
        fresh.load_weights(tmp_path / "model.weights.h5")
        return fresh

    with pytest.warns(UserWarning, match="because it has 2 variables whereas the saved optimizer"):
        without = load(built=False)
    assert int(without.optimizer.iterations) == 0
    assert int(load(built=True).optimizer.iterations) == 4


def test_a_checkpoint_restored_under_another_name_changes_nothing_and_raises_nothing(saved):
    fresh = build()
    before = fresh.get_weights()
    status = tf.train.Checkpoint(network=fresh).read(saved.checkpoint)
    assert all(map(np.array_equal, before, fresh.get_weights()))
    with pytest.raises(AssertionError, match="Found 6 Python objects that were not bound"):
        status.assert_existing_objects_matched()


def warnings_of(action):
    """What TensorFlow logs meanwhile."""
    logger, lines = tf.get_logger(), []
    handler, level = logging.Handler(), logger.level
    handler.emit = lambda record: lines.append(record.getMessage())
    logger.addHandler(handler)
    logger.setLevel("WARNING")
    try:
        action()
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
    return lines


def test_values_that_no_object_took_are_logged_when_the_restore_is_deleted(saved):
    fresh = build()
    status = tf.train.Checkpoint(network=fresh).read(saved.checkpoint)
    kept = [status]
    del status
    first, *more = warnings_of(kept.clear)
    assert "deleted with unrestored values" in first
    assert any("model.optimizer._iterations" in line for line in more)
    partial = [tf.train.Checkpoint(network=fresh).read(saved.checkpoint).expect_partial()]
    assert warnings_of(partial.clear) == []


def test_a_schedule_is_not_in_a_checkpoint_and_is_in_a_keras_file(saved, tmp_path):
    def scheduled(start):
        model = build()
        schedule = keras.optimizers.schedules.ExponentialDecay(start, 4, 0.5)
        model.compile(keras.optimizers.Adam(schedule), model.loss)
        model.optimizer.build(model.trainable_variables)
        return model

    model = scheduled(0.01)
    model.fit(batches(), shuffle=False, verbose=0)  # four steps
    written = tf.train.Checkpoint(model=model).write(str(tmp_path / "checkpoint"))
    model.save(tmp_path / "model.keras")
    slower = scheduled(0.001)
    tf.train.Checkpoint(model=slower).read(written).assert_consumed()
    assert float(slower.optimizer.learning_rate) == pytest.approx(0.0005)
    loaded = load_model(tmp_path / "model.keras")
    assert float(loaded.optimizer.learning_rate) == pytest.approx(0.005)
    with pytest.raises(TypeError, match="learning rate is not settable"):
        loaded.optimizer.learning_rate = 0.001
    with pytest.raises(ValueError, match="incompatible tensor"):
        tf.train.Checkpoint(model=scheduled(0.001)).read(saved.checkpoint)


def test_a_schedule_shifts_the_averages_of_a_checkpoint_that_has_a_rate(saved):
    model, number = saved.model, saved.checkpoint
    later = build()
    schedule = keras.optimizers.schedules.ExponentialDecay(0.01, 4, 0.5)
    later.compile(keras.optimizers.Adam(schedule), later.loss)
    tf.train.Checkpoint(model=later).read(number)  # before the averages are made: no error
    later.optimizer.build(later.trainable_variables)
    momentum = model.optimizer.variables[2]  # of the first kernel; before it, steps and rate
    squared = later.optimizer.variables[2]  # there is no rate before it
    assert "momentum" in momentum.path and "velocity" in squared.path
    np.testing.assert_array_equal(squared.numpy(), momentum.numpy())
    second = uncompiled()  # the cure reads the weights only
    read = tf.train.Checkpoint(model=second).read(number)
    read.assert_existing_objects_matched().expect_partial()
    cured = build()
    cured.compile(keras.optimizers.Adam(schedule), cured.loss)
    cured.set_weights(second.get_weights())
    cured.optimizer.build(cured.trainable_variables)
    for one, other in zip(cured.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert not any(np.any(average.numpy()) for average in cured.optimizer.variables)


def test_the_state_of_dropout_is_in_no_file(tmp_path):
    layer = keras.layers.Dropout(0.5, seed=1)
    model = keras.Sequential([keras.Input((64,)), layer])
    layer(np.ones((1, 64)), training=True)
    model.save(tmp_path / "model.keras")
    loaded = load_model(tmp_path / "model.keras")
    states = [m.layers[0].seed_generator.state.numpy().tolist() for m in (model, loaded)]
    assert states[0] != states[1]
    written = tf.train.Checkpoint(model=model).write(str(tmp_path / "checkpoint"))
    assert [name for name, shape in tf.train.list_variables(written) if shape] == []


def test_a_sum_over_replicas_is_saved_once_and_shared_out_again(tmp_path):
    def counter(replicas):
        with mirrored(replicas).scope():
            return tf.Variable(
                0.0,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )

    two, four = counter(2), counter(4)
    for copy, value in zip(mirrored(2).experimental_local_results(two), (40, 24), strict=True):
        copy.assign(value)
    written = tf.train.Checkpoint(counter=two).write(str(tmp_path / "checkpoint"))
    tf.train.Checkpoint(counter=four).read(written).assert_consumed()
    copies = [float(copy) for copy in mirrored(4).experimental_local_results(four)]
    assert copies == [16, 16, 16, 16]
    assert float(four.read_value()) == 64


def test_a_model_without_variables_has_nothing_that_an_assertion_could_miss(saved):
    unbuilt = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(3)])
    status = tf.train.Checkpoint(model=unbuilt).read(saved.checkpoint)
    status.assert_existing_objects_matched()


def test_a_chief_alone_saves_a_model_and_waits_for_ever_with_a_counter(saved):
    def save_alone(folder, with_counter):
        strategy = dl.make_strategy("multi_worker")
        with strategy.scope():
            parts = {"model": load_model(folder / "model.keras")}
            if with_counter:
                parts["counter"] = tf.Variable(
                    0.0,
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=tf.VariableAggregation.SUM,
                )
        if strategy.cluster_resolver.task_id == 0:
            parts["model"].save(folder / "again.keras")
            tf.train.Checkpoint(**parts).write(str(folder / "again"))
        return True

    with dl.LocalCluster(workers=2) as cluster:
        folder = saved.file.parent
        assert cluster.run(save_alone, folder, False, timeout_secs=120) == [True, True]
        with pytest.raises(TaskTimeout) as error:  # a save that does not wait takes no second
            cluster.run(save_alone, folder, True, timeout_secs=10)
    assert error.value.task == "worker:0"


def test_a_model_loaded_outside_the_scope_trains_on_one_device_or_not_at_all(saved):
    """In the scope there is a copy of each weight, and of each average, on each replica."""
    loaded, four = load_model(saved.file), mirrored(4)
    loaded.fit(batches(), shuffle=False, verbose=0)
    assert loaded.distribute_strategy.num_replicas_in_sync == 1
    loaded = load_model(saved.file)
    with four.scope(), pytest.raises(AssertionError, match=r"^$"):
        loaded.fit(batches(), shuffle=False, verbose=0)
    loaded = loaded_in_scope(saved.file, four)
    for variable in (*loaded.weights, *loaded.optimizer.variables):
        assert len(four.experimental_local_results(variable.value)) == 4
