"""The last check of lesson 11: a pipeline that recovers, on two workers of which one is killed."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.clusters import WORKERS
from distlab.grading.comparing import expect_close, expect_equal, expect_true, same_plain
from distlab.grading.lesson_11_fault_tolerance.two_lives import (
    BATCH,
    EPOCHS,
    EXAMPLES,
    KEEP,
    train_twice,
)

_BATCHES = EXAMPLES // BATCH
_STEPS = EPOCHS * _BATCHES


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    every = int(draw.choice([4, 5]))
    saved = 2 * every  # in the middle of the second epoch
    # A step is whole on all workers when they are in the next: so the save is, two steps later.
    return {
        "x": draw.normal(size=(EXAMPLES, 4)).astype("float32"),
        "y": draw.integers(0, 3, size=EXAMPLES).astype("int32"),
        "orders": [draw.permutation(EXAMPLES).tolist() for _ in range(EPOCHS)],
        "every": every,
        "killed": seed % WORKERS,
        "killed in": int(draw.integers(saved + 2, saved + every + 1)),
        "seed": int(draw.integers(1000)),
    }


def _order(inputs: Inputs) -> list[list[int]]:
    """The examples of each step."""
    return [
        sorted(order[start : start + BATCH])
        for order in inputs["orders"]
        for start in range(0, EXAMPLES, BATCH)
    ]


def _saved(inputs: Inputs) -> int:
    """Steps that the last checkpoint before the kill holds."""
    return int((inputs["killed in"] - 1) // inputs["every"] * inputs["every"])


def _begins(inputs: Inputs, outputs: Plain) -> int:
    """The step that is done first after the kill, or -1 if no step has these examples."""
    lives = outputs["recovered"]["lives"]
    if len(lives) < 2 or not lives[1]:
        return -1
    order = _order(inputs)
    return order.index(lives[1][0]) if lives[1][0] in order else -1


def _judge(inputs: Inputs, outputs: Plain) -> Verdict:
    order, begins, saved = _order(inputs), _begins(inputs, outputs), _saved(inputs)
    calm, recovered = outputs["undisturbed"], outputs["recovered"]
    chief, calm_chief = recovered["workers"][0], calm["workers"][0]
    first, *others = recovered["lives"]
    lived = [*first[: max(begins, 0)], *itertools.chain(*others)]
    return Verdict.of(
        expect_true(
            "undisturbed: the workers share each batch, and each example comes once an epoch",
            calm["lives"] == [order],
            message=f"{_STEPS} steps of {BATCH} examples were asked for, in their order",
        ),
        expect_true(
            "with a kill: of what counts in the end, each example comes once an epoch",
            lived == order,
            message=_accounting(begins, saved),
            weight=2,
        ),
        expect_true(
            "it goes on behind the last checkpoint, one after every so many steps",
            begins == saved,
            message=_accounting(begins, saved),
        ),
        expect_close(
            "the weights at the end: to the bit those of the undisturbed run",
            yours=chief["weights"],
            expected=calm_chief["weights"],
            atol=0,
            weight=3,
        ),
        expect_true(
            "both workers have the same weights",
            all(same_plain(chief["weights"], one["weights"]) for one in recovered["workers"]),
            message="their weights differ",
        ),
        expect_equal(
            "what worker:1 has written in the folder",
            yours=[worker["wrote"] for worker in (calm["workers"][1], recovered["workers"][1])],
            expected=[[], []],
        ),
        expect_equal("checkpoints in the folder at the end", yours=_count(chief), expected=KEEP),
        expect_equal("other files in the folder", yours=_others(chief), expected=[]),
    )


def _accounting(begins: int, saved: int) -> str:
    if begins < 0:
        return "after the kill no batch of the data set was trained on"
    return (
        f"the checkpoint holds {saved} steps; after the kill it went on behind step {begins}"
        if begins != saved
        else "the steps after the kill are not those of the data set, in their order"
    )


def _count(chief: Plain) -> int:
    return sum(name.endswith(".index") for name in chief["files"])


def _others(chief: Plain) -> list[str]:
    prefixes = [name.removesuffix(".index") for name in chief["files"] if name.endswith(".index")]
    return [
        name
        for name in chief["files"]
        if name != "checkpoint" and name.partition(".")[0] not in prefixes
    ]


def _recovers_from(place: Callable[[int], int]) -> Callable[[Inputs, Plain], bool]:
    return lambda inputs, out: _begins(inputs, out) == place(_saved(inputs))


def _differs(name: str) -> Callable[[Inputs, Plain], bool]:
    def when(_: Inputs, out: Plain) -> bool:
        pairs = zip(out["recovered"]["workers"], out["undisturbed"]["workers"], strict=True)
        return not all(same_plain(one[name], other[name]) for one, other in pairs)

    return when


PIPELINE_CHECKS = (
    Check(
        name="recovers",
        function="train",
        title="A pipeline that recovers",
        points=8,
        inputs=_inputs,
        call=train_twice,
        judge=_judge,
        hint="Put your tasks together. In the scope: the model, and its optimizer built. Then a "
        "checkpoint of all four parts; all workers restore tf.train.latest_checkpoint(folder), and "
        "only the chief has a CheckpointManager. Distribute `batches_of(epoch).skip(done)`.",
        revisit="Kill a worker",
        mistakes=(
            Mistake(
                "only_chief_restores",
                "After the kill one worker went on, and the other began anew. One has more steps "
                "than the other, and waits. All restore the same checkpoint; only one writes it.",
                error=r"worker:1 still waits here; worker:0 has finished",
            ),
            Mistake(
                "outside_scope",
                "The model was made outside of the strategy's scope, and its step runs inside: "
                "call `build` in `with strategy.scope():`.",
                error=r"^(AssertionError\W*)+$|Mixing different tf.distribute.Strategy objects",
            ),
            Mistake(
                "both_read_all",
                "Each worker trains on the whole of each batch. Distribute the data set.",
                when=lambda inputs, out: (
                    [sorted(2 * step) for step in _order(inputs)] == out["undisturbed"]["lives"][0]
                ),
            ),
            Mistake(
                "starts_again",
                "After the kill your training begins anew. Does it look for a checkpoint before "
                "its first step, and is there one in the folder?",
                when=_recovers_from(lambda saved: 0),
            ),
            Mistake(
                "restarts_epoch",
                "After the kill your training goes back to the first batch of the epoch, with "
                "weights that know these batches already.",
                when=_recovers_from(lambda saved: saved // _BATCHES * _BATCHES),
            ),
            Mistake(
                "repeats_step",
                "After the kill one batch is trained on twice: it was saved before it was counted.",
                when=_recovers_from(lambda saved: saved - 1),
            ),
            Mistake(
                "saves_at_other_steps",
                "After the kill it does not go on behind the step whose checkpoint was asked for. "
                "Save after every `every_steps` steps, and at no other time.",
                when=lambda inputs, out: (
                    _begins(inputs, out) not in (-1, _saved(inputs))
                    and not _differs("weights")(inputs, out)
                ),
            ),
            Mistake(
                "weights_only",
                "Each step is done once, but the optimizer began anew: its state is not in the "
                "checkpoint.",
                when=_differs("iterations"),
            ),
            Mistake(
                "seed_state_lost",
                "Each step is done once, and dropout drew other masks: the seeds' state is not in "
                "the checkpoint.",
                when=_differs("seeds"),
            ),
            Mistake(
                "both_write",
                "Both workers write in the folder, which is one and the same for them in truth: "
                "one of them may remove what the other is about to read. Let the chief do it.",
                when=lambda _, out: bool(out["recovered"]["workers"][1]["wrote"]),
            ),
            Mistake(
                "keeps_all",
                "More than `keep` checkpoints are left: a CheckpointManager has a max_to_keep.",
                when=lambda _, out: _count(out["recovered"]["workers"][0]) > KEEP,
            ),
        ),
    ),
)
