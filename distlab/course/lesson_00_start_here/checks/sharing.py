"""Two checks of lesson 00: how many examples each replica gets, from memory and from files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.batching import split_batch
from distlab.course.checks import Check, Cost, Equal, Fault, Inputs, Observed, Plain
from distlab.course.results.plain_values import to_plain

Rule = Callable[..., Any]  # takes the numbers of a case, and returns the shares


def _asked(function: str, numbers: Any) -> str:
    """The call as a learner would write it, such as "split(10, 4)"."""
    return f"{function}({', '.join(str(int(number)) for number in numbers)})"


def _shares_by(rule: Rule, given: Inputs, *, called: str = "rule") -> Plain:
    """The shares of each kind of case."""
    return {
        kind: to_plain(rule(*map(int, numbers)), at=_asked(called, numbers))
        for kind, numbers in given.items()
    }


def _row(kind: str, label: str, *, called: str, points: float) -> Equal:
    """The criterion that the shares of one kind are right."""
    return Equal(kind, label, asked=lambda given: _asked(called, given[kind]), points=points)


_BELOW_ZERO = Observed(
    "negative_share", lambda given, out: any(min(out[kind]) < 0 for kind in given)
).feedback(
    "One of your shares is below 0, because you subtracted whole pieces from fewer examples. "
    "What does a replica get if nothing is left for it?"
)


# From memory


def _batches_in_memory(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    pairs = [(examples, replicas) for replicas in range(3, 9) for examples in range(1, 100)]
    last = {(e, r): e - -(-e // r) * (r - 1) for e, r in pairs}  # if all others get whole pieces
    kinds = {
        "equal": [(e, r) for e, r in pairs if e % r == 0],
        # By two or more, so that sharing as evenly as can be is another answer.
        "smaller": [(e, r) for e, r in pairs if 0 < last[e, r] <= -(-e // r) - 2],
        "nothing": [(e, r) for e, r in pairs if last[e, r] < 0],
    }
    return {kind: list(map(int, draw.choice(some))) for kind, some in kinds.items()}


def _even(examples: int, replicas: int) -> Any:
    return split_batch(examples, replicas, source="distribute")


def _rest_for_the_last(examples: int, replicas: int) -> list[int]:
    piece = examples // replicas
    return [piece] * (replicas - 1) + [examples - piece * (replicas - 1)]


SLICES = Check(
    name="slices",
    function="split",
    title="How many examples each replica gets",
    question="How large is the first share if the examples do not divide evenly?",
    direction=(
        "Compare your shares with what TensorFlow hands out for 10 examples on 4 replicas: which "
        "replica gets the smaller share?"
    ),
    cost=Cost.PURE,
    inputs=_batches_in_memory,
    call=lambda split, inputs: _shares_by(split, inputs, called="split"),
    reference=lambda given, *, rule=split_batch: _shares_by(rule, given),
    criteria=(
        _row("equal", "equal shares", called="split", points=1),
        _row("smaller", "a smaller last share", called="split", points=0.5),
        _row("nothing", "a replica that gets nothing", called="split", points=0.5),
    ),
    hint="A piece has examples / replicas, rounded up. Hand out whole pieces while they last.",
    revisit="Three ways to cut a batch",
    mistakes=(
        Observed(
            "more_than_there_are",
            lambda given, out: any(sum(out[kind]) > given[kind][0] for kind in given),
        ).feedback(
            "Your shares add up to more examples than the batch has, so some examples are "
            "used twice. What should the entries of the list add up to?"
        ),
        Fault("even_split", rule=_even).feedback(
            "You made the shares as equal as possible. TensorFlow does so for data from "
            "files, and then only for a full batch. This batch comes from memory. How large "
            "is the first share of 10 examples on 4 replicas?"
        ),
        Fault("rounded_down", rule=_rest_for_the_last)
        .or_with(rule=lambda examples, replicas: [examples // replicas] * replicas)
        .feedback(
            "You rounded the size of a piece down, so examples are left over after every "
            "replica has its piece. Which way does TensorFlow round 10 / 4?"
        ),
        _BELOW_ZERO,
    ),
)


# From files

_KINDS = ("full", "cut", "pieces")


def _batches_from_files(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    replicas = [int(draw.integers(3, 9)) for _ in _KINDS]
    pieces = [int(draw.integers(4, 20)) for _ in _KINDS]
    taken = [int(draw.integers(1, count - 1)) for count in replicas]  # one replica gets nothing
    more = int(draw.integers(1, pieces[1]))  # so that a replica gets a part of a piece
    examples = (replicas[0] * pieces[0], taken[1] * pieces[1] + more, taken[2] * pieces[2])
    sizes = [count * piece for count, piece in zip(replicas, pieces, strict=True)]
    return dict(zip(_KINDS, zip(examples, replicas, sizes, strict=True), strict=True))


def _as_from_files(examples: int, replicas: int, batch_size: int) -> Any:
    return split_batch(examples, replicas, source="files", full_batch=batch_size)


def _whole_pieces(examples: int, replicas: int, batch_size: int) -> list[int]:
    piece = batch_size // replicas
    return [piece if examples > piece * replica else 0 for replica in range(replicas)]


FILE_SLICES = Check(
    name="file_slices",
    function="split_from_files",
    title="How many examples each replica gets from files",
    question="How large is the first share of a partial batch, if TensorFlow fixed the pieces "
    "before it knew how many examples are left?",
    direction="Compare your shares of 10 examples after batches of 32 with those of a full batch.",
    cost=Cost.PURE,
    inputs=_batches_from_files,
    call=lambda split, inputs: _shares_by(split, inputs, called="split_from_files"),
    reference=lambda given, *, rule=_as_from_files: _shares_by(rule, given),
    criteria=(
        _row("cut", "a share that is smaller than a piece", called="split_from_files", points=1),
        _row("pieces", "whole pieces, then nothing", called="split_from_files", points=0.5),
        _row("full", "a full batch", called="split_from_files", points=0.5),
    ),
    hint="A piece has batch_size / replicas examples, in the last batch, too. Hand out such "
    "pieces while examples last.",
    revisit="Three ways to cut a batch",
    mistakes=(
        Fault(
            "as_from_memory",
            rule=lambda examples, replicas, batch_size: split_batch(examples, replicas),
        ).feedback(
            "You divided the examples of this batch by the replicas, which is the rule for data in "
            "memory. From files, a partial batch is cut into the pieces of a full one. Which of "
            "the three numbers tells how large such a piece is?"
        ),
        Fault(
            "as_equal_as_possible",
            rule=lambda examples, replicas, batch_size: _even(examples, replicas),
        ).feedback(
            "You made the shares as equal as possible. Of 10 examples after batches of 32, "
            "replica 0 gets 8. Where do these 8 come from?"
        ),
        Fault("whole_pieces_only", rule=_whole_pieces).feedback(
            "You gave every replica a whole piece or nothing, so your shares add up to more "
            "examples than this batch has. What does the last replica with any examples get?"
        ),
        _BELOW_ZERO,
    ),
)
