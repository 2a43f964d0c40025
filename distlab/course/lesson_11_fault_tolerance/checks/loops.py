"""Checks of lesson 11: a loop that resumes, one that leaves when told, and how often to save."""

from __future__ import annotations

import contextlib
import json
import math
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from distlab.course.checks import (
    Check,
    Close,
    Cost,
    Equal,
    Fault,
    Gate,
    Holds,
    Inputs,
    Observed,
    Plain,
    Then,
)
from distlab.course.runs.process_calls import call_in_process

# --- resume_in_a_loop: a loop that resumes where it was, in the middle of an epoch

_BATCHES, _EPOCHS, _EVERY = 7, 3, 3
_STEPS = _BATCHES * _EPOCHS
_KEPT = 0.9  # of what was learned before, in each step: so the order of the batches matters


class _KilledError(BaseException):
    """Ends a call as a kill does: a learner's `except Exception` does not catch it."""


def _kills(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    batches = np.arange(_STEPS).reshape(_EPOCHS, _BATCHES)  # each its own number
    return {
        "orders": [draw.permutation(epoch).tolist() for epoch in batches],
        # Not in a step that ends in a save: a loop that saves earlier has a different checkpoint.
        "kills": [int(draw.choice([10, 12, 13])), int(draw.choice([15, 16]))],
    }


def _train_in_three_lives(run: Callable[..., Any], inputs: Inputs) -> Plain:
    with tempfile.TemporaryDirectory() as folder:
        first, second = inputs["kills"]
        kills = (first, second - _saved_before(first), None)
        lives = [_live(run, inputs, folder, kill) for kill in kills]
    names = ("first", "second", "third")
    trained_on = {name: life.pop("trained on") for name, life in zip(names, lives, strict=True)}
    return {**trained_on, **lives[-1]}


def _live(run: Callable[..., Any], inputs: Inputs, folder: str, kill: int | None) -> dict[str, Any]:
    """One process: it knows nothing but what is in the folder, and is killed after `kill` steps."""
    import tensorflow as tf

    is_over: list[bool] = []

    class Manager(tf.train.CheckpointManager):  # type: ignore[misc]
        """Saves nothing more when the process is killed: then no `finally` runs either."""

        def save(self, *args: Any, **kwargs: Any) -> Any:
            if is_over:
                raise _KilledError
            return super().save(*args, **kwargs)

    weight, step = tf.Variable(0.0, dtype=tf.float64), tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(weight=weight, step=step)
    manager = Manager(checkpoint, folder, max_to_keep=2)
    trained_on: list[int] = []

    def train_on(batch: Any) -> None:
        if is_over or len(trained_on) == (2 * _STEPS if kill is None else kill):
            is_over.append(True)
            raise _KilledError
        trained_on.append(int(batch))
        weight.assign(_KEPT * weight + float(batch))

    def batches_of(epoch: int) -> list[int]:
        return list(inputs["orders"][epoch])

    with contextlib.suppress(_KilledError):
        run(manager, step, batches_of, train_on, _EPOCHS, _EVERY)
    return {"trained on": trained_on, "weight": float(weight), "step": int(step.numpy())}


def _saved_before(kill: int) -> int:
    return kill // _EVERY * _EVERY


def _order(given: Inputs) -> list[int]:
    return [batch for epoch in given["orders"] for batch in epoch]


def _three_lives(
    given: Inputs, *, back_to: Callable[[int], int] = int, skips_in_each: bool = False
) -> Plain:
    """Each life begins where `back_to` puts what was saved, and ends with its kill."""
    order, lives, saved = _order(given), list[list[int]](), 0
    learned: list[int] = []  # what the saved weights were trained on
    for end in (*given["kills"], _STEPS):
        begin = back_to(saved) if saved else 0
        skipped = saved % _BATCHES if skips_in_each else 0
        todo = [place for place in range(begin, _STEPS) if place % _BATCHES >= skipped]
        life = [order[place] for place in todo]
        lives.append(life if end == _STEPS else life[: end - saved])
        newly = len(life) if end == _STEPS else _saved_before(end) - saved
        learned = (learned if begin else []) + life[:newly]
        saved += newly
    weight = 0.0
    for batch in learned:
        weight = _KEPT * weight + batch
    first, second, third = lives
    return {"first": first, "second": second, "third": third, "weight": weight, "step": _STEPS}


def _starts_over(given: Inputs, out: Plain) -> bool:
    return bool(out["second"][:1] == _order(given)[:1])


RESUME = Check(
    name="resume_in_a_loop",
    function="run_from_checkpoint",
    title="Resume in the middle of an epoch",
    question="Which batch does your loop take first after a restart?",
    direction=(
        "Everything follows from the restored step: the epoch, the batches already done in it, and "
        "when to save."
    ),
    cost=Cost.TENSORFLOW,
    inputs=_kills,
    call=_train_in_three_lives,
    reference=_three_lives,
    criteria=(
        Gate(
            Holds(
                "killed and started again, it resumes",
                lambda given, out: out["second"] and not _starts_over(given, out),
                lambda given, out: (
                    "after the kill your loop trained on the very first batch again"
                    if out["second"]
                    else "after the kill your loop trained on no batch"
                ),
            )
        ),
        Equal("first", "trained on before the first kill", points=0.5),
        Equal("second", "trained on after the first kill"),
        Equal("third", "trained on after the second kill"),
        Close("weight", "the weight, as if nothing had happened", atol=0),
        Equal("step", "the steps that count", points=0.5),
    ),
    hint="Call manager.restore_or_initialize() first. Then `step // batches` is the epoch "
    "and `step % batches` the batches of it that are done. In each step: train, count, "
    "and then save if it is due.",
    revisit="A training run that can be stopped",
    mistakes=(
        Fault("never_restores", sees="second", back_to=lambda saved: 0).feedback(
            "After the kill your training started from the beginning. So all work before the "
            "kill was lost. Is a checkpoint saved, does it hold the counted `step`, and do you "
            "restore it before the first step?"
        ),
        Fault(
            "restarts_epoch", sees="second", back_to=lambda saved: saved // _BATCHES * _BATCHES
        ).feedback(
            "After the kill your training went back to the first batch of the epoch. So "
            "batches that the weights already know were trained on twice. How many batches of "
            "this epoch does `step` say are done?"
        ),
        Fault("repeats_step", sees="second", back_to=lambda saved: saved - 1).feedback(
            "After the kill one batch was trained on twice. It was in the saved weights, but "
            "not yet in the saved count. In which order do you count and save?"
        ),
        Fault("skips_in_every_epoch", sees="second", skips_in_each=True).feedback(
            "Your training skipped batches in every epoch. Only the epoch in which the kill "
            "came has batches that are done. What should be skipped in the epochs after it?"
        ),
    ),
)

# --- leave_when_told: a loop that finishes its step when SIGTERM comes, saves and leaves


def _signals(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    steps = int(draw.integers(6, 12))
    # Sometimes in the last step, after which no step looks at the note.
    return {"steps": steps, "told in": int(draw.integers(1, steps - 2)) if seed % 3 else steps - 1}


def _tell_and_leave_alone(run: Callable[..., Any], inputs: Inputs) -> Plain:
    told = _run_in_process(run, inputs["steps"], inputs["told in"])
    never = _run_in_process(run, inputs["steps"], -1)
    return {
        **told,
        # A process that saves and then ends by the signal itself has 143 in a shell, too.
        "code": 143 if told["code"] == -signal.SIGTERM and told["saved"] else told["code"],
        "never told": [*never["halves"], never["code"]],
        "saved then": never["saved"],
    }


def _run_in_process(run: Callable[..., Any], steps: int, told_in: int) -> Plain:
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder, "note")
        ended = call_in_process(run, steps, told_in, str(note), job=_tell)
        return {"code": ended.code, **json.loads(note.read_text())}


def _tell(run: Callable[..., Any], steps: int, told_in: int, note: str) -> None:
    """In a process of its own: each step adds to both halves, the signal comes in between."""
    halves, saved = [0, 0], list[list[int]]()

    def write() -> None:
        Path(note).write_text(json.dumps({"halves": halves, "saved": saved}))

    def do_step(step: int) -> None:
        halves[0] += 1
        if step == told_in:
            signal.raise_signal(signal.SIGTERM)
        halves[1] += 1
        write()

    def save() -> None:
        saved.append(list(halves))
        write()

    write()
    run(steps, do_step, save)


def _left(given: Inputs, *, code: int = 143) -> Plain:
    done = given["told in"] + 1
    return {
        "halves": [done, done],
        "saved": [[done, done]],
        "code": code,
        "never told": [given["steps"], given["steps"], 0],
        "saved then": [],
    }


def _looks_too_late(given: Inputs, out: Plain) -> bool:
    """Whether a signal in the last step changed nothing."""
    is_last, is_done = given["told in"] == given["steps"] - 1, out["halves"][1] == given["steps"]
    return bool(is_last and is_done and not out["saved"] and out["code"] != 143)


LEAVE = Check(
    name="leave_when_told",
    function="run_until_told",
    title="Leave when told",
    question="What is half done when the signal arrives?",
    direction=(
        "Separate two moments: when the process hears the signal, and when a step is complete."
    ),
    cost=Cost.TENSORFLOW,  # it needs none, and takes as long: each run is a process
    inputs=_signals,
    call=_tell_and_leave_alone,
    reference=_left,
    criteria=(
        Equal(
            "halves",
            "a signal in the middle of a step: that step is finished, and no later one",
            points=0.5,
        ),
        Equal("saved", "saved once, and a whole step"),
        Equal("code", "the exit code", points=0.5),
        Then(
            Equal(
                "never told", "without a signal: all steps are done, and exit code 0", points=0.5
            ),
            Holds(
                "without a signal: nothing is saved",
                lambda given, out: not out["saved then"],
                "`save` was called although no signal had come",
                points=0.5,
            ),
            after=any,  # a loop that cannot leave earns nothing for its steps
        ),
    ),
    hint="Let the handler append to a list, and nothing more. After each step, if the list "
    "is not empty: save, then sys.exit(143).",
    revisit="Asked to leave: SIGTERM",
    mistakes=(
        Observed(
            "saves_inside_handler",
            lambda given, out: any(begun != finished for begun, finished in out["saved"]),
        ).feedback(
            "You saved half of a step: the handler ran in the middle of one, between two of "
            "its lines. A run that resumes from there trains that step twice. Where in your "
            "loop is a step whole?"
        ),
        Observed("looks_too_late", _looks_too_late).feedback(
            "The signal came in the last step, and your loop ended as if nothing had happened. "
            "You look for the note before each step, and there was no next step. Where would "
            "you look so that the last step counts, too?"
        ),
        Observed(
            "leaves_in_mid_step", lambda given, out: out["halves"][1] <= given["told in"]
        ).feedback(
            "Your process left in the middle of a step, without a save. So all work since the "
            "last checkpoint is lost. What may a handler do that does not stop the step?"
        ),
        Fault("exit_zero", code=0)
        .or_with(code=1)
        .feedback(
            "You saved, and left with the exit code 0 or 1. A supervisor reads 0 as finished "
            "and 1 as a bug. Which code says that the process was asked to stop?"
        ),
    ),
)


# --- save_interval: how often to save, from what was measured

_CHANGES = {
    "as measured": {},
    "four times as many failures": {"failures": 4},
    "four times as many workers": {"workers": 4},
    "four times as many workers watched": {"watched_workers": 4},
}
_QUICK = "steps that take longer"


def _interval_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    save_secs = draw.uniform(4, 40, size=5) / [10, 1, 1, 1, 1]  # one is quick: no save is the mean
    return {
        "save_secs": [round(float(secs), 2) for secs in save_secs],
        "step_secs": round(float(draw.uniform(0.2, 1.5)), 2),
        "failures": int(draw.integers(3, 12)),
        "watched_hours": int(draw.integers(100, 900)),
        "watched_workers": int(draw.integers(2, 9)),
        "workers": int(draw.integers(10, 40)),
    }


def _cases(given: Inputs) -> dict[str, Inputs]:
    cases = {
        case: {name: value * factors.get(name, 1) for name, value in given.items()}
        for case, factors in _CHANGES.items()
    }
    return {**cases, _QUICK: {**given, "step_secs": 1e6}}


def _interval_reference(
    given: Inputs,
    *,
    secs_per_hour: float = 3600,
    twice: int = 2,
    in_steps: Callable[[float, float], float] = lambda best, step_secs: best / step_secs,
) -> Plain:
    def steps(case: Inputs) -> int:
        hours = case["watched_hours"] / case["failures"]
        between = secs_per_hour * hours * case["watched_workers"] / case["workers"]
        best = math.sqrt(twice * float(np.mean(case["save_secs"])) * between)
        return max(1, round(in_steps(best, case["step_secs"])))

    return {name: steps(case) for name, case in _cases(given).items()}


class _Steps(Close):
    """A number of steps, rounded up or down."""

    def agrees(self, yours: Plain, other: Plain) -> bool:
        """Whether two numbers are one apart at most; for Close 1 is 100 % as well."""
        return bool(abs(yours - other) <= self.atol)


def _not_whole(out: Plain) -> list[Plain]:
    return [steps for steps in out.values() if not isinstance(steps, int)]


def _ignores_workers(given: Inputs, out: Plain) -> bool:
    measured, _, *of_workers = (out[case] for case in _CHANGES)
    return bool(measured > 1 and any(abs(steps - measured) <= 1 for steps in of_workers))


INTERVAL = Check(
    name="save_interval",
    function="save_every_steps",
    title="How often to save",
    question=(
        "What happens to the interval if a save takes four times as long, and if failures are four "
        "times as rare?"
    ),
    direction=(
        "Take the formula of the lesson apart: where do the cost of a save and the time between "
        "failures come from in your numbers?"
    ),
    cost=Cost.PURE,
    inputs=_interval_inputs,
    call=lambda answer, inputs: {n: answer(**case) for n, case in _cases(inputs).items()},
    reference=_interval_reference,
    criteria=(
        *(_Steps(case, case, points=0.5, atol=1) for case in _CHANGES),
        Then(
            Equal(_QUICK, "at least every step", points=0.5),
            Holds(
                "whole numbers",
                lambda given, out: not _not_whole(out),
                lambda given, out: f"a number of steps is an int; yours is {_not_whole(out)[0]!r}",
                points=0.5,
            ),
            after=any,  # a number without a reason may be a whole one, too
        ),
    ),
    hint="C is the mean of save_secs. M is watched_hours * 3600 / failures * "
    "watched_workers / workers. Then sqrt(2 * C * M) / step_secs, rounded, at least 1.",
    revisit="Extra: How often to save",
    mistakes=(
        Observed("ignores_workers", _ignores_workers).feedback(
            "Your answer does not use how many machines were watched, or how many will train. "
            "Each machine can fail, so twice as many fail twice as often. How do you get from "
            "the watched machines to yours?"
        ),
        Fault("hours_for_seconds", secs_per_hour=1)
        .or_with(secs_per_hour=60)
        .feedback(
            "You mixed hours and seconds: the watched time is given in hours, the cost of a "
            "save in seconds. So your interval is too short. Into which unit must both go?"
        ),
        Fault("seconds_for_steps", sees="as measured", in_steps=lambda best, _: best)
        .or_with(in_steps=lambda best, step_secs: best * step_secs)
        .feedback(
            "Your interval is right in seconds, but you returned it as a number of steps. If a "
            "step takes `step_secs`, how many steps fit into the interval?"
        ),
        Fault("factor_two", twice=1).feedback(
            "You left out the 2 under the root. A failure comes on average in the middle of an "
            "interval, so how much of the interval does it cost?"
        ),
    ),
)
