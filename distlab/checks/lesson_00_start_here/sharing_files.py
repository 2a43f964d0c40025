"""A check of lesson 00: how a partial batch that is read from files is shared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.batching import split_batch
from distlab.checks import Check, Cost, Fault, Inputs, Plain
from distlab.checks.lesson_00_start_here.share_lists import (
    Rule,
    below_zero,
    left_out,
    row,
    shares_by,
)

_KINDS = ("full", "cut", "pieces")


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    replicas = [int(draw.integers(3, 9)) for _ in _KINDS]
    pieces = [int(draw.integers(4, 20)) for _ in _KINDS]
    taken = [int(draw.integers(1, count - 1)) for count in replicas]  # one replica gets nothing
    more = int(draw.integers(1, pieces[1]))  # so that a replica gets a part of a piece
    examples = (replicas[0] * pieces[0], taken[1] * pieces[1] + more, taken[2] * pieces[2])
    sizes = [count * piece for count, piece in zip(replicas, pieces, strict=True)]
    return dict(zip(_KINDS, zip(examples, replicas, sizes, strict=True), strict=True))


def _call(split: Callable[..., Any], inputs: Inputs) -> Plain:
    return shares_by(split, inputs, called="split_from_files")


def _as_from_files(examples: int, replicas: int, batch_size: int) -> Any:
    return split_batch(examples, replicas, source="files", full_batch=batch_size)


def _as_from_memory(examples: int, replicas: int, batch_size: int) -> Any:
    return split_batch(examples, replicas)


def _even(examples: int, replicas: int, batch_size: int) -> Any:
    return split_batch(examples, replicas, source="distribute")


def _whole_pieces(examples: int, replicas: int, batch_size: int) -> list[int]:
    piece = batch_size // replicas
    return [piece if examples > piece * replica else 0 for replica in range(replicas)]


def _reference(given: Inputs, *, rule: Rule = _as_from_files) -> Plain:
    return shares_by(rule, given)


FILE_SLICES = Check(
    name="file_slices",
    function="split_from_files",
    title="How many examples each replica gets from files",
    question="How large is the first share of a partial batch, if TensorFlow fixed the pieces "
    "before it knew how many examples are left?",
    direction="Compare your shares of 10 examples after batches of 32 with those of a full batch.",
    cost=Cost.PURE,
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=(
        row("cut", "a share that is smaller than a piece", called="split_from_files", points=1),
        row("pieces", "whole pieces, then nothing", called="split_from_files", points=0.5),
        row("full", "a full batch", called="split_from_files", points=0.5),
    ),
    hint="A piece has batch_size / replicas examples, in the last batch, too. Hand out such "
    "pieces while examples last.",
    revisit="Three ways to cut a batch",
    mistakes=(
        Fault("as_from_memory", rule=_as_from_memory).feedback(
            "You divided the examples of this batch by the replicas, which is the rule for data in "
            "memory. From files, a partial batch is cut into the pieces of a full one. Which of "
            "the three numbers tells how large such a piece is?"
        ),
        Fault("as_equal_as_possible", rule=_even).feedback(
            "You made the shares as equal as possible. Of 10 examples after batches of 32, "
            "replica 0 gets 8. Where do these 8 come from?"
        ),
        Fault("whole_pieces_only", rule=_whole_pieces).feedback(
            "You gave every replica a whole piece or nothing, so your shares add up to more "
            "examples than this batch has. What does the last replica with any examples get?"
        ),
        below_zero("below_zero"),
        left_out("empty_left_out", _as_from_files),
    ),
)
