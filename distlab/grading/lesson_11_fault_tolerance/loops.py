"""A check of lesson 11: a loop that goes on where it was."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_close, expect_equal

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


def _lives(inputs: Inputs) -> list[list[int]]:
    order = [batch for epoch in inputs["orders"] for batch in epoch]
    first, second = inputs["kills"]
    begins = [0, _saved_before(first), _saved_before(second)]
    ends = [first, second, _STEPS]
    return [order[begin:end] for begin, end in zip(begins, ends, strict=True)]


def _resume_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    expected = _lives(inputs)
    names = ("before the first kill", "after the first kill", "after the second kill")
    return Verdict.of(
        *(
            expect_equal(f"trained on {name}", yours=yours, expected=right)
            for name, yours, right in zip(names, outputs["trained on"], expected, strict=True)
        ),
        expect_close(
            "the weight, as if nothing had happened",
            yours=outputs["weight"],
            expected=_weight(inputs),
            atol=0,
        ),
        expect_equal("the steps that count", yours=outputs["step"], expected=_STEPS),
    )


def _weight(inputs: Inputs) -> float:
    weight = 0.0
    for batch in (batch for epoch in inputs["orders"] for batch in epoch):
        weight = _KEPT * weight + batch
    return weight


def _ends_well(inputs: Inputs, outputs: Plain) -> bool:
    return bool(outputs["weight"] == _weight(inputs) and outputs["step"] == _STEPS)


def _goes_on_at(place: Callable[[int], int]) -> Callable[[Inputs, Plain], bool]:
    """Whether the second life begins at this step, given where the checkpoint is."""

    def when(inputs: Inputs, outputs: Plain) -> bool:
        order = [batch for epoch in inputs["orders"] for batch in epoch]
        first, second, _ = outputs["trained on"]
        begins = order.index(second[0])
        return bool(first) and begins == place(_saved_before(inputs["kills"][0]))

    return when


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
                "After a kill your training begins anew. Is something saved, is `step` counted in "
                "it, and is it restored before the first step?",
                when=_goes_on_at(lambda saved: 0),
            ),
            Mistake(
                "saves_at_other_steps",
                "In the end all is right, and your checkpoints are of other steps than those asked "
                "for: one after every `every_steps` steps, which do not begin anew in an epoch.",
                when=_ends_well,
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
                "skips_the_next_batch",
                "After a kill the next batch is left out. With 9 steps done, the next one is "
                "number 9: they are counted from 0.",
                when=_goes_on_at(lambda saved: saved + 1),
            ),
            Mistake(
                "skips_in_every_epoch",
                "The batches to be skipped are those of the first epoch after a restart only. The "
                "next ones begin at their beginning.",
                when=_goes_on_at(lambda saved: saved),
            ),
        ),
    ),
)
