"""The checks of lesson 11: right answers pass, also where they are killed; wrong ones are named."""

import contextlib
import functools
import itertools
import math
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from distlab.checks.lesson_11_fault_tolerance import pipeline, two_lives
from distlab.checks.registry import checks_of
from distlab.checks.run_check import run_check
from distlab.coursework.fault_tolerance_runs import BATCHES, EPOCHS, run_and_kill
from tests.support.lesson_checks import (
    assert_mistake_is_caught,
    assert_solution_passes,
    load_solution,
    load_stub,
)
from tests.support.repository import ROOT

STEM = "11_fault_tolerance"
CHECKS = {check.name: check for check in checks_of(STEM)}
STATE, SAVE, NEWEST, RESUME, LEAVE, INTERVAL, RECOVERS = CHECKS.values()
solution = functools.cache(functools.partial(load_solution, STEM))


def test_the_loop_to_repair_saves_in_its_handler():
    assert_mistake_is_caught(LEAVE, load_stub(STEM)["run_until_told"], "saves_inside_handler")


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
            solution()["run_until_told"](9, do_step, lambda: saved.append(dict(state)))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (saved, left.value.code) == ([{"weight": 7.0, "step": 7}], 143)
    text = (ROOT / "lessons" / STEM / "lesson.py").read_text(encoding="utf-8")
    assert "# Weight 7, step 7: the step in which the signal came is finished" in text


# --- whole_state


def state_of(*parts, layers=slice(None)):
    def whole_state(model, optimizer, step):
        random = [layer for layer in model.layers if isinstance(layer, keras.layers.Dropout)]
        seeds = [layer.seed_generator.state for layer in random[layers]]
        there = {"model": model, "optimizer": optimizer, "step": step, "seeds": seeds}
        return tf.train.Checkpoint(**{name: there[name] for name in parts})

    return whole_state


def test_another_form_of_the_whole_state_passes():
    def by_variables(model, optimizer, step):
        seeds = {
            str(number): layer.seed_generator.state
            for number, layer in enumerate(model.layers)
            if hasattr(layer, "seed_generator")
        }
        variables = {"weights": model.weights, "slots": optimizer.variables}
        return tf.train.Checkpoint(**variables, place=step, **seeds)

    def by_names(model, optimizer, step):
        dropouts = [layer for layer in model.layers if "dropout" in layer.name]
        seeds = {layer.name: layer.seed_generator.state for layer in dropouts}
        return tf.train.Checkpoint(model=model, optimizer=optimizer, step=step, seeds=seeds)

    def of_all_variables(model, optimizer, step):
        return tf.train.Checkpoint(all=[*model.variables, *optimizer.variables, step])

    assert_solution_passes(STATE, by_variables, seeds=range(2))
    assert_solution_passes(STATE, by_names, seeds=range(2))
    assert_solution_passes(STATE, of_all_variables, seeds=range(2))
    whole = state_of("model", "optimizer", "step", "seeds")
    assert_solution_passes(STATE, whole, seeds=range(2))


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        (state_of("optimizer", "step", "seeds"), "no_model"),
        (lambda *_: tf.train.Checkpoint(), "no_model"),
        (state_of("model"), "weights_only"),
        (state_of("model", "step", "seeds"), "weights_only"),
        (state_of("model", "optimizer", "seeds"), "no_data_position"),
        (state_of("model", "optimizer", "step"), "seed_state_lost"),
        (
            state_of("model", "optimizer", "step", "seeds", layers=slice(1, None)),
            "seed_state_lost",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_states_that_lack_a_part_are_named(wrong, mistake):
    assert_mistake_is_caught(STATE, wrong, mistake)


def test_what_is_no_checkpoint_is_refused():
    report = run_check(STATE, lambda model, optimizer, step: model.get_weights())
    assert "a tf.train.Checkpoint was asked for" in report.failure.error


# --- save_atomically


def number_of(path):
    return int(path.stem.removeprefix("step-"))


def write_in_place(folder, step, data):
    (folder / f"step-{step}.ckpt").write_bytes(data)


def write_beside(folder, step, data):
    (folder / "unfinished").write_bytes(data)
    (folder / "unfinished").rename(folder / f"step-{step}.ckpt")


def write_a_copy(folder, step, data):
    (folder / "unfinished").write_bytes(data)
    shutil.copy(folder / "unfinished", folder / "copied")
    (folder / "copied").rename(folder / f"step-{step}.ckpt")


def saver(write=write_beside, *, key=number_of, removes="last"):
    def save(folder, step, data, keep):
        def remove(most):
            there = sorted(folder.glob("step-*.ckpt"), key=key)
            for path in there[: max(0, len(there) - most)]:
                path.unlink()

        if removes == "first":
            remove(keep - 1)
        write(folder, step, data)
        if removes == "last":
            remove(keep)

    return save


def test_a_temporary_file_of_python_s_own_passes():
    def write(folder, step, data):
        with tempfile.NamedTemporaryFile(dir=folder.parent, delete=False) as file:
            file.write(data)
        Path(file.name).replace(folder / f"step-{step}.ckpt")

    assert_solution_passes(SAVE, saver(write), seeds=range(2))
    assert_solution_passes(SAVE, saver(), seeds=range(2))


def test_other_ways_to_give_a_name_last_pass():
    def by_link(folder, step, data):
        (folder / "unfinished").write_bytes(data)
        os.link(folder / "unfinished", folder / f"step-{step}.ckpt")
        (folder / "unfinished").unlink()

    def what_a_kill_left_removed(folder, step, data):
        handle, name = tempfile.mkstemp(dir=folder, suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.rename(name, os.path.join(folder, f"step-{step}.ckpt"))  # noqa: PTH104, PTH118
        for path in folder.glob("*.part"):
            path.unlink()

    assert_solution_passes(SAVE, saver(by_link), seeds=range(2))
    assert_solution_passes(SAVE, saver(what_a_kill_left_removed), seeds=range(2))


def write_and_copy(folder, step, data):
    (folder / "unfinished").write_bytes(data)
    shutil.copyfile(folder / "unfinished", folder / f"step-{step}.ckpt")
    (folder / "unfinished").unlink()


def write_beside_as_checkpoint(folder, step, data):
    (folder / f"step-{step}-unfinished.ckpt").write_bytes(data)
    (folder / f"step-{step}-unfinished.ckpt").rename(folder / f"step-{step}.ckpt")


def write_as_text(folder, step, data):
    (folder / "unfinished").write_text(str(data))
    (folder / "unfinished").rename(folder / f"step-{step}.ckpt")


def write_another_name(folder, step, data):
    (folder / "unfinished").write_bytes(data)
    (folder / "unfinished").rename(folder / f"step-{step:05}.ckpt")


def write_anew(folder, step, data):
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        file.write(data)
    Path(file.name).rename(folder / f"step-{step}.ckpt")


def write_beside_by_step(folder, step, data):
    """What a kill leaves is written over where the same step comes again, and only there."""
    unfinished = folder / f"step-{step}.ckpt.unfinished"
    unfinished.write_bytes(data)
    unfinished.rename(folder / f"step-{step}.ckpt")


def keeping(how_many):
    """Keeps another number of checkpoints than it is asked to."""

    def save(folder, step, data, keep):
        saver()(folder, step, data, how_many(keep))

    return save


def removes_before_it_renames(folder, step, data, keep):
    (folder / "unfinished").write_bytes(data)
    for path in sorted(folder.glob("step-*.ckpt"), key=number_of)[: 1 - keep]:
        path.unlink()
    (folder / "unfinished").rename(folder / f"step-{step}.ckpt")


def removes_by_distance(folder, step, data, keep):
    write_beside(folder, step, data)
    (folder / f"step-{step - keep}.ckpt").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        (saver(write_in_place), "overwrites_in_place"),
        (lambda folder, step, data, keep: None, "nothing_saved"),
        (saver(write_as_text), "other_bytes"),
        (saver(write_another_name), "other_names"),
        (
            saver(write_beside_as_checkpoint, key=lambda path: int(path.stem.split("-")[1])),
            "unfinished_looks_finished",
        ),
        (saver(write_and_copy), "overwrites_in_place"),
        (saver(removes="first"), "removes_first"),
        (removes_before_it_renames, "removes_first"),
        (saver(removes="never"), "keeps_too_many"),
        (keeping(lambda keep: keep + 1), "keeps_too_many"),
        (removes_by_distance, "keeps_too_many"),
        (keeping(lambda keep: keep - 1), "keeps_too_few"),
        (saver(write_anew), "leaves_what_a_kill_left"),
        (saver(write_beside_by_step), "leaves_what_a_kill_left"),
        (saver(key=lambda path: path.name), "sorts_as_text"),
        (saver(write_a_copy), "leaves_unfinished"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_saves_are_named(wrong, mistake):
    assert_mistake_is_caught(SAVE, wrong, mistake)


def test_a_save_that_writes_nothing_does_not_pass():
    report = run_check(SAVE, lambda folder, step, data, keep: None)
    assert (report.status, report.earned) == ("not yet", 0)


def test_a_torn_checkpoint_costs_more_than_one_that_is_missing():
    torn = run_check(SAVE, saver(write_in_place))
    missing = run_check(SAVE, saver(removes="first"))
    assert torn.earned < missing.earned < SAVE.points


def test_what_a_kill_left_costs_points_where_the_next_save_is_of_a_different_step():
    report = run_check(SAVE, saver(write_beside_by_step))
    assert report.earned == SAVE.points - 0.5


# --- newest_checkpoint


def finder(pattern="step-*.ckpt", key=number_of):
    return lambda folder: max(folder.glob(pattern), key=key, default=None)


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        (
            finder("step-*", lambda path: int(path.name.split(".")[0].split("-")[1])),
            "picks_unfinished",
        ),
        (finder(key=lambda path: path.stat().st_mtime), "by_time"),
        (finder(key=str), "sorts_as_text"),
        (finder("*", number_of), "reads_every_name"),
        (lambda folder: sorted(folder.glob("step-*.ckpt"), key=number_of)[-1], "none_there"),
        (
            lambda folder: max(map(number_of, folder.glob("step-*.ckpt")), default=None),
            "number_for_path",
        ),
        (lambda folder: min(folder.glob("step-*.ckpt"), key=number_of, default=None), "oldest"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_newest_ones_are_named(wrong, mistake):
    assert_mistake_is_caught(NEWEST, wrong, mistake)


def test_the_name_alone_passes_as_well():
    def name_of_newest(folder):
        found = finder()(folder)
        return found and found.name

    assert_solution_passes(NEWEST, name_of_newest, seeds=range(3))
    assert_solution_passes(NEWEST, by_listing, seeds=range(3))


def by_listing(folder):
    """Another right answer, without `glob`."""
    names = [path.name for path in folder.iterdir() if path.suffix == ".ckpt"]
    steps = sorted(int(name[5:-5]) for name in names if name.startswith("step-"))
    return folder / f"step-{steps[-1]}.ckpt" if steps else None


def test_where_there_is_none_an_error_is_no_answer():
    report = run_check(NEWEST, lambda folder: max(folder.glob("step-*.ckpt"), key=number_of))
    assert (report.status, report.mistake) == ("error in your code", "none_there")


@pytest.mark.parametrize("answer", [None, [], 7])
def test_what_is_never_right_about_a_file_earns_nothing_for_an_empty_folder(answer):
    report = run_check(NEWEST, lambda folder: answer)
    assert (report.status, report.earned) == ("not yet", 0)


def test_an_empty_folder_counts_only_after_the_newest_is_found():
    assert run_check(NEWEST, finder(key=str)).earned == 0


def test_a_list_of_paths_is_shown_as_names():
    report = run_check(NEWEST, lambda folder: sorted(folder.glob("step-*.ckpt"))[-1:])
    assert "yours:    ['step-9.ckpt']" in repr(report)


# --- resume_in_a_loop


def looper(
    *, restore=True, done=None, order=("train", "count", "save"), every_epoch=False, skip_more=0
):
    def run(manager, step, batches_of, train_on, epochs, every_steps):
        if restore:
            manager.restore_or_initialize()
        begin = int(step.numpy())
        first, skipped = divmod(begin, len(batches_of(0)))
        skipped = skipped + (skip_more if begin else 0) if done is None else done
        if done == 0:
            step.assign(first * len(batches_of(0)))
        for epoch in range(first, epochs):
            skip = skipped if epoch == first or every_epoch else 0
            for batch in batches_of(epoch)[skip:]:
                due = (int(step.numpy()) + 1) % every_steps == 0
                for what in order:
                    if what == "train":
                        train_on(batch)
                    elif what == "count":
                        step.assign_add(1)
                    elif due:
                        manager.save()

    return run


def test_other_right_loops_pass():
    assert_solution_passes(RESUME, looper(), seeds=range(3))


def test_a_loop_over_steps_passes():
    def over_steps(manager, step, batches_of, train_on, epochs, every_steps):
        if manager.latest_checkpoint:
            manager.checkpoint.restore(manager.latest_checkpoint)
        batches = list(itertools.chain(*map(batches_of, range(epochs))))
        for number in range(int(step.numpy()), len(batches)):
            train_on(batches[number])
            step.assign(number + 1)
            if (number + 1) % every_steps == 0:
                manager.save()

    assert_solution_passes(RESUME, over_steps, seeds=range(3))


def test_a_save_in_finally_does_not_come_where_a_process_is_killed():
    def tidy(manager, step, batches_of, train_on, epochs, every_steps):
        try:
            looper()(manager, step, batches_of, train_on, epochs, every_steps)
        finally:
            manager.save()

    assert_solution_passes(RESUME, tidy, seeds=range(3))


def saving(is_due):
    """A loop over steps, with another idea of when to save."""

    def run(manager, step, batches_of, train_on, epochs, every_steps):
        manager.restore_or_initialize()
        batches = list(itertools.chain(*map(batches_of, range(epochs))))
        for number in range(int(step.numpy()), len(batches)):
            train_on(batches[number])
            step.assign_add(1)
            if is_due(number % len(batches_of(0)), every_steps):
                manager.save()

    return run


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        (looper(restore=False), "never_restores"),
        (saving(lambda batch, every: False), "never_restores"),
        (saving(lambda batch, every: True), "saves_at_other_steps"),
        (saving(lambda batch, every: batch == 6), "saves_at_other_steps"),
        (saving(lambda batch, every: (batch + 1) % every == 0), "saves_at_other_steps"),
        (looper(skip_more=1), "skips_the_next_batch"),
        (looper(done=0), "restarts_epoch"),
        (looper(order=("train", "save", "count")), "repeats_step"),
        (looper(order=("count", "save", "train")), "skips_a_step"),
        (looper(every_epoch=True), "skips_in_every_epoch"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_loops_are_named(wrong, mistake):
    assert_mistake_is_caught(RESUME, wrong, mistake)


@pytest.mark.parametrize(
    "wrong",
    [
        looper(restore=False),
        saving(lambda batch, every: False),
        lambda manager, step, *_: step.assign(21),
    ],
    ids=["restores nothing", "saves nothing", "trains nothing"],
)
def test_loops_that_do_not_go_on_earn_nothing(wrong):
    assert run_check(RESUME, wrong).earned == 0


def test_a_loop_without_an_end_is_ended():
    def endless(manager, step, batches_of, train_on, epochs, every_steps):
        while True:
            train_on(0)

    assert run_check(RESUME, endless).status == "not yet"


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
            if handler == "save":
                save()
                sys.exit(code)
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


def test_a_flag_in_place_of_a_list_passes():
    def with_flag(steps, do_step, save):
        told = False

        def hear(*_):
            nonlocal told
            told = True

        before = signal.signal(signal.SIGTERM, hear)
        try:
            for step in range(steps):
                do_step(step)
                if told:
                    save()
                    os._exit(128 + signal.SIGTERM)
        finally:
            signal.signal(signal.SIGTERM, before)

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

    def held_back(steps, do_step, save):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        for step in range(steps):
            do_step(step)
            if signal.SIGTERM in signal.sigpending():
                save()
                os._exit(143)

    for right in (with_flag, leaver(), by_the_signal_itself, held_back):
        assert_solution_passes(LEAVE, right, seeds=range(3))


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        (leaver(handler="save"), "saves_inside_handler"),
        (leaver(handler=None), "not_heard"),
        (leaver(leaves=False), "goes_on"),
        (
            lambda steps, do_step, save: (
                signal.signal(signal.SIGTERM, signal.SIG_IGN),
                list(map(do_step, range(steps))),
            )[2:],
            "goes_on",
        ),
        (leaver(looks="before"), "looks_too_late"),
        (leaver(saves=0), "leaves_without_saving"),
        (leaver(saves=2), "saves_more_than_once"),
        (leaver(handler="leave"), "leaves_in_mid_step"),
        (leaver(code=0), "exit_zero"),
        (leaver(code=1), "exit_zero"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_ways_to_leave_are_named(wrong, mistake):
    assert_mistake_is_caught(LEAVE, wrong, mistake)


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


@pytest.mark.parametrize("kind", [int, math.ceil])
def test_rounding_down_and_up_passes_as_well(kind):
    assert_solution_passes(INTERVAL, interval(kind=kind))


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        (interval(by_failures=False), "ignores_failure_rate"),
        (lambda **measured: 100, "ignores_failure_rate"),
        (interval(by_workers=False), "ignores_workers"),
        (interval(share=lambda watched, workers: 1 / workers), "ignores_workers"),
        (interval(share=lambda watched, workers: workers / watched), "upside_down"),
        (interval(secs=1), "hours_for_seconds"),
        (interval(secs=60), "hours_for_seconds"),
        (interval(per_step=lambda best, secs: best), "seconds_for_steps"),
        (interval(per_step=lambda best, secs: best * secs), "seconds_for_steps"),
        (interval(per_step=lambda best, secs: best**2 / secs), "no_root"),
        (interval(cost=sum), "not_the_mean"),
        (interval(cost=np.median), "not_the_mean"),
        (interval(twice=1), "factor_two"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_intervals_are_named(wrong, mistake):
    assert_mistake_is_caught(INTERVAL, wrong, mistake)


@pytest.mark.parametrize("wrong", [interval(at_least=0), interval(kind=float)])
def test_intervals_that_are_no_number_of_steps_do_not_pass(wrong):
    report = run_check(INTERVAL, wrong)
    assert report.status == "not yet"
    assert not report.mistake


def test_a_whole_number_without_a_reason_earns_nothing():
    assert run_check(INTERVAL, lambda **measured: 1).earned == 0


# --- recovers


def seed_of(layer):
    return getattr(layer, "seed_generator", None)


def trainer(
    *, parts=("optimizer", "step", "seeds"), skip="all", writers="chief", keep_all=False,
    restores=(0, 1), order=("train", "count", "save"), distribute=True, saves_each=False,
    in_scope=True, applies=True, number_of=lambda step: int(step.numpy()),
):  # fmt: skip
    """An answer to `train`, made of the parts given; with the defaults it is right."""

    def train(strategy, build, batches_of, epochs, folder, every_steps, keep):
        index = strategy.cluster_resolver.task_id
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
        with strategy.scope() if in_scope else contextlib.nullcontext():
            model = build()
            optimizer = model.optimizer
            optimizer.build(model.trainable_variables)
            step = tf.Variable(0, dtype=tf.int64)
        there = {
            "optimizer": {"optimizer": optimizer},
            "step": {"step": step},
            "seeds": {"seeds": [seed.state for layer in model.layers if (seed := seed_of(layer))]},
        }
        kept = {name: part for which in parts for name, part in there[which].items()}
        checkpoint = tf.train.Checkpoint(weights=model.weights, **kept)
        newest = tf.train.latest_checkpoint(folder)
        if newest and index in restores:
            checkpoint.read(newest).expect_partial()
        saves = writers == "both" or index == 0
        most = None if keep_all else keep
        manager = tf.train.CheckpointManager(checkpoint, folder, most) if saves else None

        def replica_step(x, y):
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x, training=True)) / 4
            gradients = tape.gradient(loss, model.trainable_variables)
            if applies:
                optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        train_on = tf.function(lambda batch: strategy.run(replica_step, args=batch))
        batches_each = 6
        begin = number_of(step)
        if skip == "none":
            begin = begin // batches_each * batches_each
            step.assign(begin)
        for epoch in range(begin // batches_each, epochs):
            done = max(0, begin - epoch * batches_each)
            data = batches_of(epoch).skip(done)
            for batch in strategy.experimental_distribute_dataset(data) if distribute else data:
                due = saves_each or (number_of(step) + 1) % every_steps == 0
                for what in order:
                    if what == "train":
                        train_on(batch)
                    elif what == "count":
                        step.assign_add(1)
                    elif due and manager:
                        manager.save()
        return model

    return train


def test_another_right_pipeline_passes():
    assert_solution_passes(RECOVERS, trainer(), seeds=[4])


def by_iterations(strategy, build, batches_of, epochs, folder, every_steps, keep):
    """The optimizer counts the steps, epochs are one data set, and no manager keeps the newest."""

    def number_in(path):
        return int(path.stem.removeprefix("step-"))

    def saved():
        return sorted(Path(folder).glob("step-*.index"), key=number_in)

    with strategy.scope():
        model = build()
        model.optimizer.build(model.trainable_variables)
    seeds = {layer.name: seed.state for layer in model.layers if (seed := seed_of(layer))}
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer, **seeds)
    if before := saved():
        checkpoint.read(str(before[-1].with_suffix("")))
    steps_done = model.optimizer.iterations
    data = functools.reduce(
        lambda one, other: one.concatenate(other), map(batches_of, range(epochs))
    )

    @tf.function
    def train_on(iterator):
        def replica_step(x, y):
            with tf.GradientTape() as tape:
                logits = model(x, training=True)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
                loss = tf.nn.compute_average_loss(losses)
            weights = model.trainable_variables
            model.optimizer.apply(tape.gradient(loss, weights), weights)

        strategy.run(replica_step, args=next(iterator))

    rest = data.skip(int(steps_done.numpy()))
    iterator = iter(strategy.experimental_distribute_dataset(rest))
    for _ in range(int(rest.cardinality())):
        train_on(iterator)
        done = int(steps_done.numpy())
        if strategy.cluster_resolver.task_id == 0 and done % every_steps == 0:
            checkpoint.write(str(Path(folder, f"step-{done}")))
            for old in saved()[:-keep]:
                for file in Path(folder).glob(f"{old.stem}.*"):
                    file.unlink()
    return model


def test_a_pipeline_that_counts_by_its_optimizer_and_keeps_files_itself_passes():
    assert_solution_passes(RECOVERS, by_iterations, seeds=[5])


@pytest.mark.parametrize(
    ("wrong", "mistake"),
    [
        (trainer(restores=()), "starts_again"),
        (trainer(skip="none"), "restarts_epoch"),
        (trainer(order=("train", "save", "count")), "repeats_step"),
        (trainer(parts=("step", "seeds")), "weights_only"),
        (trainer(parts=("optimizer", "step")), "seed_state_lost"),
        (trainer(writers="both"), "both_write"),
        (trainer(keep_all=True), "keeps_all"),
        (trainer(saves_each=True), "saves_at_other_steps"),
        (trainer(in_scope=False), "outside_scope"),
        (trainer(distribute=False), "both_read_all"),
        (trainer(number_of=int), "int_of_mirrored_variable"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_pipelines_that_do_not_recover_are_named(wrong, mistake):
    assert_mistake_is_caught(RECOVERS, wrong, mistake, seeds=[1])


@pytest.mark.parametrize(
    "wrong",
    [trainer(applies=False), lambda strategy, build, *_: build()],
    ids=["applies no gradient", "returns what it built"],
)
def test_pipelines_that_train_nothing_earn_nothing(wrong):
    report = assert_mistake_is_caught(RECOVERS, wrong, "never_trained", seeds=[1])
    assert report.earned == 0


@pytest.mark.parametrize(
    "wrong",
    [trainer(skip="none"), trainer(order=("train", "save", "count"))],
    ids=["epoch", "step"],
)
def test_steps_that_the_weights_know_already_do_not_count_as_done_once(wrong):
    assert run_check(RECOVERS, wrong, seeds=[1]).earned == 3.5


def test_a_pipeline_that_starts_again_earns_what_its_undisturbed_run_does():
    assert run_check(RECOVERS, trainer(restores=()), seeds=[1]).earned == 1


def test_a_pipeline_that_returns_no_model_is_told_so():
    report = run_check(RECOVERS, lambda *_: None, seeds=[1])
    assert report.failure.error == "TypeError: the model was asked for; yours is None"


def test_a_worker_that_alone_began_anew_is_stopped_and_named(monkeypatch):
    monkeypatch.setattr(two_lives, "_TIMEOUT_SECS", 15.0)
    alone = trainer(restores=(0,))
    report = assert_mistake_is_caught(RECOVERS, alone, "only_chief_restores", seeds=[1])
    assert "worker:1 still waits here; worker:0 has finished" in report.failure.error


def test_kills_come_in_the_middle_of_an_epoch_and_after_a_whole_save():
    for seed in range(50):
        inputs = RECOVERS.inputs(seed)
        saved = pipeline._saved(inputs)
        assert saved == 2 * inputs["every"]
        assert saved % pipeline._BATCHES > 1  # a restarted epoch is no repeated step
        assert saved + 2 <= inputs["killed in"] <= saved + inputs["every"]


def test_both_workers_are_killed_by_some_seeds():
    assert {RECOVERS.inputs(seed)["killed"] for seed in (1, 2, 3)} == {0, 1}


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


# --- the run of the report


def test_the_picture_of_a_training_that_begins_anew_shows_it():
    runs = run_and_kill(trainer(restores=()))
    assert runs.went_on_from == 0
    assert len(runs.undisturbed) == len(runs.resumed["your training"]) == EPOCHS * BATCHES
    assert not runs.equal_to_the_bit
