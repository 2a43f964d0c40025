"""A check of lesson 12: reduce-scatter on a ring, in which rank r ends with chunk r."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.checks import (
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
from distlab.measure.simulated_network import Network


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    ranks = int(draw.integers(4, 7))
    lengths = draw.permutation(np.arange(2, 2 + ranks))  # all different, so that a swap is seen
    return {
        # Whole numbers: their sums are exact in any order.
        "chunks": [
            [draw.integers(-50, 50, size=length).astype(np.float32) for length in lengths]
            for _ in range(ranks)
        ]
    }


def _call(reduce_scatter: Callable[..., Any], inputs: Inputs) -> Plain:
    chunks = [[chunk.copy() for chunk in mine] for mine in inputs["chunks"]]
    network = Network(len(chunks))
    sums = reduce_scatter(network, chunks)
    return {
        "sums": None if sums is None else list(sums),
        "links": sorted({(one.source, one.target) for one in network.messages}),
        "sent": network.bytes_sent,
        "steps": network.steps,
    }


def _reference(
    given: Inputs,
    *,
    first: int = -1,
    returned: int = 0,
    adds: bool = True,
    forwards: bool = True,
    steps_left_out: int = 0,
) -> Plain:
    """Rank r begins by sending chunk r + first, and returns chunk r + returned."""
    ranks = len(given["chunks"])
    held = [[chunk.copy() for chunk in mine] for mine in given["chunks"]]
    network = Network(ranks)
    for step in range(ranks - 1 - steps_left_out):
        from_here = held if forwards else given["chunks"]
        received = network.step(
            {
                (rank, (rank + 1) % ranks): from_here[rank][(rank + first - step) % ranks]
                for rank in range(ranks)
            }
        )
        for rank, chunk in received.items():
            place = (rank - 1 + first - step) % ranks
            held[rank][place] = held[rank][place] + chunk if adds else chunk
    return {
        "sums": [held[rank][(rank + returned) % ranks] for rank in range(ranks)],
        "links": sorted({(one.source, one.target) for one in network.messages}),
        "sent": network.bytes_sent,
        "steps": network.steps,
    }


def _is_a_ring(given: Inputs, outputs: Plain) -> bool:
    ranks = len(given["chunks"])
    return all((source + 1) % ranks == target for source, target in outputs["links"])


class _Sums(Close):
    """The chunks differ in length, so each rank's is compared by itself."""

    def compare(self, yours: Plain, expected: Plain) -> Criterion:
        rows = (super(_Sums, self).compare(a, b) for a, b in zip(yours, expected, strict=True))
        found = list(rows)
        return next((row for row in found if not row.passed), found[0])


SCATTER = Check(
    name="reduce_scatter",
    title="Reduce-scatter on a ring",
    question="Which chunk should rank r receive last, and from how many ranks does it contain "
    "values by then?",
    direction="Follow chunk 0 backwards: it must end on rank 0. On which rank does its journey "
    "begin, and who sends it in the first step?",
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
            Holds(
                "each rank sends to the next one only",
                _is_a_ring,
                lambda given, out: f"messages went over the links {out['links']}",
                points=0.5,
            ),
            Equal("steps", "N - 1 steps", points=0.5),
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
    hint="In step s, rank r sends chunk (r - 1 - s) to rank r + 1, and adds what it receives to "
    "chunk (r - 2 - s). All numbers are modulo the number of ranks, and there are N - 1 steps.",
    revisit="Reduce-scatter: each rank finishes one chunk",
    mistakes=(
        Fault("wrong_chunk", sees=("sums", "steps"), first=0, returned=1)
        .or_with(first=0)
        .or_with(returned=1)
        .feedback(
            "Your chunks travel in an order in which rank r does not end with the sum of chunk r. "
            "If the next operation updates the weights of chunk r there, it updates them with a "
            "different sum. On which rank must the journey of chunk 0 begin, so that it ends on "
            "rank 0?"
        ),
        Fault("overwrites_before_send", sees=("sums", "steps"), adds=False).feedback(
            "You put the chunk that arrived in place of the rank's own. The rank's own values are "
            "then gone before it has sent them, and only one rank's values arrive. What should a "
            "rank do with its own values before it passes a chunk on?"
        ),
        Fault("sends_original", sees=("sums", "steps"), forwards=False).feedback(
            "In every step you sent the chunks as they were at the start. Each result then holds "
            "the values of two ranks only, because no rank passes on what it has added up. What "
            "must the second message of a chunk contain?"
        ),
        Fault("one_step_short", sees=("sums", "steps"), steps_left_out=1).feedback(
            "You stopped one step too early. The sum of chunk r is still on the rank before, and "
            "rank r has only its own values of it. How many times must a chunk be passed on until "
            "it has visited all N ranks?"
        ),
        Observed(
            "sends_past_the_neighbour",
            lambda given, out: not _is_a_ring(given, out),
        ).feedback(
            "Your ranks sent to ranks that are not the next one. The sums may be right, but on a "
            "ring of cables each such message passes through all ranks between them. Which one "
            "rank may rank r send to?"
        ),
        Observed(
            "sends_too_much",
            lambda given, out: sum(out["sent"]) > _enough(given),
        ).feedback(
            "Your ranks sent more than each chunk once. The link then carries more bytes than the "
            "sum needs. Which chunk does the next rank need in this step, and in which dtype?"
        ),
    ),
)


def _enough(given: Inputs) -> int:
    """What all ranks send, in bytes, if each sends every chunk but one."""
    chunks = given["chunks"]
    return int((len(chunks) - 1) * sum(chunk.nbytes for chunk in chunks[0]))
