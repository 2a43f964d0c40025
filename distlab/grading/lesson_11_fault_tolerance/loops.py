"""Two checks of lesson 11: a loop that goes on where it was, and one that leaves when told."""

from __future__ import annotations

import contextlib
import json
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_close, expect_equal, expect_true
from distlab.grading.processes import call_in_process

# --- resume_in_a_loop -----------------------------------------------------------------------

_BATCHES, _EPOCHS, _EVERY = 7, 3, 3
_STEPS = _BATCHES * _EPOCHS
_KEPT = 0.9  # of what was learned before, in each step: so the order of the batches matters


class _KilledError(BaseException):
    """What a learner's `except Exception` does not catch, as little as a kill."""


def _resume_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    batches = np.arange(_STEPS).reshape(_EPOCHS, _BATCHES)  # each its own number
    return {
        "orders": [draw.permutation(epoch).tolist() for epoch in batches],
        # Not in the step at whose end it saves: who saves earlier has another checkpoint.
        "kills": [int(draw.choice([10, 12, 13])), int(draw.choice([15, 16]))],
    }


def _resume_call(run: Callable[..., Any], inputs: Inputs) -> Plain:
    with tempfile.TemporaryDirectory() as folder:
        first, second = inputs["kills"]
        kills = (first, second - _saved_before(first), None)
        lives = [_live(run, inputs, folder, kill) for kill in kills]
    return {"trained on": [life.pop("trained on") for life in lives], **lives[-1]}


def _live(run: Callable[..., Any], inputs: Inputs, folder: str, kill: int | None) -> dict[str, Any]:
    """One process: it knows nothing but what is in the folder, and is killed after `kill` steps."""
    import tensorflow as tf

    weight, step = tf.Variable(0.0, dtype=tf.float64), tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(weight=weight, step=step)
    manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=2)
    trained_on: list[int] = []

    def train_on(batch: Any) -> None:
        if len(trained_on) == (2 * _STEPS if kill is None else kill):
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


def _lives(inputs: Inputs) -> list[list[int]]:
    order = [batch for epoch in inputs["orders"] for batch in epoch]
    first, second = inputs["kills"]
    begins = [0, _saved_before(first), _saved_before(second)]
    ends = [first, second, _STEPS]
    return [order[begin:end] for begin, end in zip(begins, ends, strict=True)]


def _resume_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    expected = _lives(inputs)
    weight = 0.0
    for batch in (batch for epoch in inputs["orders"] for batch in epoch):
        weight = _KEPT * weight + batch
    names = ("before the first kill", "after the first kill", "after the second kill")
    return Verdict.of(
        *(
            expect_equal(f"trained on {name}", yours=yours, expected=right)
            for name, yours, right in zip(names, outputs["trained on"], expected, strict=True)
        ),
        expect_close(
            "the weight, as nothing had happened", yours=outputs["weight"], expected=weight, atol=0
        ),
        expect_equal("the steps that count", yours=outputs["step"], expected=_STEPS),
    )


def _goes_on_at(place: Callable[[int], int]) -> Callable[[Inputs, Plain], bool]:
    """Whether the second life begins at this step, given where the checkpoint is."""

    def when(inputs: Inputs, outputs: Plain) -> bool:
        order = [batch for epoch in inputs["orders"] for batch in epoch]
        first, second, _ = outputs["trained on"]
        begins = order.index(second[0])
        return bool(first) and begins == place(_saved_before(inputs["kills"][0]))

    return when


# --- leave_when_told ------------------------------------------------------------------------


def _leave_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    steps = int(draw.integers(6, 12))
    return {"steps": steps, "told in": int(draw.integers(1, steps - 2))}


def _leave_call(run: Callable[..., Any], inputs: Inputs) -> Plain:
    return {
        "told": _run(run, inputs["steps"], inputs["told in"]),
        "never told": _run(run, inputs["steps"], -1),
    }


def _run(run: Callable[..., Any], steps: int, told_in: int) -> Plain:
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


def _leave_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    done = inputs["told in"] + 1
    told, never = outputs["told"], outputs["never told"]
    when_told = (
        expect_equal(
            "told in the middle of a step: that step is done, and no other",
            yours=told["halves"],
            expected=[done, done],
        ),
        expect_equal(
            "saved once, and a whole step", yours=told["saved"], expected=[[done, done]], weight=2
        ),
        expect_equal("the exit code", yours=told["code"], expected=143),
    )
    if not any(criterion.passed for criterion in when_told):
        return Verdict.of(*when_told)  # a loop that cannot leave earns nothing for its steps
    return Verdict.of(
        *when_told,
        expect_equal(
            "never told: all steps are done, and exit code 0",
            yours=[*never["halves"], never["code"]],
            expected=[inputs["steps"], inputs["steps"], 0],
        ),
        expect_true(
            "never told: nothing is saved",
            not never["saved"],
            message="`save` was called although nobody told the process to leave",
        ),
    )


LOOP_CHECKS = (
    Check(
        name="resume_in_a_loop",
        function="run_from_checkpoint",
        title="Go on in the middle of an epoch",
        points=4,
        inputs=_resume_inputs,
        call=_resume_call,
        judge=_resume_judge,
        hint="manager.restore_or_initialize() first. Then int(step) says all: // gives the epoch, "
        "% the batches of it that are done, divided by the batches of an epoch. Count a step when "
        "it is trained, and save when it is counted.",
        revisit="A training that can be stopped",
        mistakes=(
            Mistake(
                "never_restores",
                "After a kill your training begins anew: nothing was restored.",
                when=_goes_on_at(lambda saved: 0),
            ),
            Mistake(
                "restarts_epoch",
                "After a kill your training goes back to the first batch of the epoch: batches "
                "that the weights know already are trained on twice.",
                when=_goes_on_at(lambda saved: saved // _BATCHES * _BATCHES),
            ),
            Mistake(
                "repeats_step",
                "After a kill one batch is trained on twice: it was in the weights, and not yet in "
                "the count, when both were saved. Count first, then save.",
                when=_goes_on_at(lambda saved: saved - 1),
            ),
            Mistake(
                "skips_a_step",
                "After a kill one batch is missing in the weights: it was counted, and not yet "
                "trained on, when both were saved. Save when both are done.",
                when=lambda inputs, out: out["trained on"] == _lives(inputs),
            ),
            Mistake(
                "skips_in_every_epoch",
                "The batches to be skipped are those of the first epoch after a restart only. The "
                "next ones begin at their beginning.",
                when=_goes_on_at(lambda saved: saved),
            ),
        ),
    ),
    Check(
        name="leave_when_told",
        function="run_until_told",
        title="Leave when told",
        points=3,
        inputs=_leave_inputs,
        call=_leave_call,
        judge=_leave_judge,
        hint="Let the handler append to a list, and nothing else. After each step look at it. "
        "If there is something in it: save, then sys.exit(143).",
        revisit="Asked to leave: SIGTERM",
        mistakes=(
            Mistake(
                "saves_inside_handler",
                "You save in the handler, and it runs in the middle of a step: half of the step is "
                "saved. Take a note there, and save where a step is whole.",
                when=lambda _, out: any(one != two for one, two in out["told"]["saved"]),
            ),
            Mistake(
                "not_heard",
                "Nobody listens to the signal, so the system ends the process, without a save.",
                when=lambda _, out: out["told"]["code"] == -signal.SIGTERM,
            ),
            Mistake(
                "goes_on",
                "The signal is heard, and training goes on: after some seconds comes SIGKILL.",
                when=lambda inputs, out: out["told"]["halves"][1] > inputs["told in"] + 1,
            ),
            Mistake(
                "leaves_in_mid_step",
                "The process leaves in the middle of a step, without a save.",
                when=lambda _, out: not out["told"]["saved"],
            ),
            Mistake(
                "exit_zero",
                "It is saved, but the exit code says that the training is done, or that it failed. "
                "143 says: start me again.",
                when=lambda _, out: out["told"]["code"] != 143,
            ),
        ),
    ),
)
