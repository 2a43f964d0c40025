"""Checks of lesson 00: how a batch is shared, and a loop in which it is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from distlab.batching import split_batch
from distlab.grading.boundary import to_plain
from distlab.grading.checks import Check, Criterion, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_close, expect_equal, expect_true, shown
from distlab.grading.lesson_00_start_here.who_saw import places_of, sizes
from distlab.grading.replicas import mirrored

_KINDS = {
    "equal": "equal shares",
    "smaller": "a smaller last share",
    "nothing": "a replica that gets nothing",
}


# Task 1: slices


def _slices_inputs(seed: int) -> Inputs:
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


def _slices_call(split: Callable[..., Any], inputs: Inputs) -> Plain:
    def asked(examples: int, replicas: int) -> Plain:
        return to_plain(split(examples, replicas), at=f"split({examples}, {replicas})")

    return {kind: asked(*inputs[kind]) for kind in _KINDS}


def _slices_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    return Verdict.of(*(_one_split(kind, inputs[kind], outputs[kind]) for kind in _KINDS))


def _one_split(kind: str, case: list[int], yours: Plain) -> Criterion:
    examples, replicas = case
    found = expect_equal(_KINDS[kind], yours=yours, expected=list(split_batch(examples, replicas)))
    if found.passed:
        return found
    return replace(found, message=f"split({examples}, {replicas}): {found.message}")


def _for_each_kind(rule: Callable[[int, int], list[int]]) -> Callable[[Inputs], Plain]:
    return lambda inputs: {kind: rule(*inputs[kind]) for kind in _KINDS}


def _even(examples: int, replicas: int) -> list[int]:
    whole, rest = divmod(examples, replicas)
    return [whole + (index < rest) for index in range(replicas)]


def _rounds_down(inputs: Inputs, outputs: Plain) -> bool:
    """Whether a first piece is rounded down wherever that is another number."""
    uneven = [inputs[kind] + [outputs[kind][0]] for kind in ("smaller", "nothing")]
    return all(first == examples // replicas for examples, replicas, first in uneven)


SLICES = Check(
    name="slices",
    function="split",
    title="How many examples each replica gets",
    points=2,
    inputs=_slices_inputs,
    call=_slices_call,
    judge=_slices_judge,
    hint="A piece has examples / replicas, rounded up. Hand out whole pieces while they last.",
    revisit="The cure: let the strategy share the data",
    mistakes=(
        Mistake(
            "more_than_there_are",
            "A batch is shared: the entries of the list must add up to the examples. Yours add up "
            "to more.",
            when=lambda i, out: any(sum(out[kind]) > i[kind][0] for kind in _KINDS),
        ),
        Mistake(
            "even_split",
            "TensorFlow does not share as evenly as can be. Look again at 10 examples: the first "
            "replicas get whole pieces, and the last gets what is left.",
            yields=_for_each_kind(_even),
        ),
        Mistake(
            "rounded_down",
            "Your pieces are rounded down, so that something is left over. TensorFlow rounds up: "
            "look again at 10 examples.",
            when=_rounds_down,
        ),
        Mistake(
            "negative_share",
            "No replica can get fewer than 0 examples. What happens to replicas that come when "
            "nothing is left?",
            when=lambda inputs, outputs: any(min(outputs[kind]) < 0 for kind in _KINDS),
        ),
        Mistake(
            "replica_left_out",
            "A replica that gets nothing still has its place in the list, with a 0.",
            yields=_for_each_kind(lambda e, r: [share for share in split_batch(e, r) if share]),
        ),
    ),
)


# Task 2: brightness


def _brightness_inputs(seed: int) -> Inputs:
    draw, numbers = sizes(seed)
    # Whole numbers, so that the order in which they are added does not matter.
    pixels = draw.integers(1, 17, size=(numbers["examples"], 2, 2)).astype(np.float32)
    return {**numbers, "pixels": pixels}


def _brightness_call(brightness: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices(inputs["pixels"]).batch(inputs["batch"])
    return brightness(mirrored(inputs["replicas"]), dataset)


def _images_of_each(inputs: Inputs) -> list[int]:
    return [len(places) for places in places_of(inputs)]


def _brightness_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    if not isinstance(outputs, dict) or not {"images", "total"} <= outputs.keys():
        what = "nothing: is there a `return`?" if outputs is None else f"{shown(outputs)}"
        label = 'it returns a dictionary with "images" and "total"'
        return Verdict.of(expect_true(label, False, message=f"yours returned {what}"))
    return Verdict.of(
        expect_equal(
            "the images that each replica worked on",
            yours=outputs["images"],
            expected=_images_of_each(inputs),
            weight=2,
        ),
        expect_close("the total", yours=outputs["total"], expected=_sum(inputs), atol=1e-3),
    )


def _mistaken(shared: bool, total: Callable[[Inputs], float]) -> Callable[[Inputs], Plain]:
    """Outputs where the images were shared or not, and this part of all pixels is the total."""

    def outputs(inputs: Inputs) -> Plain:
        everyone = [inputs["examples"]] * inputs["replicas"]
        images = _images_of_each(inputs) if shared else everyone
        return {"images": images, "total": total(inputs)}

    return outputs


def _sum(inputs: Inputs) -> float:
    return float(inputs["pixels"].sum())


BRIGHTNESS = Check(
    name="brightness",
    function="brightness",
    title="Find the bug: the replicas do not share the work",
    points=2,
    inputs=_brightness_inputs,
    call=_brightness_call,
    judge=_brightness_judge,
    hint="`run` shares nothing by itself. Let the strategy distribute the data set first.",
    revisit="The trap: an ordinary tensor",
    mistakes=(
        Mistake(
            "batch_distributed",
            "`experimental_distribute_dataset` takes a whole data set, once and before the loop: "
            "not one batch of it.",
            error="_variant_tensor",
        ),
        Mistake(
            "whole_batch_to_run",
            "Every replica worked on all the images, so each pixel was counted once for every "
            "replica. What does `run` do with an ordinary tensor?",
            yields=_mistaken(False, lambda i: _sum(i) * i["replicas"]),
        ),
        Mistake(
            "mean_hides_it",
            "The total is right, but every replica still did all the work: a mean, a division or "
            "one replica's result hides that. Share the images first, then add up.",
            yields=_mistaken(False, _sum),
        ),
        Mistake(
            "one_replica_only",
            "The images are shared now, but only replica 0's part is in the total. Reduce over "
            "all replicas.",
            yields=_mistaken(True, lambda i: i["pixels"][places_of(i)[0]].sum()),
        ),
        Mistake(
            "mean_for_sum",
            "The images are shared now, so each replica has a part of the total. Parts are added, "
            "not averaged.",
            yields=_mistaken(True, lambda i: _sum(i) / i["replicas"]),
        ),
    ),
)
