"""A check of lesson 06: of two runs, say whether they are identical, close or different."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Cost, Equal, Fault, Gate, Holds, Inputs, Plain

# The cases in the learner's words, and what is right; `_pair_of` makes the runs.
_TABLE = {
    "again": ("the same run again", "bitwise"),
    "again_with_dropout": ("the same run again, with dropout", "bitwise"),
    "resumed_in_place": ("resumed, with its place in the data", "bitwise"),
    "more_replicas": ("a different number of replicas", "close"),
    "resumed_on_more_replicas": ("resumed on a different number of replicas", "close"),
    "more_replicas_with_dropout": ("a different number of replicas, with dropout", "close"),
    "resumed_without_place": ("resumed without its place in the data", "different"),
    "different_seed": ("a different seed", "different"),
    "no_seed": ("no seed in either", "different"),
}


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    pairs = [{"case": case, "runs": _pair_of(case, draw)} for case in _TABLE]
    return {"pairs": [pairs[int(place)] for place in draw.permutation(len(pairs))]}


def _pair_of(case: str, draw: np.random.Generator) -> list[dict[str, Any]]:
    number, other = (int(seed) for seed in draw.choice(np.arange(1, 100), size=2, replace=False))
    few, many = (int(count) for count in draw.choice([1, 2, 4, 8], size=2, replace=False))
    rate = float(draw.choice([0.1, 0.2, 0.5]))
    first = {"seed": number, "replicas": few, "dropout": 0.0, "resumed": "no"}
    changes: dict[str, dict[str, Any]] = {
        "again": {},
        "again_with_dropout": {"dropout": rate},
        "resumed_in_place": {"resumed": "with place"},
        "more_replicas": {"replicas": many},
        "resumed_on_more_replicas": {"replicas": many, "resumed": "with place"},
        "more_replicas_with_dropout": {"replicas": many, "dropout": rate},
        "resumed_without_place": {"resumed": "without place"},
        "different_seed": {"seed": other},
        "no_seed": {"seed": None},
    }
    second = changes[case]
    # Both train the same model. In the last case neither run has a seed.
    shared = {key: second[key] for key in ("dropout",) if key in second}
    pair = [{**first, **(second if case == "no_seed" else shared)}, {**first, **second}]
    return pair if draw.random() < 0.5 else pair[::-1]


def _call(expect: Callable[..., Any], inputs: Inputs) -> Plain:
    return {pair["case"]: expect(*(dict(run) for run in pair["runs"])) for pair in inputs["pairs"]}


def _reference(given: Inputs, **answers: str) -> Plain:
    return {case: answer for case, (_, answer) in _TABLE.items()} | answers


EXPECTATIONS = Check(
    name="expectations",
    function="expect",
    title="What can be identical, close, or different",
    question=(
        "What do the two runs draw differently, and what do they compute in a different order?"
    ),
    direction=(
        "Separate two causes: different random numbers or data, and the same sums in a different "
        "order."
    ),
    cost=Cost.PURE,
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=(
        Gate(
            Holds(
                "the answer depends on the runs",
                lambda given, out: len({str(answer) for answer in out.values()}) > 1,
                lambda given, out: (
                    "your function returned None: is there a `return`?"
                    if None in out.values()
                    else "your function gives the same answer to every pair"
                ),
            )
        ),
        *(Equal(case, label, points=0.5) for case, (label, _) in _TABLE.items()),
    ),
    hint='First return "different" where a seed or the place in the data is not shared. Then the '
    'same number of replicas is "bitwise", and a different number is "close". Dropout changes '
    "nothing.",
    revisit='"What can be equal" in lesson 06',
    mistakes=(
        Fault("expects_bitwise_across_n", more_replicas="bitwise").feedback(
            "You expect identical weights from different numbers of replicas. They would need the "
            "same sums in the same order. What happens to a float after each addition?"
        ),
        Fault("different_across_n", more_replicas="different").feedback(
            "You expect different weights from different numbers of replicas, without dropout. But "
            "both runs add the same gradients. What is the only thing that their order changes?"
        ),
        Fault("dropout_different_across_n", more_replicas_with_dropout="different").feedback(
            "You expect different weights from different numbers of replicas with dropout. So it "
            "would be if each replica drew a mask of its own. Under `dl.distribute`, from which "
            "mask does a replica take the rows of its examples?"
        ),
        Fault("none_is_a_seed", no_seed="bitwise")
        .or_with(no_seed="close")
        .feedback(
            "You treat two runs without a seed like two runs with the same seed. In Python, None "
            "equals None. But where does a stream begin if you set no seed?"
        ),
        Fault("place_ignored", resumed_without_place="bitwise")
        .or_with(resumed_without_place="close")
        .feedback(
            "You expect a run that lost its place in the data to end like one that did not. It "
            "begins the epoch again. Which examples does it see twice?"
        ),
    ),
)
