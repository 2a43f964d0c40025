"""The checks of lesson 11: right answers pass, also where they are killed; wrong ones are named."""

import copy
import functools
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import tensorflow as tf

from distlab.course.checks.registry import checks_of
from distlab.course.checks.run_check import run_check
from distlab.course.lesson_11_fault_tolerance.checks import recovery
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
from tests.support.repository import lesson_text

STEM = "11_fault_tolerance"
STATE, SAVE, NEWEST, RESUME, LEAVE, INTERVAL, RECOVERS = checks_of(STEM)
edited = functools.partial(edited_solution, STEM)


# --- whole_state


def test_states_are_judged():
    def of_all_variables(model, optimizer, step):
        return tf.train.Checkpoint(all=[*model.variables, *optimizer.variables, step])

    assert_right_answers_pass(STATE, of_all_variables, seeds=[1])
    wrong = {
        "no_model": {"model=model, ": ""},
        "weights_only": {"optimizer=optimizer, ": ""},
        "no_data_position": {"step=step, ": ""},
        "seed_state_lost": {", seeds=seeds": ""},
    }
    wrong = edited_solutions(STEM, "whole_state", wrong)
    assert_mistakes_are_caught(STATE, wrong, seeds=[1])
    message = "a tf.train.Checkpoint was asked for"
    assert_feedback_says(STATE, {message: lambda model, optimizer, step: model.get_weights()})


# --- save_atomically


NAMES = 'folder / "unfinished"', 'unfinished.replace(folder / f"step-{step}.ckpt")'


def test_saves_are_judged_and_a_torn_checkpoint_costs_more_than_a_missing_one():
    beside, put = NAMES
    link = 'os.link(unfinished, folder / f"step-{step}.ckpt")\n    unfinished.unlink()'
    assert_right_answers_pass(SAVE, edited("save", {put: link}), seeds=[1])
    copy = '(folder / f"step-{step}.ckpt").write_bytes(unfinished.read_bytes())'
    remove = """
    for path in sorted(folder.glob("step-*.ckpt"), key=lambda path: int(path.stem[5:]))[: 1 - keep]:
        path.unlink()
"""
    wrong = {
        "unfinished_looks_finished": {
            beside: 'folder / f"step-{step}-unfinished.ckpt"',
            'path.stem.removeprefix("step-")': 'path.stem.split("-")[1]',
        },
        "overwrites_in_place": {put: f"{copy}\n    unfinished.unlink()"},
        "removes_first": {f"{beside}\n": f"{beside}{remove}"},
        "leaves_what_a_kill_left": {beside: 'folder / f"{step}.unfinished"'},
    }
    earned = {"overwrites_in_place": 2.5, "removes_first": 3, "leaves_what_a_kill_left": 3.5}
    wrong = edited_solutions(STEM, "save", wrong)
    assert_mistakes_are_caught(SAVE, wrong, earned=earned, seeds=[1])


# --- newest_checkpoint


def test_the_newest_checkpoints_are_judged():
    def by_listing(folder):
        steps = sorted(int(p.stem[5:]) for p in folder.iterdir() if p.suffix == ".ckpt")
        return f"step-{steps[-1]}.ckpt" if steps else None

    assert_right_answers_pass(NEWEST, by_listing)
    wrong = {"none_there": edited("newest", {", default=None": ""})}
    assert_mistakes_are_caught(NEWEST, wrong)
    names = {"yours:    ['step-9.ckpt']": lambda folder: sorted(folder.glob("step-*.ckpt"))[-1:]}
    assert_feedback_says(NEWEST, names)


# --- resume_in_a_loop


def test_loops_are_judged():
    def saves_in_finally(manager, *given):
        """Which does not come where a process is killed."""
        try:
            load_solution(STEM)["run_from_checkpoint"](manager, *given)
        finally:
            manager.save()

    assert_right_answers_pass(RESUME, saves_in_finally)
    without_restore = edited("run_from_checkpoint", {"manager.restore_or_initialize()": "pass"})
    assert_mistakes_are_caught(RESUME, {"never_restores": without_restore}, earned=0)

    def endless(manager, step, batches_of, train_on, epochs, every_steps):
        while True:
            train_on(0)

    for wrong in (endless, lambda manager, step, *_: step.assign(21)):
        report = run_check(RESUME, wrong, seeds=[1])
        assert (report.status, report.earned) == ("not yet", 0)


# --- leave_when_told


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


def test_ways_to_leave_are_judged():
    """To a shell, and to whoever waits for a container, the signal itself is 143 as well."""
    leave = "            sys.exit(143)\n"
    itself = """\
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
"""
    assert_right_answers_pass(LEAVE, edited("run_until_told", {leave: itself}), seeds=[1])
    wrong = {
        "saves_inside_handler": load_stub(STEM)["run_until_told"],
        "leaves_in_mid_step": edited("run_until_told", {"told.append(number)": "sys.exit(143)"}),
    }
    assert_mistakes_are_caught(LEAVE, wrong, seeds=[1])
    step = "        do_step(step)\n"
    looks_before = edited("run_until_told", {step: "", leave: leave + step})
    assert_mistakes_are_caught(LEAVE, {"looks_too_late": looks_before}, seeds=[3])


# --- save_interval


def test_intervals_are_judged():
    round_up = edited("save_every_steps", {"round(": "math.ceil("})
    assert_right_answers_pass(INTERVAL, round_up)
    of_one = edited("save_every_steps", {" * watched_workers / workers": ""})
    assert_mistakes_are_caught(INTERVAL, {"ignores_workers": of_one})
    for edits in ({"max(1, round(": "max(0, int("}, {"round(": "float("}):
        report = run_check(INTERVAL, edited("save_every_steps", edits))
        assert (report.status, report.mistake) == ("not yet", "")
    assert run_check(INTERVAL, lambda **measured: 1).earned == 0  # without a reason


# --- recovers


# The optimizer's own count is the place in the data.
BY_ITERATIONS = {
    "step = tf.Variable(0, dtype=tf.int64)": "step = model.optimizer.iterations",
    "            step.assign_add(1)\n": "",
}


@functools.cache
def by_iterations():
    return edited("train", BY_ITERATIONS)


def test_a_model_from_outside_the_scope_is_named():
    outside = edited("train", {"with strategy.scope():": "if strategy:"})
    assert_mistake_is_caught(RECOVERS, outside, "outside_scope", seeds=[1])


@functools.cache
def twice():
    """How a right answer trained without a kill, and with one of worker:1."""
    inputs = RECOVERS.inputs(1)
    assert inputs["killed"] == 1
    return RECOVERS.call(by_iterations(), inputs)


def judged(change=lambda runs: None):
    """The check, given what `twice` returns, changed, in place of a training."""

    def runs(answer, inputs):
        outputs = copy.deepcopy(twice())
        change(outputs)
        return outputs

    return replace(RECOVERS, call=runs)


def test_a_right_pipeline_passes():
    assert_right_answers_pass(judged(), by_iterations(), seeds=[1])


@pytest.fixture
def trained_undisturbed_once(monkeypatch):
    """What is wrong only with a kill has, without one, the weights of a right answer."""
    train, undisturbed = recovery._trained, twice()["undisturbed"]

    def trained(answer, inputs):
        return undisturbed if inputs["killed"] is None else train(answer, inputs)

    monkeypatch.setattr(recovery, "_trained", trained)


def test_a_state_that_is_lost_is_named(trained_undisturbed_once):
    parts = "model=model, optimizer=model.optimizer, step=step"
    whole = "whole_state(model, model.optimizer, step)"
    without_seeds = edited("train", {whole: f"tf.train.Checkpoint({parts})"})
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
        assert_mistake_is_caught(judged(change), by_iterations(), change.__name__, seeds=[1])

    def resumed_after(step):
        def change(runs):
            runs["recovered"]["lives"][1:] = [runs["undisturbed"]["lives"][0][step:]]

        return change

    def with_another_checkpoint(runs):
        runs["recovered"]["workers"][0]["files"].append("ckpt-1.index")

    def up_the_slope(runs):
        began = runs["undisturbed"]["workers"][0]["began"]
        for worker in (worker for run in runs.values() for worker in run["workers"]):
            worker["weights"] = 2 * began - worker["weights"]

    # Of 8 points: what the undisturbed run earns, and all but the steps, the count of files or
    # the loss.
    for change, earned in (
        (resumed_after(0), 1.5),
        (resumed_after(6), 7),
        (with_another_checkpoint, 7.5),
        (up_the_slope, 7.5),
    ):
        report = run_check(judged(change), by_iterations(), seeds=[1])
        assert (report.earned, report.mistake) == (earned, "")


def test_a_worker_that_alone_began_anew_is_stopped_and_named(trained_undisturbed_once, monkeypatch):
    monkeypatch.setattr(recovery, "_TIMEOUT_SECS", 10.0)
    newest = "if newest := tf.train.latest_checkpoint(folder):"
    is_chief = "strategy.cluster_resolver.task_id == 0"
    of_chief = f"if (newest := tf.train.latest_checkpoint(folder)) and {is_chief}:"
    first_epoch = {"range(epochs)": "range(int(step.numpy()) // 6, epochs)"}
    alone = edited("train", {newest: of_chief, **first_epoch})
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
