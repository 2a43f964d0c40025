"""A check of lesson 12: reduce-scatter in which each exchange halves what a rank must finish."""

from __future__ import annotations

from collections.abc import Callable
from math import log2
from typing import Any

import numpy as np

from distlab.course.checks import (
    Check,
    Close,
    Cost,
    Criterion,
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
    ranks = (8, 4)[seed % 2]
    lengths = draw.permutation(np.arange(2, 2 + ranks))  # all different, so that a swap is seen
    return {
        # Whole numbers: their sums are exact in any order.
        "chunks": [
            [draw.integers(-50, 50, size=length).astype(np.float32) for length in lengths]
            for _ in range(ranks)
        ]
    }


def _call(reduce_scatter: Callable[..., Any], inputs: Inputs) -> Plain:
    chunks = [[chunk.copy() for chunk in own_chunks] for own_chunks in inputs["chunks"]]
    network = Network(len(chunks))
    sums = reduce_scatter(network, chunks)
    sums = None if sums is None else list(sums)
    return {"sums": sums, "sent": network.bytes_sent, "steps": network.steps}


def _reference(
    given: Inputs,
    *,
    near_first: bool = False,
    keeps_partners_half: bool = False,
    adds: bool = True,
    forwards: bool = True,
    steps_left_out: int = 0,
) -> Plain:
    """Each rank keeps a half of the chunks that it has left, and returns the last one."""
    ranks = len(given["chunks"])
    held = [[chunk.copy() for chunk in own_chunks] for own_chunks in given["chunks"]]
    left = [list(range(ranks)) for _ in range(ranks)]
    network, steps = Network(ranks), round(log2(ranks))
    powers = range(steps) if near_first else range(steps)[::-1]
    for power in powers[: steps - steps_left_out]:
        sends = {}
        for rank in range(ranks):
            half = len(left[rank]) // 2
            low, high = left[rank][:half], left[rank][half:]
            upper = bool(rank >> power & 1) is not keeps_partners_half
            left[rank], given_away = (high, low) if upper else (low, high)
            of = held if forwards else given["chunks"]
            sends[rank, rank ^ 2**power] = {number: of[rank][number] for number in given_away}
        for rank, arrived in network.step(sends).items():
            for number, chunk in arrived.items():
                held[rank][number] = held[rank][number] + chunk if adds else chunk
    last = [rank if rank in left[rank] else left[rank][0] for rank in range(ranks)]
    sums = [held[rank][number] for rank, number in enumerate(last)]
    return {"sums": sums, "sent": network.bytes_sent, "steps": network.steps}


def _enough(given: Inputs) -> int:
    """What all ranks send, in bytes, if each sends every chunk but its own."""
    chunks = given["chunks"]
    return int((len(chunks) - 1) * sum(chunk.nbytes for chunk in chunks[0]))


class _Sums(Close):
    """The chunks differ in length, so each rank's is compared by itself."""

    def compare(self, yours: Plain, expected: Plain) -> Criterion:
        rows = (super(_Sums, self).compare(a, b) for a, b in zip(yours, expected, strict=True))
        found = list(rows)
        return next((row for row in found if not row.passed), found[0])


SCATTER = Check(
    name="reduce_scatter",
    title="Reduce-scatter by halving",
    question="After the first exchange, which chunks does rank r never need again?",
    direction="Follow rank 0 of four: with whom does it exchange first, which two chunks does it "
    "give away, and which one in the second step?",
    cost=Cost.PURE,
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=(
        Form(
            "it returns a list with one chunk for each rank",
            lambda given, out: (
                isinstance(out["sums"], (list, np.ndarray))
                and len(out["sums"]) == len(given["chunks"])
            ),
            key="sums",
        ),
        _Sums("sums", "rank r ends with the sum of chunk r", atol=1e-3, points=2),
        Then(
            Equal("steps", "log2 N steps", points=1),
            Holds(
                "no chunk is sent that its receiver does not need",
                lambda given, out: sum(out["sent"]) <= _enough(given),
                lambda given, out: (
                    f"all ranks sent {sum(out['sent'])} bytes; {_enough(given)} are enough"
                ),
                points=0.5,
            ),
        ),
    ),
    hint="Let `apart` go from N / 2 down to 1. Rank r sends rank `r ^ apart` the chunks n with "
    "`n // apart == (r ^ apart) // apart` as a dictionary, and adds what it receives to its own.",
    revisit="Reduce-scatter: each rank finishes one chunk",
    mistakes=(
        Fault("wrong_chunk", sees="sums", near_first=True)
        .or_with(keeps_partners_half=True)
        .feedback(
            "Your ranks finish a chunk each, and rank r does not finish chunk r. If the next "
            "operation updates the weights of chunk r there, it updates them with a different sum. "
            "Which half of the chunks must rank 1 keep if its partner is far away, and which if it "
            "is rank 0?"
        ),
        Fault("overwrites_before_send", sees="sums", adds=False).feedback(
            "You put the chunks that arrived in place of the rank's own. The rank's own values are "
            "then gone before it has sent them, and only one rank's values arrive. What should a "
            "rank do with its own values before it passes a chunk on?"
        ),
        Fault("sends_original", sees="sums", forwards=False).feedback(
            "In every step you sent the chunks as they were at the start. No rank passes on what "
            "it has added up, so each result lacks the values of some ranks. What must the second "
            "message of a chunk contain?"
        ),
        Fault("one_step_short", sees="sums", steps_left_out=1).feedback(
            "You stopped one step too early. Each rank and its last partner have half of the sum "
            "of chunk r each. How many times can N chunks be halved until one is left?"
        ),
        Observed(
            "ring_again", lambda given, out: out["steps"] == len(given["chunks"]) - 1
        ).feedback(
            "You sent the chunks around a ring. The sums are right after N - 1 steps, and with 64 "
            "ranks these are 63 waits instead of 6. With whom must a rank exchange so that what "
            "it still has to finish is halved?"
        ),
    ),
)
