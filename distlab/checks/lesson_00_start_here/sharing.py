"""A check of lesson 00: how many examples each replica gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.batching import split_batch
from distlab.checks import Check, Cost, Fault, Inputs, Observed, Plain
from distlab.checks.lesson_00_start_here.share_lists import (
    Rule,
    below_zero,
    left_out,
    row,
    shares_by,
)


def _inputs(seed: int) -> Inputs:
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


def _call(split: Callable[..., Any], inputs: Inputs) -> Plain:
    return shares_by(split, inputs, called="split")


def _reference(given: Inputs, *, rule: Rule = split_batch) -> Plain:
    return shares_by(rule, given)


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
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=(
        row("equal", "equal shares", called="split", points=1),
        row("smaller", "a smaller last share", called="split", points=0.5),
        row("nothing", "a replica that gets nothing", called="split", points=0.5),
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
        below_zero("negative_share"),
        left_out("replica_left_out", split_batch),
    ),
)
