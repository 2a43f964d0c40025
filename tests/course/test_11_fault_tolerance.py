"""The checks of lesson 11: right answers pass, also where they are killed; wrong ones are named."""

import contextlib
import copy
import functools
import itertools
import math
import os
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import cloudpickle
import keras
import numpy as np
import pytest
import tensorflow as tf

from distlab.course.checks.registry import checks_of
from distlab.course.checks.run_check import run_check
from distlab.course.lesson_11_fault_tolerance.checks import pipeline
from tests.support.lesson_checks import (
    assert_feedback_says,
    assert_mistake_is_caught,
    assert_mistakes_are_caught,
    assert_right_answers_pass,
    assert_solution_passes,
    load_solution,
    load_stub,
)
from tests.support.repository import lesson_text

STEM = "11_fault_tolerance"
STATE, SAVE, NEWEST, RESUME, LEAVE, INTERVAL, RECOVERS = checks_of(STEM)
# A process that gets an answer is spared the import of this module, and of TensorFlow with it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


# --- whole_state


def state_of(*parts):
    def whole_state(model, optimizer, step):
        seeds = [layer.seed_generator.state for layer in model.layers if "dropout" in layer.name]
        whole = {"model": model, "optimizer": optimizer, "step": step, "seeds": seeds}
        return tf.train.Checkpoint(**{part: whole[part] for part in parts})

    return whole_state


def test_other_forms_of_the_whole_state_pass():
    def by_parts(model, optimizer, step):
        layers = [layer for layer in model.layers if hasattr(layer, "seed_generator")]
        seeds = {str(number): layer.seed_generator.state for number, layer in enumerate(layers)}
        variables = {"weights": model.weights, "slots": optimizer.variables}
        return tf.train.Checkpoint(**variables, place=step, **seeds)

    def of_all_variables(model, optimizer, step):
        return tf.train.Checkpoint(all=[*model.variables, *optimizer.variables, step])

    assert_right_answers_pass(STATE, by_parts, of_all_variables, seeds=[1])


def test_states_that_lack_a_part_are_named():
    wrong = {
        "no_model": state_of("optimizer", "step", "seeds"),
        "weights_only": state_of("model", "step", "seeds"),
        "no_data_position": state_of("model", "optimizer", "seeds"),
        "seed_state_lost": state_of("model", "optimizer", "step"),
    }
    assert_mistakes_are_caught(STATE, wrong, seeds=[1])
    told = "a tf.train.Checkpoint was asked for"
    assert_feedback_says(STATE, {told: lambda model, optimizer, step: model.get_weights()})


# --- save_atomically


def number_of(path):
    return int(path.stem.split("-")[1])


def saver(*, beside="unfinished", put=Path.rename, removes="last"):
    """An answer to `save`, made of the parts given; with the defaults it is right."""

    def save(folder, step, data, keep):
        def remove(most):
            checkpoints = sorted(folder.glob("step-*.ckpt"), key=number_of)
            for path in checkpoints[: max(0, len(checkpoints) - most)]:
                path.unlink()

        if removes == "first":
            remove(keep - 1)
        unfinished = folder / beside.format(step=step)
        unfinished.write_bytes(data)
        put(unfinished, folder / f"step-{step}.ckpt")
        if removes == "last":
            remove(keep)

    return save


def test_other_ways_to_give_a_name_last_pass():
    def by_link(unfinished, path):
        os.link(unfinished, path)
        unfinished.unlink()

    assert_right_answers_pass(SAVE, saver(), saver(put=by_link), seeds=[1])


def test_wrong_saves_are_named_and_a_torn_checkpoint_costs_more_than_a_missing_one():
    def copy_in_place(unfinished, path):
        shutil.copyfile(unfinished, path)
        unfinished.unlink()

    wrong = {
        "unfinished_looks_finished": saver(beside="step-{step}-unfinished.ckpt"),
        "overwrites_in_place": saver(put=copy_in_place),
        "removes_first": saver(removes="first"),
        "leaves_what_a_kill_left": saver(beside="{step}.unfinished"),
    }
    earned = {"overwrites_in_place": 2.5, "removes_first": 3, "leaves_what_a_kill_left": 3.5}
    assert_mistakes_are_caught(SAVE, wrong, earned=earned, seeds=[1])


# --- newest_checkpoint


def finder(pattern="step-*.ckpt", key=number_of):
    return lambda folder: max(folder.glob(pattern), key=key, default=None)


def test_the_newest_may_be_found_and_told_otherwise():
    def its_name(folder):
        newest = finder()(folder)
        return newest and newest.name

    def by_listing(folder):
        steps = sorted(int(p.stem[5:]) for p in folder.iterdir() if p.suffix == ".ckpt")
        return folder / f"step-{steps[-1]}.ckpt" if steps else None

    assert_right_answers_pass(NEWEST, its_name, by_listing)


def test_wrong_newest_ones_are_named():
    wrong = {
        "picks_unfinished": finder("step-*", lambda path: int(path.name.split(".")[0][5:])),
        "by_time": finder(key=lambda path: path.stat().st_mtime),
        "sorts_as_text": finder(key=str),
        "reads_every_name": finder("*"),
        "none_there": lambda folder: max(folder.glob("step-*.ckpt"), key=number_of),
    }
    # An empty folder counts only after the newest is found.
    assert_mistakes_are_caught(NEWEST, wrong, earned={"sorts_as_text": 0})


def test_what_is_no_path_earns_nothing_and_paths_are_shown_as_names():
    names = {"yours:    ['step-9.ckpt']": lambda folder: sorted(folder.glob("step-*.ckpt"))[-1:]}
    assert_feedback_says(NEWEST, names)
    for answer in (None, [], 7):
        assert run_check(NEWEST, lambda folder, answer=answer: answer).earned == 0


# --- resume_in_a_loop


def looper(*, restore=True, whole_epochs=False, order="train count save", every_epoch=False):
    def run(manager, step, batches_of, train_on, epochs, every_steps):
        if restore:
            manager.restore_or_initialize()
        done, batches = int(step.numpy()), len(batches_of(0))
        first, skipped = divmod(done, batches)
        if whole_epochs:
            step.assign(first * batches)
            skipped = 0
        for epoch in range(first, epochs):
            skip = skipped if epoch == first or every_epoch else 0
            for batch in batches_of(epoch)[skip:]:
                due = (int(step.numpy()) + 1) % every_steps == 0
                for action in order.split():
                    if action == "train":
                        train_on(batch)
                    elif action == "count":
                        step.assign_add(1)
                    elif due:
                        manager.save()

    return run


def over_steps(*, is_due=lambda step, every: step % every == 0):
    """A loop over steps, with an idea of when to save."""

    def run(manager, step, batches_of, train_on, epochs, every_steps):
        manager.restore_or_initialize()
        batches = list(itertools.chain(*map(batches_of, range(epochs))))
        for number in range(int(step.numpy()), len(batches)):
            train_on(batches[number])
            step.assign(number + 1)
            if is_due(number + 1, every_steps):
                manager.save()

    return run


def test_other_right_loops_pass():
    def saves_in_finally(manager, *given):
        """Which does not come where a process is killed."""
        try:
            looper()(manager, *given)
        finally:
            manager.save()

    assert_right_answers_pass(RESUME, over_steps(), saves_in_finally)


def test_wrong_loops_are_named():
    wrong = {
        "never_restores": looper(restore=False),
        "saves_at_other_steps": over_steps(is_due=lambda step, every: True),
        "restarts_epoch": looper(whole_epochs=True),
        "repeats_step": looper(order="train save count"),
        "skips_in_every_epoch": looper(every_epoch=True),
    }
    assert_mistakes_are_caught(RESUME, wrong, earned={"never_restores": 0})


def test_loops_that_do_not_go_on_or_do_not_end_are_judged():
    def endless(manager, step, batches_of, train_on, epochs, every_steps):
        while True:
            train_on(0)

    for wrong in (endless, lambda manager, step, *_: step.assign(21)):
        report = run_check(RESUME, wrong, seeds=[1])
        assert (report.status, report.earned) == ("not yet", 0)


# --- leave_when_told


def leaver(*, handler="note", code=143, looks="behind"):
    def run(steps, do_step, save):
        told = []

        def leave():
            if told:
                save()
                raise SystemExit(code)

        def hear(number, frame):
            if handler == "leave":
                sys.exit(code)
            told.append(number)

        if handler:
            signal.signal(signal.SIGTERM, hear)
        for step in range(steps):
            if looks == "before":
                leave()
            do_step(step)
            if looks == "behind":
                leave()

    return run


def test_the_repaired_loop_saves_what_the_lesson_promises():
    state, saved = {"weight": 0.0, "step": 0}, []

    def do_step(step):  # as in the lesson, where the seventh one is told in its middle
        state["weight"] += 1.0
        if step == 6:
            signal.raise_signal(signal.SIGTERM)
        state["step"] = step + 1

    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as left:
            load_solution(STEM)["run_until_told"](9, do_step, lambda: saved.append(dict(state)))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (saved, left.value.code) == ([{"weight": 7.0, "step": 7}], 143)
    text = lesson_text(STEM)
    assert "# Weight 7, step 7: the step in which the signal came is finished" in text


def test_other_ways_to_leave_pass():
    def by_the_signal_itself(steps, do_step, save):
        """To a shell, and to whoever waits for a container, that is 143 as well."""
        told = []
        signal.signal(signal.SIGTERM, lambda *what: told.append(what))
        for step in range(steps):
            do_step(step)
            if told:
                save()
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                signal.raise_signal(signal.SIGTERM)

    assert_right_answers_pass(LEAVE, by_the_signal_itself, leaver(), seeds=[1])


def test_wrong_ways_to_leave_are_named():
    wrong = {
        "saves_inside_handler": load_stub(STEM)["run_until_told"],
        "not_heard": leaver(handler=None),
        "leaves_in_mid_step": leaver(handler="leave"),
        "exit_zero": leaver(code=0),
    }
    assert_mistakes_are_caught(LEAVE, wrong, seeds=[1])
    told_in_the_last_step = {"looks_too_late": leaver(looks="before")}
    assert_mistakes_are_caught(LEAVE, told_in_the_last_step, seeds=[3])


# --- save_interval


def interval(
    *, by_workers=True, secs=3600, twice=2, at_least=1, kind=round,
    share=lambda watched, workers: watched / workers, per_step=lambda best, secs: best / secs,
):  # fmt: skip
    def save_every_steps(save_secs, step_secs, failures, watched_hours, watched_workers, workers):
        between = watched_hours * secs / failures
        if by_workers:
            between *= share(watched_workers, workers)
        best = np.sqrt(twice * np.mean(save_secs) * between)
        return max(at_least, kind(per_step(best, step_secs)))

    return save_every_steps


def test_rounding_down_and_up_passes_as_well():
    assert_right_answers_pass(INTERVAL, interval(kind=int), interval(kind=math.ceil))


def test_wrong_intervals_are_named():
    wrong = {
        "ignores_workers": interval(by_workers=False),
        "upside_down": interval(share=lambda watched, workers: workers / watched),
        "hours_for_seconds": interval(secs=1),
        "seconds_for_steps": interval(per_step=lambda best, secs: best),
        "factor_two": interval(twice=1),
    }
    assert_mistakes_are_caught(INTERVAL, wrong)


def test_intervals_that_are_no_number_of_steps_do_not_pass():
    for wrong in (interval(at_least=0), interval(kind=float)):
        report = run_check(INTERVAL, wrong)
        assert (report.status, report.mistake) == ("not yet", "")
    assert run_check(INTERVAL, lambda **measured: 1).earned == 0  # without a reason


# --- recovers


def trainer(*, parts=("optimizer", "step", "seeds"), restores=(0, 1), in_scope=True, counts=True):
    """An answer to `train`, made of the parts given; with the defaults it is right."""

    def train(strategy, build, batches_of, epochs, folder, every_steps, keep):
        index = strategy.cluster_resolver.task_id
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
        with strategy.scope() if in_scope else contextlib.nullcontext():
            model = build()
            optimizer = model.optimizer
            optimizer.build(model.trainable_variables)
            step = tf.Variable(0, dtype=tf.int64) if counts else optimizer.iterations
        seeds = [layer.seed_generator.state for layer in model.layers if layer.name == "dropout"]
        whole = {"optimizer": optimizer, "step": step, "seeds": seeds}
        kept = {part: whole[part] for part in parts}
        checkpoint = tf.train.Checkpoint(weights=model.weights, **kept)
        newest = tf.train.latest_checkpoint(folder)
        if newest and index in restores:
            checkpoint.read(newest).expect_partial()
        manager = tf.train.CheckpointManager(checkpoint, folder, keep) if index == 0 else None

        def replica_step(x, y):
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x, training=True)) / 4
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        train_on = tf.function(lambda batch: strategy.run(replica_step, args=batch))
        begin = int(step.numpy())
        for epoch in range(begin // 6, epochs):
            data = batches_of(epoch).skip(max(0, begin - epoch * 6))
            for batch in strategy.experimental_distribute_dataset(data):
                train_on(batch)
                if counts:
                    step.assign_add(1)
                if step.numpy() % every_steps == 0 and manager:
                    manager.save()
        return model

    return train


@functools.cache
def twice():
    """How a right answer trained without a kill, and with one of worker:1."""
    inputs = RECOVERS.inputs(1)
    assert inputs["killed"] == 1
    return RECOVERS.call(trainer(), inputs)


def judged(change=lambda runs: None):
    """The check, given what `twice` returns, changed, in place of a training."""

    def runs(answer, inputs):
        outputs = copy.deepcopy(twice())
        change(outputs)
        return outputs

    return replace(RECOVERS, call=runs)


def test_other_right_pipelines_pass_whichever_worker_is_killed():
    assert_solution_passes(judged(), trainer(), seeds=[1])
    assert RECOVERS.inputs(4)["killed"] == 0
    by_iterations = trainer(counts=False, parts=("optimizer", "seeds"))
    assert_solution_passes(RECOVERS, by_iterations, seeds=[4])


@pytest.fixture
def trained_undisturbed_once(monkeypatch):
    """What is wrong only with a kill has, without one, the weights of a right answer."""
    train, undisturbed = pipeline._trained, twice()["undisturbed"]

    def trained(answer, inputs):
        return undisturbed if inputs["killed"] is None else train(answer, inputs)

    monkeypatch.setattr(pipeline, "_trained", trained)


def test_a_state_that_is_lost_is_named(trained_undisturbed_once):
    without_seeds = trainer(parts=("optimizer", "step"))
    assert_mistake_is_caught(RECOVERS, without_seeds, "state_lost", seeds=[1])


def test_what_a_training_leaves_is_judged():
    """Examples that both workers took, what they wrote, and steps that count twice or never."""

    def both_read_all(runs):
        runs["undisturbed"]["lives"] = [
            [sorted(2 * step) for step in runs["undisturbed"]["lives"][0]]
        ]

    def both_write(runs):
        runs["recovered"]["workers"][1]["wrote"].append("ckpt-3.index")

    def state_lost(runs):
        for worker in runs["recovered"]["workers"]:
            worker["iterations"] = 8
            worker["weights"] += 0.1

    for change in (both_read_all, both_write, state_lost):
        assert_mistake_is_caught(judged(change), trainer(), change.__name__, seeds=[1])

    def resumed_after(step):
        def change(runs):
            runs["recovered"]["lives"][1:] = [runs["undisturbed"]["lives"][0][step:]]

        return change

    def with_another_checkpoint(runs):
        runs["recovered"]["workers"][0]["files"].append("ckpt-1.index")

    # Of 8 points: what the undisturbed run earns, and all but the steps or the count of files.
    for change, earned in (
        (resumed_after(0), 1),
        (resumed_after(6), 7),
        (with_another_checkpoint, 7.5),
    ):
        report = run_check(judged(change), trainer(), seeds=[1])
        assert (report.earned, report.mistake) == (earned, "")


def test_a_model_from_outside_the_scope_is_named():
    assert_mistake_is_caught(RECOVERS, trainer(in_scope=False), "outside_scope", seeds=[1])


def test_a_worker_that_alone_began_anew_is_stopped_and_named(trained_undisturbed_once, monkeypatch):
    monkeypatch.setattr(pipeline, "_TIMEOUT_SECS", 10.0)
    alone = trainer(restores=(0,))
    report = assert_mistake_is_caught(RECOVERS, alone, "only_chief_restores", seeds=[1])
    assert "worker:1 still waits here; worker:0 has finished" in report.failure.error


# --- what the lesson says and does not run


def test_a_checkpoint_manager_gives_names_last(tmp_path):
    """As the lesson says: `checkpoint` names what is whole."""
    checkpoint = tf.train.Checkpoint(variable=tf.Variable(1.0))
    manager = tf.train.CheckpointManager(checkpoint, tmp_path, max_to_keep=1)
    manager.save()
    (tmp_path / "ckpt-2.data-00000-of-00001").write_bytes(b"torn")
    assert Path(tf.train.latest_checkpoint(tmp_path)).name == "ckpt-1"


def test_tensorflows_preemption_handler_leaves_with_42_and_on_googles_cloud_with_143():
    from tensorflow.python.distribute.failure_handling import failure_handling as handling
    from tensorflow.python.distribute.failure_handling.failure_handling_util import PlatformDevice

    for platform, code in ((PlatformDevice.INTERNAL_CPU, 42), (PlatformDevice.GCE_CPU, 143)):
        with pytest.raises(SystemExit) as left:
            handling._complete_config_for_environment(platform, None).exit_fn()
        assert left.value.code == code
