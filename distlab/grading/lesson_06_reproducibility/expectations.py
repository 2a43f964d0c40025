"""A check of lesson 06: of two runs, say whether they can be equal, close, or neither."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_equal, expect_true

# The cases, in the learner's words; `_pair_of` makes the runs, `_ANSWERS` says what is right.
_ANSWERS = {
    "the same run again": "bitwise",
    "the same run again, with dropout": "bitwise",
    "resumed, with its place in the data": "bitwise",
    "another number of replicas": "close",
    "resumed on another number of replicas": "close",
    "another number of replicas, with dropout": "different",
    "resumed without its place in the data": "different",
    "another seed": "different",
    "no seed in either": "different",
}


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    pairs = [{"case": case, "runs": _pair_of(case, draw)} for case in _ANSWERS]
    return {"pairs": [pairs[int(place)] for place in draw.permutation(len(pairs))]}


def _pair_of(case: str, draw: np.random.Generator) -> list[dict[str, Any]]:
    number, other = (int(seed) for seed in draw.choice(np.arange(1, 100), size=2, replace=False))
    few, many = (int(count) for count in draw.choice([1, 2, 4, 8], size=2, replace=False))
    rate = float(draw.choice([0.1, 0.2, 0.5]))
    first = {"seed": number, "replicas": few, "dropout": 0.0, "resumed": "no"}
    changes: dict[str, dict[str, Any]] = {
        "the same run again": {},
        "the same run again, with dropout": {"dropout": rate},
        "resumed, with its place in the data": {"resumed": "with place"},
        "another number of replicas": {"replicas": many},
        "resumed on another number of replicas": {"replicas": many, "resumed": "with place"},
        "another number of replicas, with dropout": {"replicas": many, "dropout": rate},
        "resumed without its place in the data": {"resumed": "without place"},
        "another seed": {"seed": other},
        "no seed in either": {"seed": None},
    }
    second = changes[case]
    # Both train the same model; and in the last case nobody set a seed.
    shared = {key: second[key] for key in ("dropout",) if key in second}
    if case == "no seed in either":
        shared = second
    pair = [{**first, **shared}, {**first, **second}]
    return pair if draw.random() < 0.5 else pair[::-1]


def _call(expect: Callable[..., Any], inputs: Inputs) -> Plain:
    return {pair["case"]: expect(*(dict(run) for run in pair["runs"])) for pair in inputs["pairs"]}


def _judge(_: Inputs, outputs: Plain) -> Verdict:
    if len({str(answer) for answer in outputs.values()}) == 1:
        message = "your function gives the same answer to every pair"
        if None in outputs.values():
            message = "your function returned None: is there a `return`?"
        return Verdict.of(expect_true("the answer depends on the runs", False, message=message))
    return Verdict.of(
        *(
            expect_equal(case, yours=outputs[case], expected=answer)
            for case, answer in _ANSWERS.items()
        )
    )


def _answers(case: str, *answers: str) -> Callable[[Inputs, Plain], bool]:
    return lambda _, outputs: outputs[case] in answers


EXPECTATIONS = Check(
    name="expectations",
    function="expect",
    title="What can be equal, close, or neither",
    points=3,
    inputs=_inputs,
    call=_call,
    judge=_judge,
    hint="Ask in this order: is anything drawn, or seen, differently? Then they are different. Is "
    "only the number of replicas another? Then close, unless the step draws numbers.",
    revisit="What can never be equal",
    mistakes=(
        Mistake(
            "expects_bitwise_across_n",
            "With another number of replicas the same numbers are added in another order, and "
            "floats round after each addition. No seed changes that.",
            when=_answers("another number of replicas", "bitwise"),
        ),
        Mistake(
            "different_across_n",
            "Another number of replicas adds the same numbers in another order, and nothing else. "
            "That is rounding: the weights stay close.",
            when=_answers("another number of replicas", "different"),
        ),
        Mistake(
            "dropout_close_across_n",
            "With another number of replicas dropout draws other masks, for smaller shares. That "
            "is no rounding: the weights are different.",
            when=_answers("another number of replicas, with dropout", "close"),
        ),
        Mistake(
            "dropout_never_equal",
            "Dropout is random, but seeded: on the same number of replicas the same step draws "
            "the same masks.",
            when=_answers("the same run again, with dropout", "close", "different"),
        ),
        Mistake(
            "none_is_a_seed",
            "None and None are equal in Python, but a run without a seed draws other numbers each "
            "time.",
            when=_answers("no seed in either", "bitwise", "close"),
        ),
        Mistake(
            "place_ignored",
            "A run that resumes without its place in the data begins the epoch anew, and sees "
            "examples twice.",
            when=_answers("resumed without its place in the data", "bitwise", "close"),
        ),
        Mistake(
            "resumed_never_equal",
            "A run that resumes with its place in the data takes the very steps that it would "
            "have taken.",
            when=_answers("resumed, with its place in the data", "close", "different"),
        ),
    ),
)
