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

from distlab.checks.lesson_11_fault_tolerance import two_lives
from distlab.checks.registry import checks_of
from distlab.checks.run_check import run_check
from tests.support.lesson_checks import (
    assert_feedback_says,
    assert_mistake_is_caught,
    assert_mistakes_are_caught,
    assert_right_answers_pass,
    assert_solution_passes,
    load_solution,
    load_stub,
)
from tests.support.repository import ROOT

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


def saver(
    *, beside="unfinished", put=Path.rename, to="step-{step}.ckpt", more=0, removes="last",
):  # fmt: skip
    """An answer to `save`, made of the parts given; with the defaults it is right."""

    def save(folder, step, data, keep):
        def remove(most):
            checkpoints = sorted(folder.glob("step-*.ckpt"), key=number_of)
            for path in checkpoints[: max(0, len(checkpoints) - most)]:
                path.unlink()

        if removes == "first":
            remove(keep - 1)
        unfinished, path = folder / beside.format(step=step), folder / to.format(step=step)
        unfinished.write_bytes(data)
        if put:
            put(unfinished, path)
        if removes == "last":
            remove(keep + more)

    return save


def copy_in_place(unfinished, path):
    shutil.copyfile(unfinished, path)
    unfinished.unlink()


def rename_a_copy(unfinished, path):
    shutil.copy(unfinished, path.with_suffix(".copied"))
    path.with_suffix(".copied").rename(path)


def test_other_ways_to_give_a_name_last_pass():
    def by_link(unfinished, path):
        os.link(unfinished, path)
        unfinished.unlink()

    assert_right_answers_pass(SAVE, saver(), saver(put=by_link), seeds=[1])


def test_wrong_saves_are_named_and_a_torn_checkpoint_costs_more_than_a_missing_one():
    wrong = {
        "nothing_saved": lambda folder, step, data, keep: None,
        "other_names": saver(to="step-{step:05}.ckpt"),
        "unfinished_looks_finished": saver(beside="step-{step}-unfinished.ckpt"),
        "overwrites_in_place": saver(put=copy_in_place),
        "removes_first": saver(removes="first"),
        "keeps_too_many": saver(more=1),
        "keeps_too_few": saver(more=-1),
        "leaves_unfinished": saver(put=rename_a_copy),
        "leaves_what_a_kill_left": saver(beside="{step}.unfinished"),
    }
    earned = {"nothing_saved": 0, "overwrites_in_place": 2.5, "removes_first": 3}
    earned["leaves_what_a_kill_left"] = 3.5
    assert_mistakes_are_caught(SAVE, wrong, earned=earned, seeds=[1])


# --- newest_checkpoint


def finder(pattern="step-*.ckpt", key=number_of, pick=max):
    return lambda folder: pick(folder.glob(pattern), key=key, default=None)


def test_the_newest_may_be_found_and_told_otherwise():
    def its_name(folder):
        newest = finder()(folder)
        return newest and newest.name

    def by_listing(folder):
        steps = sorted(int(p.stem[5:]) for p in folder.iterdir() if p.suffix == ".ckpt")
        return folder / f"step-{steps[-1]}.ckpt" if steps else None

    assert_right_answers_pass(NEWEST, its_name, by_listing)


def test_wrong_newest_ones_are_named():
    def number_alone(folder):
        return max(map(number_of, folder.glob("step-*.ckpt")), default=None)

    wrong = {
        "picks_unfinished": finder("step-*", lambda path: int(path.name.split(".")[0][5:])),
        "by_time": finder(key=lambda path: path.stat().st_mtime),
        "sorts_as_text": finder(key=str),
        "reads_every_name": finder("*"),
        "none_there": lambda folder: max(folder.glob("step-*.ckpt"), key=number_of),
        "number_for_path": number_alone,
        "oldest": finder(pick=min),
    }
    # An empty folder counts only after the newest is found.
    assert_mistakes_are_caught(NEWEST, wrong, earned={"sorts_as_text": 0})


def test_what_is_no_path_earns_nothing_and_paths_are_shown_as_names():
    names = {"yours:    ['step-9.ckpt']": lambda folder: sorted(folder.glob("step-*.ckpt"))[-1:]}
    assert_feedback_says(NEWEST, names)
    for answer in (None, [], 7):
        assert run_check(NEWEST, lambda folder, answer=answer: answer).earned == 0


# --- resume_in_a_loop


def looper(
    *, restore=True, whole_epochs=False, order="train count save", skip_more=0, every_epoch=False
):
    def run(manager, step, batches_of, train_on, epochs, every_steps):
        if restore:
            manager.restore_or_initialize()
        done, batches = int(step.numpy()), len(batches_of(0))
        first, skipped = divmod(done, batches)
        if whole_epochs:
            step.assign(first * batches)
            skipped = 0
        skipped += skip_more if done else 0
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
        "skips_a_step": looper(order="count save train"),
        "skips_the_next_batch": looper(skip_more=1),
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


def leaver(*, handler="note", code=143, saves=1, leaves=True, looks="behind"):
    def run(steps, do_step, save):
        told = []

        def leave():
            if told and leaves:
                for _ in range(saves):
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
    text = (ROOT / "lessons" / STEM / "lesson.py").read_text(encoding="utf-8")
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
        "goes_on": leaver(leaves=False),
        "leaves_in_mid_step": leaver(handler="leave"),
        "saves_more_than_once": leaver(saves=2),
        "exit_zero": leaver(code=0),
    }
    assert_mistakes_are_caught(LEAVE, wrong, seeds=[1])
    told_in_the_last_step = {"looks_too_late": leaver(looks="before")}
    assert_mistakes_are_caught(LEAVE, told_in_the_last_step, seeds=[3])


# --- save_interval


def interval(
    *, by_failures=True, by_workers=True, secs=3600, twice=2, at_least=1, kind=round, cost=np.mean,
    share=lambda watched, workers: watched / workers, per_step=lambda best, secs: best / secs,
):  # fmt: skip
    def save_every_steps(save_secs, step_secs, failures, watched_hours, watched_workers, workers):
        between = watched_hours * secs / (failures if by_failures else 5)
        if by_workers:
            between *= share(watched_workers, workers)
        best = np.sqrt(twice * cost(save_secs) * between)
        return max(at_least, kind(per_step(best, step_secs)))

    return save_every_steps


def test_rounding_down_and_up_passes_as_well():
    assert_right_answers_pass(INTERVAL, interval(kind=int), interval(kind=math.ceil))


def test_wrong_intervals_are_named():
    wrong = {
        "ignores_failure_rate": interval(by_failures=False),
        "ignores_workers": interval(by_workers=False),
        "upside_down": interval(share=lambda watched, workers: workers / watched),
        "hours_for_seconds": interval(secs=1),
        "seconds_for_steps": interval(per_step=lambda best, secs: best),
        "no_root": interval(per_step=lambda best, secs: best**2 / secs),
        "not_the_mean": interval(cost=sum),
        "factor_two": interval(twice=1),
    }
    assert_mistakes_are_caught(INTERVAL, wrong)


def test_intervals_that_are_no_number_of_steps_do_not_pass():
    for wrong in (interval(at_least=0), interval(kind=float)):
        report = run_check(INTERVAL, wrong)
        assert (report.status, report.mistake) == ("not yet", "")
    assert run_check(INTERVAL, lambda **measured: 1).earned == 0  # without a reason


# --- recovers


def seed_of(layer):
    return getattr(layer, "seed_generator", None)


def trainer(
    *, parts=("optimizer", "step", "seeds"), writers="chief", restores=(0, 1),
    order="train count save", distribute=True, in_scope=True,
    number_of=lambda step: int(step.numpy()),
):  # fmt: skip
    """An answer to `train`, made of the parts given; with the defaults it is right."""

    def train(strategy, build, batches_of, epochs, folder, every_steps, keep):
        index = strategy.cluster_resolver.task_id
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
        with strategy.scope() if in_scope else contextlib.nullcontext():
            model = build()
            optimizer = model.optimizer
            optimizer.build(model.trainable_variables)
            step = tf.Variable(0, dtype=tf.int64) if "count" in order else optimizer.iterations
        seeds = [seed.state for layer in model.layers if (seed := seed_of(layer))]
        whole = {"optimizer": optimizer, "step": step, "seeds": seeds}
        kept = {part: whole[part] for part in parts}
        checkpoint = tf.train.Checkpoint(weights=model.weights, **kept)
        newest = tf.train.latest_checkpoint(folder)
        if newest and index in restores:
            checkpoint.read(newest).expect_partial()
        saves = writers == "both" or index == 0
        manager = tf.train.CheckpointManager(checkpoint, folder, keep) if saves else None

        def replica_step(x, y):
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x, training=True)) / 4
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        train_on = tf.function(lambda batch: strategy.run(replica_step, args=batch))
        batches_each = 6
        begin = number_of(step)
        for epoch in range(begin // batches_each, epochs):
            done = max(0, begin - epoch * batches_each)
            data = batches_of(epoch).skip(done)
            for batch in strategy.experimental_distribute_dataset(data) if distribute else data:
                due = (number_of(step) + 1) % every_steps == 0
                for action in order.split():
                    if action == "train":
                        train_on(batch)
                    elif action == "count":
                        step.assign_add(1)
                    elif due and manager:
                        manager.save()
        return model

    return train


@functools.cache
def twice():
    """How a right answer trained without a kill, and with one of worker:1."""
    inputs = RECOVERS.inputs(1)
    assert inputs["killed"] == 1
    return two_lives.train_twice(trainer(), inputs)


def told_of(change):
    """The check's own outputs in place of a training: those of `twice`, changed."""
    return replace(RECOVERS, call=lambda answer, inputs: change(copy.deepcopy(twice())))


def test_other_right_pipelines_pass_whichever_worker_is_killed():
    assert_solution_passes(told_of(lambda runs: runs), trainer(), seeds=[1])
    assert RECOVERS.inputs(4)["killed"] == 0
    by_iterations = trainer(order="train save", parts=("optimizer", "seeds"))
    assert_solution_passes(RECOVERS, by_iterations, seeds=[4])


WRONG_FROM_THE_START = {
    "outside_scope": trainer(in_scope=False),
    "int_of_mirrored_variable": trainer(number_of=int),
    "never_trained": lambda strategy, build, *_: build(),
    "both_read_all": trainer(distribute=False),
}


@pytest.mark.parametrize("mistake", WRONG_FROM_THE_START)
def test_pipelines_that_train_wrongly_are_named(mistake):
    wrong = WRONG_FROM_THE_START[mistake]
    report = assert_mistake_is_caught(RECOVERS, wrong, mistake, seeds=[1])
    assert report.earned == 0 or mistake != "never_trained"


WRONG_AFTER_A_KILL = {
    "starts_again": trainer(restores=()),
    "repeats_step": trainer(order="train save count"),
    "weights_only": trainer(parts=("step", "seeds")),
    "seed_state_lost": trainer(parts=("optimizer", "step")),
    "both_write": trainer(writers="both"),
}
# Of 8: what the undisturbed run earns; and steps that the weights know already count twice.
EARNED = {"starts_again": 1, "repeats_step": 3.5}


@pytest.fixture
def trained_undisturbed_once(monkeypatch):
    """What is wrong only with a kill has, without one, the weights of a right answer."""
    train, undisturbed = two_lives._trained, twice()["undisturbed"]

    def trained(answer, inputs):
        return undisturbed if inputs["killed"] is None else train(answer, inputs)

    monkeypatch.setattr(two_lives, "_trained", trained)


@pytest.mark.parametrize("mistake", WRONG_AFTER_A_KILL)
def test_pipelines_that_do_not_recover_are_named(mistake, trained_undisturbed_once):
    report = assert_mistake_is_caught(RECOVERS, WRONG_AFTER_A_KILL[mistake], mistake, seeds=[1])
    assert report.earned == EARNED.get(mistake, report.earned)


def resumed_after(step):
    """What `twice` tells where the steps after the kill begin elsewhere."""

    def change(runs):
        (order,) = runs["undisturbed"]["lives"]
        runs["recovered"]["lives"][1:] = [order[step:]]
        return runs

    return change


def with_one_more_kept(runs):
    runs["recovered"]["workers"][0]["files"].append("ckpt-1.index")
    return runs


def test_what_a_training_leaves_names_the_mistake():
    wrong = {
        "restarts_epoch": resumed_after(6),
        "saves_at_other_steps": resumed_after(11),
        "keeps_all": with_one_more_kept,
    }
    for mistake, change in wrong.items():
        assert_mistake_is_caught(told_of(change), trainer(), mistake, seeds=[1])


def test_a_worker_that_alone_began_anew_is_stopped_and_named(trained_undisturbed_once):
    alone = trainer(restores=(0,))
    report = assert_mistake_is_caught(RECOVERS, alone, "only_chief_restores", seeds=[1])
    assert "worker:1 still waits here; worker:0 has finished" in report.failure.error


def test_a_pipeline_that_returns_no_model_is_told_so():
    told = "TypeError: the model was asked for; yours is None"
    assert_feedback_says(RECOVERS, {told: lambda *_: None})


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
