"""Checks of lesson 09: what all workers must call together, in a save and in what hangs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from distlab.course.checks import (
    Check,
    Choice,
    Close,
    Cost,
    Fault,
    Form,
    Holds,
    Inputs,
    Observed,
    Plain,
    Raises,
    Then,
)
from distlab.course.runs.cluster_calls import WORKERS, call_on_workers

# A worker that has nothing to train takes milliseconds; the time beyond that is for a busy machine.
_SHORT_SECS = 2.5

# --- save_from_many


def _draw_checkpoint(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    return {
        "kernel": draw.normal(size=3).astype("float32"),
        "seen": draw.integers(1, 50, size=WORKERS).astype("float32"),
    }


def _save_on_workers(save: Callable[..., Any], inputs: Inputs) -> Plain:
    with tempfile.TemporaryDirectory() as folder:
        workers = call_on_workers(_save_on_worker, save, inputs, folder, timeout_secs=_SHORT_SECS)
        return {"places": [worker["place"] for worker in workers], **workers[0]["after"]}


def _save_on_worker(strategy: Any, save: Callable[..., Any], inputs: Inputs, folder: str) -> Plain:
    import tensorflow as tf

    index = strategy.cluster_resolver.task_id
    with strategy.scope():
        kernel = tf.Variable(inputs["kernel"])
        # As Keras makes its metrics: each worker counts, and to read it all add up.
        seen = tf.Variable(
            0.0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
    strategy.run(lambda: seen.assign_add(inputs["seen"][index]))
    path, written = str(Path(folder, "saved", "model")), []

    class Watched(tf.train.Checkpoint):  # type: ignore[misc]
        def write(self, file_prefix: Any, options: Any = None) -> Any:
            place = str(Path(file_prefix).absolute())
            written.append(place)
            # Two that write one file at once fail in one run and not in the next.
            free = _is_first_at(place, folder)
            return super().write(place if free else str(Path(folder, f"aside-{index}")), options)

        def save(self, file_prefix: Any, options: Any = None) -> Any:
            place = super().save(file_prefix, options)
            written.append(str(Path(place).absolute()))
            return place

    save(strategy, Watched(kernel=kernel, seen=seen), path)
    strategy.reduce("SUM", tf.constant(0.0), axis=None)  # until the others have written too
    left = [place for place in written if place != path and Path(f"{place}.index").exists()]
    names = {path: "path", f"{path}-1": "path-1"}
    place = [names.get(each, "another place") for each in written]
    everywhere = strategy.reduce("SUM", tf.constant(float(len(left))), axis=None)
    return {"place": place, "after": {"left behind": float(everywhere), **_restored(path)}}


def _is_first_at(place: str, folder: str) -> bool:
    try:
        os.close(os.open(Path(folder, place.replace(os.sep, "+")), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _restored(path: str) -> dict[str, Plain]:
    import tensorflow as tf

    if not Path(f"{path}.index").exists():
        return {"kernel": [], "seen": []}
    reader = tf.train.load_checkpoint(path)
    keys = {name: f"{name}/.ATTRIBUTES/VARIABLE_VALUE" for name in ("kernel", "seen")}
    return {
        name: reader.get_tensor(key) if reader.has_tensor(key) else [] for name, key in keys.items()
    }


def _right_save(given: Inputs) -> Plain:
    return {
        "places": [["path"], ["another place"]],
        "kernel": given["kernel"],
        "seen": given["seen"].sum(),
        "left behind": 0.0,
    }


def _all_write(given: Inputs, out: Plain) -> bool:
    # What the chief wrote elsewhere it may have moved to `path`.
    return all(out["places"]) and "path" not in out["places"][1] and len(out["kernel"]) > 0


def _who_wrote(given: Inputs, out: Plain) -> str:
    wrote_nothing = [f"worker:{index}" for index, places in enumerate(out["places"]) if not places]
    if wrote_nothing:
        return f"{' and '.join(wrote_nothing)} wrote nothing"
    chief, other = out["places"]
    return f"worker:0 wrote to {chief}, worker:1 to {other}"


SAVE = Check(
    name="save_from_many",
    function="save",
    title="Save from many workers",
    question="Which lines of your function run on both workers?",
    direction=(
        "Every worker must take part in the write. Think about where the files of the worker that "
        "is not the chief should go."
    ),
    cost=Cost.CLUSTER,
    inputs=_draw_checkpoint,
    call=_save_on_workers,
    reference=_right_save,
    criteria=(
        Holds(
            "all workers write, and only the chief to `path`", _all_write, _who_wrote, points=1.5
        ),
        Close("kernel", "the variable in it", atol=1e-6, points=0.5),
        Close("seen", "the count of both workers in it", atol=1e-4, points=0.5),
        Holds(
            "nothing else is left",
            lambda given, out: all(out["places"]) and not out["left behind"],
            lambda given, out: (
                "what was written elsewhere is still there"
                if out["places"][1]
                else _who_wrote(given, out)
            ),
            points=0.5,
        ),
    ),
    hint="All workers call checkpoint.write, each with its own prefix: the chief with "
    "`path`, the other with one in a tempfile.TemporaryDirectory().",
    revisit="Save from many",
    mistakes=(
        Raises("chief_only", "worker:0 still waits here; worker:1 has finished").feedback(
            "Only the chief called `write`. To read the counter it needs the other worker, "
            "which had already gone on, so the chief waited without end. Which workers must "
            "take part when a counter is saved?"
        ),
        Observed("same_path", lambda given, out: out["places"] == [["path"]] * WORKERS).feedback(
            "Both workers wrote to the same path at the same time. One of them overwrites the "
            "other's files, and sometimes a mixture of both remains. Which worker's files "
            "should stay?"
        ),
        Observed("numbered", lambda given, out: "path-1" in out["places"][0]).feedback(
            "You called `checkpoint.save`, which adds a number to the name. So nothing is at "
            "`path` itself. Which method writes exactly where you say?"
        ),
        Observed("left_behind", lambda given, out: out["left behind"]).feedback(
            "The other worker's files are still there after your function returned. With every "
            "save there would be more of them. Where could that worker write so that its files "
            "are removed?"
        ),
    ),
)


# --- diagnose

_WAITS = ("worker:0", "worker:1", "both", "nobody")
_CAUSES = (
    "collective_in_chief_only",
    "unequal_steps",
    "wait_for_each_other",
    "met_another_collective",
    "slow_network",
    "out_of_memory",
)
# For each case: which worker waits, why, and what to ask after a different answer.
_CASES = {
    "A": ("worker:0", "collective_in_chief_only", "which line does only one worker reach?"),
    "B": ("worker:1", "unequal_steps", "how many batches does each worker take?"),
    "C": ("both", "wait_for_each_other", "what does each worker need before it can continue?"),
    "D": (
        "nobody",
        "met_another_collective",
        "which collectives does each worker reach, in which order?",
    ),
}


def _draw_order(seed: int) -> Inputs:
    return {"order": np.random.default_rng(seed).permutation(sorted(_CASES)).tolist()}


def _diagnoses(diagnose: Callable[..., Any], inputs: Inputs) -> Plain:
    return {case: diagnose(case) for case in inputs["order"]}


def _facts_by_case(given: Inputs, outputs: Plain) -> Plain:
    """Takes each answer apart; one text alone is read as far as it goes."""
    answers: dict[str, Plain] = {}
    for case, answer in outputs.items():
        pair = answer.tolist() if isinstance(answer, np.ndarray) else answer
        if not isinstance(pair, list) or len(pair) < 2:
            alone = pair[0] if isinstance(pair, list) and pair else pair
            pair = [alone, None if alone is None else "nothing: two strings were asked for"]
        answers |= {f"{case}_waits": pair[0], f"{case}_cause": pair[1]}
    return answers


def _right_diagnoses(given: Inputs, **answers: str) -> Plain:
    right: dict[str, str] = {}
    for case, (waits, cause, _) in _CASES.items():
        right |= {f"{case}_waits": waits, f"{case}_cause": cause}
    return right | answers


def _facts(case: str) -> tuple[Choice, Choice]:
    def fact(key: str, label: str, among: tuple[str, ...], ask: str) -> Choice:
        return Choice(f"{case}_{key}", f"case {case}: {label}", among=among, ask=ask, points=0.5)

    ask = "what is printed when you run it?"
    return fact("waits", "which worker waits", _WAITS, ask), fact(
        "cause", "the cause", _CAUSES, _CASES[case][2]
    )


DIAGNOSE = Check(
    name="diagnose",
    title="Which worker waits, and why",
    question="At which line does each worker wait, and for whom?",
    direction="Write down the collectives that each worker reaches, in order, side by side.",
    cost=Cost.PURE,
    inputs=_draw_order,
    call=_diagnoses,
    read=_facts_by_case,
    reference=_right_diagnoses,
    criteria=(
        Form(
            "it returns two strings for each case",
            lambda given, out: any(answer is not None for answer in out.values()),
            key="A_waits",
        ),
        *(fact for case in _CASES for fact in _facts(case)),
    ),
    hint="For each worker write down its collectives in order. The first of one worker "
    "meets the first of the other, the second meets the second.",
    revisit="A line under the wrong if",
    mistakes=(
        Fault("finished_for_waiting", A_waits="worker:1", B_waits="worker:0").feedback(
            "In A and B you named the worker that had finished. The one that waits is inside a "
            "collective. Which worker still has a collective to reach when the other has "
            "returned?"
        ),
        Observed(
            "blames_the_network",
            lambda given, out: {"slow_network", "out_of_memory"} & set(map(str, out.values())),
        ).feedback(
            "You named the network or the memory. These programs send a few bytes, and a slow "
            "network would end sooner or later. A collective waits until all workers have "
            "begun it: which worker did not?"
        ),
        Fault("silence_is_success", D_waits="both")
        .or_with(D_waits="worker:0")
        .or_with(D_waits="worker:1")
        .or_with(D_cause="unequal_steps")
        .feedback(
            "For D you said that a worker waits, or that its steps are unequal. Yet both "
            "workers finish, so each collective found a partner. Which one did it find: what "
            "are the numbers that D returns?"
        ),
    ),
)


# --- end_of_epoch

_EPOCHS = 5


def _draw_losses(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    # Best so far in epochs 0, 1 and 3: the mean falls, rises, falls to a new low, and rises.
    means = np.array([3.6, 3.3, 3.5, 3.0, 3.2]) + draw.uniform(-0.05, 0.05, size=_EPOCHS)
    # One worker is always below every mean and the other above: so each alone decides wrongly.
    apart = draw.uniform(1, 2, size=_EPOCHS)
    losses = np.stack([means - apart, means + apart])
    return {"losses": np.roll(losses, seed % WORKERS, axis=0).astype("float32")}


def _end_on_workers(end_of_epoch: Callable[..., Any], inputs: Inputs) -> Plain:
    first, second = call_on_workers(_end_epochs, end_of_epoch, inputs, timeout_secs=_SHORT_SECS)
    return {"first": first, "second": second}


def _end_epochs(strategy: Any, end_of_epoch: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    log: list[Any] = []
    for loss in inputs["losses"][strategy.cluster_resolver.task_id]:
        end_of_epoch(strategy, tf.constant(loss), log)
    return [float(loss) for loss in log]


def _right_logs(given: Inputs, *, own: bool = False, best_only: bool = True) -> Plain:
    """The log of each worker, of the mean losses or of its own."""

    def log(losses: Any) -> list[float]:
        best: list[float] = []
        for loss in losses:
            if not (best_only and best) or loss < best[-1]:
                best.append(float(loss))
        return best

    first, second = given["losses"] if own else [given["losses"].mean(axis=0)] * WORKERS
    return {"first": log(first), "second": log(second)}


END_OF_EPOCH = Check(
    name="end_of_epoch",
    title="Repair a hang",
    question="By which number does each worker decide whether to log?",
    direction="Separate what both workers call in every epoch from what they decide afterwards.",
    cost=Cost.CLUSTER,
    inputs=_draw_losses,
    call=_end_on_workers,
    reference=_right_logs,
    criteria=(
        Close("first", "the log of worker:0: each new best mean", atol=1e-5, points=2),
        Then(Close("second", "the log of worker:1, the same", atol=1e-5)),
    ),
    hint="Call `reduce` first, on every worker and in every epoch. Then compare the mean that it "
    "returns with the last number in `log`.",
    revisit="A line under the wrong if",
    mistakes=(
        Raises(
            "decided_by_own_loss", r"worker:\d still waits here; worker:\d has finished"
        ).feedback(
            "One worker waits in a collective, and the other worker has finished without it. Each "
            "worker decided for itself whether to call `reduce`. Which number in that decision "
            "differs from worker to worker?"
        ),
        Fault("own_loss_only", own=True).feedback(
            "Each worker logged its own loss. So the two logs differ, and each knows half of the "
            "examples. Which call combines the losses of both workers?"
        ),
        Fault("logs_every_epoch", best_only=False).feedback(
            "You logged the mean of every epoch. Only a mean that is lower than all earlier ones "
            "was asked for. With which number must each mean be compared?"
        ),
    ),
)
