"""Three checks of lesson 09: save from many workers, diagnose what hangs, and repair it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Criterion, Inputs, Mistake, Plain, Verdict
from distlab.grading.clusters import WORKERS, call_on_workers
from distlab.grading.comparing import expect_close, expect_equal, expect_true, shown

# A worker that has nothing to train takes milliseconds; the rest is for a busy machine.
_SHORT_SECS = 2.5
_ONE_HAS_FINISHED = r"worker:0 still waits here; worker:1 has finished"

# --- save -----------------------------------------------------------------------------------


def _save_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    return {
        "kernel": draw.normal(size=3).astype("float32"),
        "seen": draw.integers(1, 50, size=WORKERS).astype("float32"),
    }


def _save_call(save: Callable[..., Any], inputs: Inputs) -> Plain:
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

    save(strategy, Watched(kernel=kernel, seen=seen), path)
    strategy.reduce("SUM", tf.constant(0.0), axis=None)  # until the others have written too
    left = [place for place in written if place != path and Path(f"{place}.index").exists()]
    names = {path: "path"}
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
    return {
        name: reader.get_tensor(f"{name}/.ATTRIBUTES/VARIABLE_VALUE") for name in ("kernel", "seen")
    }


def _save_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    return Verdict.of(
        expect_equal(
            "the chief writes to `path`, the other somewhere else",
            yours=outputs["places"],
            expected=[["path"], ["another place"]],
            weight=2,
        ),
        expect_close(
            "the variable in it", yours=outputs["kernel"], expected=inputs["kernel"], atol=1e-6
        ),
        expect_close(
            "the count of both workers in it",
            yours=outputs["seen"],
            expected=inputs["seen"].sum(),
            atol=1e-4,
        ),
        expect_true(
            "nothing else is left",
            outputs["places"][1] == ["another place"] and not outputs["left behind"],
            message="what the other worker wrote is still there, or it wrote nothing",
        ),
    )


# --- diagnose -------------------------------------------------------------------------------

WAITS = ("worker:0", "worker:1", "both", "nobody")
CAUSES = (
    "collective_in_chief_only",
    "unequal_steps",
    "wait_for_each_other",
    "met_another_collective",
    "slow_network",
    "out_of_memory",
)
# For each case of the exercise: who waits, why, and what to ask who says otherwise.
_CASES = {
    "A": ("worker:0", "collective_in_chief_only", "which line is reached by one worker only?"),
    "B": ("worker:1", "unequal_steps", "how often does each worker go round?"),
    "C": ("both", "wait_for_each_other", "what does each one need before it can go on?"),
    "D": ("nobody", "met_another_collective", "count the collectives of each worker, in order."),
}


def _diagnose_inputs(seed: int) -> Inputs:
    return {"order": np.random.default_rng(seed).permutation(sorted(_CASES)).tolist()}


def _diagnose_call(diagnose: Callable[..., Any], inputs: Inputs) -> Plain:
    return {case: diagnose(case) for case in inputs["order"]}


def _diagnose_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    criteria = []
    for case, (waits, cause, ask) in _CASES.items():
        theirs = outputs[case] if isinstance(outputs[case], list) else [outputs[case]]
        said = (*theirs, None, None)[:2]
        for what, yours, right, known in (
            ("who waits", said[0], waits, WAITS),
            ("the cause", said[1], cause, CAUSES),
        ):
            message = f"not one of {', '.join(known)}"
            if yours in known:
                message = "run it and look" if what == "who waits" else f"look again: {ask}"
            is_right = yours == right
            label = f"case {case}: {what}"
            criteria.append(Criterion(label, is_right, "" if is_right else message, shown(yours)))
    return Verdict.of(*criteria)


def _said(outputs: Plain, part: int) -> list[Plain]:
    return [outputs[case][part] for case in _CASES]


# --- end_of_epoch ---------------------------------------------------------------------------


def _epoch_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    return {"losses": draw.uniform(0.1, 3, size=(WORKERS, 3)).astype("float32")}


def _epoch_call(end_of_epoch: Callable[..., Any], inputs: Inputs) -> Plain:
    return call_on_workers(_end_epochs, end_of_epoch, inputs, timeout_secs=_SHORT_SECS)


def _end_epochs(strategy: Any, end_of_epoch: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    log: list[Any] = []
    for loss in inputs["losses"][strategy.cluster_resolver.task_id]:
        end_of_epoch(strategy, tf.constant(loss), log)
    return [float(loss) for loss in log]


def _epoch_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    chief, other = outputs
    return Verdict.of(
        expect_close(
            "the chief's log: the mean over both workers",
            yours=chief,
            expected=inputs["losses"].mean(axis=0),
            atol=1e-5,
            weight=2,
        ),
        expect_equal("the other worker's log", yours=other, expected=[]),
    )


SAVE_AND_HANG_CHECKS = (
    Check(
        name="save_from_many",
        function="save",
        title="Save from many workers",
        points=3,
        inputs=_save_inputs,
        call=_save_call,
        judge=_save_judge,
        hint="All call checkpoint.write, each with a place of its own: the chief with `path`, the "
        "other with one in a tempfile.TemporaryDirectory().",
        revisit="Save from many",
        mistakes=(
            Mistake(
                "chief_only",
                "The chief waits inside `write`: to read the count it needs the other worker, "
                "which does not write and has gone on. All must take part.",
                error=_ONE_HAS_FINISHED,
            ),
            Mistake(
                "same_path",
                "All workers write the same file at the same time. One of them must win, and "
                "sometimes nobody does.",
                when=lambda _, out: out["places"] == [["path"]] * WORKERS,
            ),
            Mistake(
                "nothing_kept",
                "Nobody wrote to `path`. Which worker is the chief?",
                when=lambda _, out: ["path"] not in out["places"],
            ),
            Mistake(
                "left_behind",
                "What the other worker wrote is for nobody: remove it.",
                when=lambda _, out: bool(out["left behind"]),
            ),
        ),
    ),
    Check(
        name="diagnose",
        function="diagnose",
        title="Who waits, and why",
        points=4,
        inputs=_diagnose_inputs,
        call=_diagnose_call,
        judge=_diagnose_judge,
        hint="For each worker write down the collectives that it comes to, in order. The first of "
        "one meets the first of the other, the second the second.",
        revisit="A hang, diagnosed",
        mistakes=(
            Mistake(
                "finished_for_waiting",
                "In A and B you name the worker that has finished. Who waits is the other one: it "
                "stands in a collective to which nobody comes any more.",
                when=lambda _, out: _said(out, 0)[:2] == ["worker:1", "worker:0"],
            ),
            Mistake(
                "blames_the_network",
                "Nothing was slow here, and no memory was short. A collective waits until all "
                "have come to it: who did not come, and why?",
                when=lambda _, out: bool({"slow_network", "out_of_memory"} & set(_said(out, 1))),
            ),
            Mistake(
                "silence_is_success",
                "A program that ends can be wrong: a collective has no name, it takes whoever "
                "comes next. Look at the numbers of case D.",
                when=lambda _, out: (
                    _said(out, 0)[3] != "nobody" or _said(out, 1)[3] == "unequal_steps"
                ),
            ),
        ),
    ),
    Check(
        name="end_of_epoch",
        function="end_of_epoch",
        title="Repair a hang",
        points=3,
        inputs=_epoch_inputs,
        call=_epoch_call,
        judge=_epoch_judge,
        hint="Which line needs both workers, and which is for the chief alone?",
        revisit="A hang, diagnosed",
        mistakes=(
            Mistake(
                "collective_in_chief_only",
                "The chief waits in a collective to which the other worker never comes: it "
                "stands inside `if`. All take part, one writes.",
                error=_ONE_HAS_FINISHED,
            ),
            Mistake(
                "own_loss_only",
                "It ends, but the chief logs its own loss: nobody asked the other worker.",
                when=lambda inputs, out: np.allclose(out[0], inputs["losses"][0], atol=1e-5),
            ),
            Mistake(
                "everybody_logs",
                "Both workers log. With a file in the place of the list, they would write over "
                "each other.",
                when=lambda _, out: bool(out[1]) and np.allclose(out[0], out[1], atol=1e-5),
            ),
        ),
    ),
)
