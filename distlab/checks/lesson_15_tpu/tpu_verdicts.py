"""A check of lesson 15: a verdict on each of six findings, and what to do next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.checks import Check, Choice, Cost, Fault, Gate, Holds, Inputs, Observed, Plain

_VERDICTS = ("refused_here", "suspect_on_tpu", "not_checked", "runs_on_tpu", "fails_on_tpu")
_STEPS = (
    "rewrite_in_tensorflow",
    "move_to_input_pipeline",
    "mask_instead_of_select",
    "use_float32",
    "measure_on_tpu",
)
# For each case: the verdict, what to do next, and what to ask after a mistake.
_CASES = {
    "A": (
        "refused_here",
        "rewrite_in_tensorflow",
        "what did the compiler do, and is there a loss before the step has begun?",
    ),
    "B": (
        "suspect_on_tpu",
        "mask_instead_of_select",
        "what does `<=` in a shape mean, and what keeps a shape fixed?",
    ),
    "C": ("not_checked", "measure_on_tpu", "which run of yours has shown the speed of a TPU?"),
    "D": (
        "refused_here",
        "move_to_input_pipeline",
        "can XLA read a string, and which part of a training never runs on the TPU?",
    ),
    "E": (
        "suspect_on_tpu",
        "use_float32",
        "which type is in the program, and what is a TPU built for?",
    ),
    "F": (
        "not_checked",
        "measure_on_tpu",
        "how many bits of a float32 number does a CPU multiply, and a TPU?",
    ),
}


def _inputs(seed: int) -> Inputs:
    return {"order": np.random.default_rng(seed).permutation(sorted(_CASES)).tolist()}


def _call(give_verdict: Callable[..., Any], inputs: Inputs) -> Plain:
    return {case: give_verdict(case) for case in inputs["order"]}


def _read(given: Inputs, outputs: Plain) -> Plain:
    """Takes each answer apart; one text alone is read as the verdict."""
    answers = [outputs[case] for case in _CASES]
    answers = [each.tolist() if isinstance(each, np.ndarray) else each for each in answers]
    said: dict[str, Plain] = {"varies": any(answer != answers[0] for answer in answers)}
    for case, answer in zip(_CASES, answers, strict=True):
        pair = answer if isinstance(answer, list) and len(answer) == 2 else [answer, None]
        said |= {case: pair[0], f"{case}_next": pair[1]}
    return said


def _reference(given: Inputs, **answers: Plain) -> Plain:
    right: dict[str, Plain] = {"varies": True}
    for case, (verdict, step, _) in _CASES.items():
        right |= {case: verdict, f"{case}_next": step}
    return right | answers


def _choices(case: str) -> tuple[Choice, Choice]:
    label, ask = f"case {case}: the", _CASES[case][2]
    return (
        Choice(case, f"{label} verdict", among=_VERDICTS, ask=ask, points=0.5),
        Choice(f"{case}_next", f"{label} next step", among=_STEPS, ask=ask, points=0.5),
    )


def _any_verdict(word: str) -> Callable[[Inputs, Plain], bool]:
    return lambda _, out: any(out[case] == word for case in _CASES)


VERDICTS = Check(
    name="give_verdict",
    title="A verdict and a next step for six findings",
    question="What exactly was run in each case, and on which machine?",
    direction=(
        "First ask whether the compiler on your CPU refused it. If not, ask whether you have seen "
        "a reason for doubt. If not, ask whether a CPU could have answered at all."
    ),
    cost=Cost.PURE,
    inputs=_inputs,
    call=_call,
    read=_read,
    reference=_reference,
    criteria=(
        Gate(
            Holds(
                "the answer depends on the case",
                lambda _, out: out["varies"] or out["A"] is None,
                "your function gives the same answer to every case",
            )
        ),
        *(choice for case in _CASES for choice in _choices(case)),
    ),
    hint="Two cases were refused by the compiler, two compiled with a sign of trouble in the "
    "program, and two are about what a CPU cannot show.",
    revisit='"Three verdicts" in lesson 15',
    mistakes=(
        Observed("compiled_means_ready", _any_verdict("runs_on_tpu")).feedback(
            "You took a program that compiles on a CPU for one that runs on a TPU. The two use one "
            "compiler with different ends, and nothing here ran on a TPU. Which of your runs shows "
            "what a TPU does?"
        ),
        Observed("refused_means_never", _any_verdict("fails_on_tpu")).feedback(
            "You took a refusal on a CPU for a refusal on a TPU. A TPU strategy may run such an "
            "operation on the host instead, slowly. What did you see, and on which machine?"
        ),
        Fault("compiled_means_checked", B="not_checked")
        .or_with(E="not_checked")
        .feedback(
            "You found nothing in a program that shows a sign of trouble. The compiler let it "
            "pass, but the text of the program names a doubtful shape or type. What does the "
            "finding quote from the program?"
        ),
        Fault("unmeasured_is_suspect", C="suspect_on_tpu")
        .or_with(F="suspect_on_tpu")
        .feedback(
            "You called something suspect that you have not looked at. A suspicion needs a sign in "
            "the program. Which sign did you see in this case?"
        ),
    ),
)
