"""A check of lesson 11: a loop that resumes where it was."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.checks import Check, Close, Cost, Equal, Fault, Gate, Holds, Inputs, Observed, Plain

_BATCHES, _EPOCHS, _EVERY = 7, 3, 3
_STEPS = _BATCHES * _EPOCHS
_KEPT = 0.9  # of what was learned before, in each step: so the order of the batches matters


class _KilledError(BaseException):
    """What a learner's `except Exception` does not catch, as little as a kill."""


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    batches = np.arange(_STEPS).reshape(_EPOCHS, _BATCHES)  # each its own number
    return {
        "orders": [draw.permutation(epoch).tolist() for epoch in batches],
        # Not in a step that ends in a save: a loop that saves earlier has a different checkpoint.
        "kills": [int(draw.choice([10, 12, 13])), int(draw.choice([15, 16]))],
    }


def _call(run: Callable[..., Any], inputs: Inputs) -> Plain:
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


def _reference(
    given: Inputs,
    *,
    back_to: Callable[[int], int] = int,
    skips_in_each: bool = False,
    missing: int = 0,
) -> Plain:
    """Three lives: from the place that `back_to` makes of the saved one, each up to its kill."""
    order, lives, saved = _order(given), list[list[int]](), 0
    known: list[int] = []  # what the saved weights were trained on
    for end in (*given["kills"], _STEPS):
        begin = back_to(saved) if saved else 0
        known = known if begin else []
        skipped = saved % _BATCHES if skips_in_each else 0
        todo = [place for place in range(begin, _STEPS) if place % _BATCHES >= skipped]
        lives.append([order[place] for place in todo][: None if end == _STEPS else end - saved])
        newly = _saved_before(end) - saved
        known = known + (lives[-1] if end == _STEPS else lives[-1][: newly - missing])
        saved += newly
    weight = 0.0
    for batch in known:
        weight = _KEPT * weight + batch
    first, second, third = lives
    return {"first": first, "second": second, "third": third, "weight": weight, "step": _STEPS}


def _starts_over(given: Inputs, out: Plain) -> bool:
    return bool(out["second"][:1] == _order(given)[:1])


def _ends_well(given: Inputs, out: Plain) -> bool:
    right = _reference(given)
    return all(out[name] == right[name] for name in ("weight", "step"))


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
    inputs=_inputs,
    call=_call,
    reference=_reference,
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
        Observed(
            "saves_at_other_steps",
            lambda given, out: _ends_well(given, out) and not _starts_over(given, out),
        ).feedback(
            "Your training ends right, but it saves at different steps than asked for. So a "
            "kill costs more work, or saving costs more time. From which number follows when "
            "to save, if a new epoch must not change it?"
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
        Fault("skips_a_step", missing=1).feedback(
            "After the kill one batch is missing in the weights. It was counted and saved "
            "before it was trained on. What must be done before a step counts?"
        ),
        Fault("skips_the_next_batch", sees="second", back_to=lambda saved: saved + 1).feedback(
            "After the kill your training left out the next batch. With 9 steps done, the next "
            "batch is number 9, because they are counted from 0. Where do you add one?"
        ),
        Fault("skips_in_every_epoch", sees="second", skips_in_each=True).feedback(
            "Your training skipped batches in every epoch. Only the epoch in which the kill "
            "came has batches that are done. What should be skipped in the epochs after it?"
        ),
    ),
)
