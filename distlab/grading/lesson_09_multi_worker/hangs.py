"""Two checks of lesson 09: diagnose what hangs, and repair it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Criterion, Inputs, Mistake, Plain, Verdict
from distlab.grading.clusters import WORKERS, call_on_workers
from distlab.grading.comparing import expect_close, expect_true, shown
from distlab.grading.lesson_09_multi_worker.saving import ONE_HAS_FINISHED, SHORT_SECS

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
        said = _pair(outputs, case)
        for what, yours, right, known in (
            ("who waits", said[0], waits, WAITS),
            ("the cause", said[1], cause, CAUSES),
        ):
            message = f"not one of {', '.join(known)}"
            if outputs[case] is None:
                message = "your function returned None for this case: is there a `return`?"
            elif said[1] is None:
                message = "two texts were asked for: who waits, and the cause"
            elif yours in known:
                message = "run it and look" if what == "who waits" else f"look again: {ask}"
            is_right = yours == right
            label = f"case {case}: {what}"
            criteria.append(Criterion(label, is_right, "" if is_right else message, shown(yours)))
    return Verdict.of(*criteria)


def _pair(outputs: Plain, case: str) -> list[Plain]:
    theirs = outputs[case]
    theirs = theirs.tolist() if isinstance(theirs, np.ndarray) else theirs
    return [*(theirs if isinstance(theirs, list) else [theirs]), None, None][:2]


def _said(outputs: Plain, part: int) -> list[Plain]:
    return [_pair(outputs, case)[part] for case in _CASES]


# --- end_of_epoch ---------------------------------------------------------------------------


def _epoch_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    return {"losses": draw.uniform(0.1, 3, size=(WORKERS, 3)).astype("float32")}


def _epoch_call(end_of_epoch: Callable[..., Any], inputs: Inputs) -> Plain:
    return call_on_workers(_end_epochs, end_of_epoch, inputs, timeout_secs=SHORT_SECS)


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
        expect_true(
            "only the chief logs",
            bool(len(chief)) and not len(other),
            message=f"the chief's log has {len(chief)} numbers, the other worker's {len(other)}",
        ),
    )


HANG_CHECKS = (
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
                    _said(out, 0)[3] in set(WAITS) - {"nobody"}
                    or _said(out, 1)[3] == "unequal_steps"
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
                error=ONE_HAS_FINISHED,
            ),
            Mistake(
                "not_logged",
                "It ends, and the chief's log stays empty. Append to the list that you are given; "
                "the chief is worker 0.",
                when=lambda _, out: not len(out[0]),
            ),
            Mistake(
                "sum_for_mean",
                "That is the sum of both losses: divide it by how many there are, or ask `reduce` "
                "for the mean.",
                when=lambda inputs, out: np.allclose(
                    out[0], inputs["losses"].sum(axis=0), atol=1e-5
                ),
            ),
            Mistake(
                "own_loss_only",
                "It ends, but the chief logs its own loss: the other worker's is not in it.",
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
