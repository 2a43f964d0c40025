"""A check of lesson 12: all-gather in which the partner is twice as far away in each step."""

from __future__ import annotations

from collections.abc import Callable
from math import log2
from typing import Any

import numpy as np

from distlab.course.checks import (
    Check,
    Cost,
    Equal,
    Fault,
    Form,
    Holds,
    Inputs,
    Observed,
    Plain,
    Then,
)
from distlab.course.lesson_12_ring_all_reduce.simulated_network import Network


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    ranks = (8, 16)[seed % 2]
    return {"mine": draw.integers(-50, 50, size=(ranks, 5)).astype(np.float32)}


def _call(all_gather: Callable[..., Any], inputs: Inputs) -> Plain:
    network = Network(len(inputs["mine"]))
    have = all_gather(network, [row.copy() for row in inputs["mine"]])
    if not isinstance(have, (list, tuple)) or not all(isinstance(arrays, dict) for arrays in have):
        return {"other": have}
    return {
        "other": "",
        "who": [sorted(int(rank) for rank in arrays) for arrays in have],
        "values": [[arrays[rank] for rank in sorted(arrays)] for arrays in have],
        "steps": network.steps,
        "sent": int(network.bytes_sent.max()),
    }


def _reference(given: Inputs, *, sends: str = "all", steps_left_out: int = 0) -> Plain:
    """What each rank has in the end; `sends` is "all", its "own" or the "last" received."""
    ranks = len(given["mine"])
    have: list[dict[int, Any]] = [{rank: row} for rank, row in enumerate(given["mine"])]
    first, last = [dict(own) for own in have], [dict(own) for own in have]
    network = Network(ranks)
    for step in range(round(log2(ranks)) - steps_left_out):
        outgoing = {"all": have, "own": first, "last": last}[sends]
        received = network.step({(rank, rank ^ 2**step): outgoing[rank] for rank in range(ranks)})
        for rank, arrays in received.items():
            have[rank] |= arrays
            last[rank] = arrays
    return {
        "other": "",
        "who": [sorted(arrays) for arrays in have],
        "values": [[arrays[rank] for rank in sorted(arrays)] for arrays in have],
        "steps": network.steps,
        "sent": int(network.bytes_sent.max()),
    }


def _arrays_are_right(given: Inputs, outputs: Plain) -> bool:
    return all(
        np.array_equal(np.asarray(row), given["mine"][rank])
        for ranks, rows in zip(outputs["who"], outputs["values"], strict=True)
        for rank, row in zip(ranks, rows, strict=True)
    )


def _most_bytes(given: Inputs) -> int:
    return int(given["mine"].nbytes - given["mine"][0].nbytes)


GATHER = Check(
    name="all_gather",
    title="All-gather by doubling",
    question="After the first step each rank has the arrays of two ranks. How many can it have "
    "after the second?",
    direction="Write down what ranks 0 to 3 have after each of two steps. Which arrays does the "
    "partner of the second step lack?",
    cost=Cost.PURE,
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=(
        Form(
            "it returns a list with a dictionary for each rank",
            lambda given, out: isinstance(out["other"], str) and "who" in out,
            key="other",
        ),
        Equal("who", "each rank ends with the arrays of all ranks", points=1.5),
        Then(
            Holds(
                "under each rank's number stands its array",
                _arrays_are_right,
                "an array is there under the number of a different rank",
                points=0.5,
            )
        ),
        Then(
            Equal("steps", "log2 N steps", points=1),
            Holds(
                "no array is sent twice to the same rank",
                lambda given, out: out["sent"] <= _most_bytes(given),
                lambda given, out: (
                    f"a rank sent {out['sent']} bytes; {_most_bytes(given)} are enough"
                ),
                points=0.5,
            ),
        ),
    ),
    hint="Start with `apart = 1`. In each step rank r sends all that it has to rank `r ^ apart` "
    "and adds what it receives to its dictionary. Then double `apart`, as long as it is below N.",
    revisit="All-gather: the finished chunks go around",
    mistakes=(
        Fault("one_step_short", sees="who", steps_left_out=1).feedback(
            "You stopped one step too early, so each rank has the arrays of half of the ranks. How "
            "many steps does it take to double from 1 array to N?"
        ),
        Fault("own_array_only", sees="who", sends="own").feedback(
            "Each rank sent only its own array in every step. After log2 N steps it has one array "
            "more for each step, which is too few. What else could a rank pass on in its second "
            "step?"
        ),
        Fault("last_received_only", sees="who", sends="last").feedback(
            "Each rank passed on what it had received last, as in a ring. By doubling, the partner "
            "lacks the rank's earlier arrays, too. Which of its arrays does the partner need?"
        ),
        Observed(
            "ring_again",
            lambda given, out: out["steps"] == len(given["mine"]) - 1,
        ).feedback(
            "You sent the arrays around a ring. All ranks have them in the end, after N - 1 steps, "
            "and with 64 ranks these are 63 waits instead of 6. With whom must a rank exchange so "
            "that the number of its arrays doubles?"
        ),
    ),
)
