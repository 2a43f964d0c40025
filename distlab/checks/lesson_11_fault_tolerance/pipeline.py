"""The last check of lesson 11: a pipeline that recovers, on two workers of which one is killed."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from distlab.checks import Check, Cost, Equal, Gate, Holds, Inputs, Observed, Plain, Raises
from distlab.checks.lesson_11_fault_tolerance.two_lives import (
    BATCH,
    EPOCHS,
    EXAMPLES,
    KEEP,
    train_twice,
)
from distlab.checks.lesson_11_fault_tolerance.undisturbed import AsUndisturbed
from distlab.checks.matchers import same_plain
from distlab.coursework.cluster_calls import WORKERS

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


def _read(given: Inputs, out: Plain) -> Plain:
    calm, recovered = out["undisturbed"], out["recovered"]
    chief, calm_chief = recovered["workers"][0], calm["workers"][0]
    first, *later = recovered["lives"]
    order, first_again = _order(given), (later or [[]])[0][:1]
    # The step that is done first after the kill, or -1 if no step has these examples.
    begins = order.index(first_again[0]) if first_again and first_again[0] in order else -1
    pairs = tuple(zip(recovered["workers"], calm["workers"], strict=True))
    checkpoints = [n.removesuffix(".index") for n in chief["files"] if n.endswith(".index")]
    known = (*checkpoints, "checkpoint")
    return {
        "trained": all(worker["trained"] for worker in calm["workers"]),
        "lives": calm["lives"],
        "lived": [*first[: max(begins, 0)], *itertools.chain(*later)],
        "begins": begins,
        "twice": any(worker["iterations"] > _STEPS for worker in recovered["workers"]),
        "weights": chief["weights"],
        "calm": {"weights": calm_chief["weights"]},
        "alike": all(same_plain(chief["weights"], one["weights"]) for one, _ in pairs),
        "wrote": [worker["wrote"] for worker in (calm["workers"][1], recovered["workers"][1])],
        "count": len(checkpoints),
        "others": [name for name in chief["files"] if name.partition(".")[0] not in known],
        **{
            key: all(same_plain(one[key], other[key]) for one, other in pairs)
            for key in ("iterations", "seeds")
        },
    }


def _reference(given: Inputs) -> Plain:
    """What is compared of a training that recovers; its weights no reference knows."""
    order, weights = _order(given), np.zeros(1)
    steps = {"lives": [order], "lived": order, "begins": _saved(given), "twice": False}
    files = {"wrote": [[], []], "count": KEEP, "others": []}
    same = {"trained": True, "alike": True, "iterations": True, "seeds": True}
    return {**steps, **files, **same, "weights": weights, "calm": {"weights": weights}}


def _accounting(given: Inputs, out: Plain) -> str:
    begins, saved = out["begins"], _saved(given)
    if begins < 0:
        return "after the kill no batch of the data set was trained on"
    return (
        f"the checkpoint holds {saved} steps; after the kill it resumed after step {begins}"
        if begins != saved
        else "the steps after the kill are not those of the data set, in their order"
    )


def _back_to(place: Callable[[int], int]) -> Callable[[Inputs, Plain], bool]:
    return lambda given, out: out["begins"] == place(_saved(given))


_GOES_ON = "it resumes with the step that follows the last checkpoint, one every `every_steps`"

RECOVERS = Check(
    name="recovers",
    function="train",
    title="A pipeline that recovers",
    question="What differs between a run that was killed and one that was not?",
    direction=(
        "Check the parts in order: what is saved, by whom, what every worker restores, and which "
        "batch comes next."
    ),
    cost=Cost.CLUSTER,
    inputs=_inputs,
    call=train_twice,
    read=_read,
    reference=_reference,
    criteria=(
        Gate(
            Holds(
                "undisturbed: the model is trained",
                lambda given, out: out["trained"],
                "its weights are still those that `build` gave it",
            )
        ),
        Holds(
            "undisturbed: the workers share each batch, and each example comes once an epoch",
            lambda given, out: out["lives"] == [_order(given)],
            f"{_STEPS} steps of {BATCH} examples were asked for, in their order",
        ),
        Gate(Holds(_GOES_ON, lambda given, out: out["begins"] > 0, _accounting)),
        Holds(
            "with a kill: in the result each example counts once in an epoch",
            lambda given, out: out["lived"] == _order(given) and not out["twice"],
            _accounting,
            points=1.5,
        ),
        Holds(_GOES_ON, _back_to(int), _accounting),
        AsUndisturbed(
            "weights",
            "the weights at the end: bit for bit those of the undisturbed run",
            points=2,
            of=lambda given, out: out["calm"],
        ),
        Holds(
            "both workers have the same weights",
            lambda given, out: out["alike"],
            "their weights differ",
            points=0.5,
        ),
        Equal("wrote", "what worker:1 has written in the folder"),
        Equal("count", "checkpoints in the folder at the end", points=0.5),
        Equal("others", "other files in the folder", points=0.5),
    ),
    hint="In the scope: build the model, and its optimizer. Then a checkpoint of all four "
    "parts, which all workers restore from tf.train.latest_checkpoint(folder). Only "
    "the chief has a CheckpointManager. Distribute `batches_of(epoch).skip(done)`.",
    revisit="Kill a worker",
    mistakes=(
        Raises("only_chief_restores", r"worker:1 still waits here; worker:0 has finished").feedback(
            "After the kill worker 0 resumed, and worker 1 started from the beginning. So "
            "worker 1 has more steps to take, and waits in the first one without a partner. "
            "Which workers must restore the checkpoint, and which one writes it?"
        ),
        Raises(
            "outside_scope",
            r"^(AssertionError\W*)+$|Mixing different tf.distribute.Strategy objects",
        ).feedback(
            "You called `build` outside of the strategy's scope, and ran its step inside. "
            "TensorFlow refuses to update such variables. Where must the model be made?"
        ),
        Raises("int_of_mirrored_variable", r"^TypeError: int\(\).*MirroredVariable").feedback(
            "You called `int(step)` on a variable that was made in the scope. Each replica has "
            "a copy of it, so Python does not know which one to read. Which method of a "
            "variable gives its value as a number?"
        ),
        Observed("never_trained", lambda given, out: not out["trained"]).feedback(
            "Your `train` returns the model with the weights that it began with, so there is "
            "nothing to recover. Does each step apply its gradients?"
        ),
        Observed(
            "both_read_all",
            lambda given, out: [sorted(2 * step) for step in _order(given)] == out["lives"][0],
        ).feedback(
            "Each worker trained on the whole of each batch. So every example counted twice, "
            "and no work was shared. Which call gives each worker its share of a batch?"
        ),
        Observed("starts_again", _back_to(lambda saved: 0)).feedback(
            "After the kill your training started from the beginning. So all work before the "
            "kill was lost. Does it look for a checkpoint before its first step, and is one in "
            "the folder?"
        ),
        Observed("restarts_epoch", _back_to(lambda saved: saved // _BATCHES * _BATCHES)).feedback(
            "After the kill your training went back to the first batch of the epoch, with "
            "weights that already know these batches. So they were trained on twice. How many "
            "batches of this epoch are done?"
        ),
        Observed("repeats_step", _back_to(lambda saved: saved - 1)).feedback(
            "After the kill one batch was trained on twice. It was saved before it was "
            "counted. In which order do you count and save?"
        ),
        Observed(
            "saves_at_other_steps",
            lambda given, out: (
                out["begins"] not in (-1, _saved(given))
                and same_plain(out["weights"], out["calm"]["weights"])
            ),
        ).feedback(
            "After the kill your training resumed from a checkpoint that was not asked for. So it "
            "saves too often or too rarely. From which number follows when to save?"
        ),
        Observed("weights_only", lambda given, out: not out["iterations"]).feedback(
            "You trained each step once, but the optimizer started from zero after the kill. "
            "So its next steps were too long. Is its state in your checkpoint?"
        ),
        Observed("seed_state_lost", lambda given, out: not out["seeds"]).feedback(
            "You trained each step once, but dropout drew different masks after the kill. So "
            "the weights differ from the undisturbed run. Is the state of its seeds in your "
            "checkpoint?"
        ),
        Observed("both_write", lambda given, out: out["wrote"][1]).feedback(
            "Both workers wrote into the folder. In a real run it is the same folder for both, "
            "so one removes what the other is about to read. Which worker should write?"
        ),
        Observed("keeps_all", lambda given, out: out["count"] > KEEP).feedback(
            "Your folder has more than `keep` checkpoints at the end. A long training would "
            "fill the disk. Which argument of a `CheckpointManager` limits them?"
        ),
    ),
)
