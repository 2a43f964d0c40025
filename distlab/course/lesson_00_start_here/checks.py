"""Checks of lesson 00: how a batch is shared, and who saw which example."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, islice
from typing import Any

import numpy as np

from distlab.batching import split_batch
from distlab.course.checks import (
    Check,
    Close,
    Cost,
    Equal,
    Fault,
    Form,
    Holds,
    Inputs,
    Observed,
    Plain,
    Raises,
    Then,
)
from distlab.course.results.plain_values import to_plain
from distlab.course.runs.replicas import mirrored


def _asked(function: str, numbers: Any) -> str:
    """The call as a learner would write it, such as "split(10, 4)"."""
    return f"{function}({', '.join(str(int(number)) for number in numbers)})"


def _shares_by(rule: Callable[..., Any], given: Inputs, *, called: str = "rule") -> Plain:
    """The shares of each kind of case, by a rule that takes its numbers."""
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
    "One of your shares is below 0, because you subtracted whole pieces from fewer examples. What "
    "does a replica get if nothing is left for it?"
)


# --- slices


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
    direction="Compare your shares with what TensorFlow hands out for 10 examples on 4 replicas: "
    "which replica gets the smaller share?",
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
            "Your shares add up to more examples than the batch has, so some examples are used "
            "twice. What should the entries of the list add up to?"
        ),
        Fault("even_split", rule=_even).feedback(
            "You made the shares as equal as possible. TensorFlow does so for data from files, and "
            "then only for a full batch. This batch comes from memory. How large is the first "
            "share of 10 examples on 4 replicas?"
        ),
        Fault("rounded_down", rule=_rest_for_the_last)
        .or_with(rule=lambda examples, replicas: [examples // replicas] * replicas)
        .feedback(
            "You rounded the size of a piece down, so examples are left over after every replica "
            "has its piece. Which way does TensorFlow round 10 / 4?"
        ),
        _BELOW_ZERO,
    ),
)


# --- file_slices

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
    hint="A piece has batch_size / replicas examples, in the last batch, too. Hand out such pieces "
    "while examples last.",
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
            "You made the shares as equal as possible. Of 10 examples after batches of 32, replica "
            "0 gets 8. Where do these 8 come from?"
        ),
        Fault("whole_pieces_only", rule=_whole_pieces).feedback(
            "You gave every replica a whole piece or nothing, so your shares add up to more "
            "examples than this batch has. What does the last replica with any examples get?"
        ),
        _BELOW_ZERO,
    ),
)


# --- brightness and who_saw: what each replica sees of a data set


def _draw_sizes(seed: int) -> tuple[np.random.Generator, dict[str, int]]:
    """Draws how many replicas, and a data set whose last batch is a partial one."""
    draw = np.random.default_rng(seed)
    replicas = int(draw.integers(2, 5))
    batch = int(draw.integers(2, 4)) * replicas + 1
    examples = 2 * batch + int(draw.integers(2, batch))
    return draw, {"replicas": replicas, "batch": batch, "examples": examples}


def _places_of(inputs: Inputs, batches: slice = slice(None)) -> list[list[int]]:
    """For each replica the places in the data set that it sees in these batches, in order."""
    seen: list[list[int]] = [[] for _ in range(inputs["replicas"])]
    for start in range(0, inputs["examples"], inputs["batch"])[batches]:
        size = min(inputs["batch"], inputs["examples"] - start)
        places = iter(range(start, start + size))
        for digits, share in zip(seen, split_batch(size, inputs["replicas"]), strict=True):
            digits.extend(islice(places, share))
    return seen


def _brightness_inputs(seed: int) -> Inputs:
    draw, numbers = _draw_sizes(seed)
    # Whole numbers, so that the order in which they are added does not matter.
    pixels = draw.integers(1, 17, size=(numbers["examples"], 2, 2)).astype(np.float32)
    return {**numbers, "pixels": pixels}


def _brightness_call(brightness: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices(inputs["pixels"]).batch(inputs["batch"])
    return brightness(mirrored(inputs["replicas"]), dataset)


def _brightness_reference(
    given: Inputs, *, each_sees_all: bool = False, total: str = "of all"
) -> Plain:
    """The images of each replica, and the total of all pixels or what is taken for it."""
    places, replicas, pixels = _places_of(given), given["replicas"], given["pixels"]
    shares = [len(place) for place in places]
    all_pixels = float(pixels.sum())
    return {
        "images": [given["examples"]] * replicas if each_sees_all else shares,
        "total": {
            "of all": all_pixels,
            "once for each replica": all_pixels * replicas,
            "the mean of the parts": all_pixels / replicas,
            "replica 0's part": float(pixels[places[0]].sum()),
        }[total],
    }


def _is_dictionary(given: Inputs, out: Plain) -> bool:
    return isinstance(out, dict) and {"images", "total"} <= out.keys()


BRIGHTNESS = Check(
    name="brightness",
    title="Find the bug: the replicas do not share the work",
    question="Which examples does each replica see in your loop?",
    direction="Compare what `strategy.run` passes on for an ordinary tensor and for a batch of a "
    "distributed data set.",
    inputs=_brightness_inputs,
    call=_brightness_call,
    reference=_brightness_reference,
    criteria=(
        Form('it returns a dictionary with "images" and "total"', _is_dictionary),
        Equal("images", "the images that each replica worked on", points=1.5),
        Then(Close("total", "the total", atol=1e-3, points=0.5)),
    ),
    hint="Give the loop `strategy.experimental_distribute_dataset(dataset)` in place of `dataset`.",
    revisit="Count ten digits together",
    mistakes=(
        Raises("batch_distributed", "_variant_tensor").feedback(
            "You gave one batch to `experimental_distribute_dataset`, which takes a whole data "
            "set. It stopped with an error. Where does the data set appear in your function, "
            "before the loop takes it apart?"
        ),
        Fault("whole_batch_to_run", each_sees_all=True, total="once for each replica").feedback(
            "You gave each batch to `run` as an ordinary tensor, so every replica worked on all "
            "images. Each pixel was counted once for every replica. What does `run` do with a "
            "tensor that has not been cut into shares?"
        ),
        Fault("mean_hides_it", sees=("images", "total"), each_sees_all=True).feedback(
            "Your total is right, but every replica still worked on all images. A mean, a division "
            "or the result of one replica hides that. Which step of your function gives each "
            "replica images of its own?"
        ),
        Fault("one_replica_only", total="replica 0's part").feedback(
            "The replicas share the images now, but your total holds the part of replica 0 alone. "
            "The pixels of the others are missing. Which call combines the values of all replicas?"
        ),
        Fault("mean_for_sum", total="the mean of the parts").feedback(
            "The replicas share the images now, and you averaged their totals. The result is too "
            "small by the number of replicas. What do you do with parts to get the whole?"
        ),
    ),
)


def _who_saw_inputs(seed: int) -> Inputs:
    draw, numbers = _draw_sizes(seed)
    return {**numbers, "numbers": draw.permutation(numbers["examples"])}


def _who_saw_call(who_saw: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices(inputs["numbers"]).batch(inputs["batch"])
    seen = who_saw(mirrored(inputs["replicas"]), dataset)
    # Two ways to hold lists of unequal lengths that no plain array is.
    return list(seen) if isinstance(seen, (tf.RaggedTensor, np.ndarray)) else seen


def _who_saw_read(given: Inputs, outputs: Plain) -> Plain:
    seen = outputs
    if _is_lists_of_numbers(outputs):
        seen = [np.ravel(each).tolist() for each in outputs]
    return {"seen": seen, "lists": len(seen) if isinstance(seen, list) else 0}


def _is_lists_of_numbers(seen: Plain) -> bool:
    def is_flat(each: Plain) -> bool:
        return isinstance(each, (list, np.ndarray)) and all(np.size(entry) == 1 for entry in each)

    return isinstance(seen, list) and all(is_flat(each) for each in seen)


def _who_saw_reference(given: Inputs, *, batches: slice = slice(None)) -> Plain:
    """Returns the examples that each replica sees of all batches, or of some."""
    seen = [given["numbers"][places].tolist() for places in _places_of(given, batches)]
    return {"seen": seen, "lists": len(seen)}


def _all_numbers(out: Plain) -> list[int]:
    return sorted(chain(*out["seen"]))


def _is_appended(given: Inputs, out: Plain) -> bool:
    """Whether each share became one entry, with the right numbers."""
    joined = [list(chain(*shares)) for shares in out["seen"]]
    return bool(joined == _who_saw_reference(given)["seen"])


WHO_SAW = Check(
    name="who_saw",
    title="Which replica saw which example",
    question="Where in your code is one replica's share of a batch a value of its own?",
    direction="`strategy.experimental_local_results` takes a distributed batch apart, in the order "
    "of the replicas. Follow one replica through all batches.",
    inputs=_who_saw_inputs,
    call=_who_saw_call,
    read=_who_saw_read,
    reference=_who_saw_reference,
    criteria=(
        Form(
            "a list of numbers for each replica",
            lambda given, out: _is_lists_of_numbers(out["seen"]),
            key="seen",
        ),
        Form("your lists hold numbers", lambda given, out: any(out["seen"]), key="seen"),
        Equal("lists", "one list for each replica", points=0.5),
        Holds(
            "every number was seen once",
            lambda given, out: _all_numbers(out) == list(range(given["examples"])),
            lambda given, out: (
                f"{given['examples']} numbers came in batches of {given['batch']}; your lists hold "
                f"{len(_all_numbers(out))}, {len(set(_all_numbers(out)))} of them different"
            ),
            points=1,
        ),
        Equal("seen", "what each replica saw, in order", points=1.5),
    ),
    hint="Keep a list for each replica, made before the first batch, and extend it in every one.",
    revisit="Which replica saw which example",
    mistakes=(
        Observed(
            "every_replica_saw_all",
            lambda given, out: out["seen"][0] == given["numbers"].tolist(),
        ).feedback(
            "Each of your lists holds all the numbers. Either the data set was not distributed, or "
            "your lists are one and the same list: `[[]] * n` shows one list n times. Which of the "
            "two is it?"
        ),
        Observed("shares_appended", _is_appended).feedback(
            "You appended each share as one entry, so your lists hold lists. Which method of a "
            "list adds the numbers of a share one by one?"
        ),
        Fault("only_last_batch", batches=slice(-1, None)).feedback(
            "Your lists hold the last batch only, so each batch replaces the one before. Where "
            "should the lists be made, before the loop or inside it?"
        ),
        Fault("only_first_batch", batches=slice(1)).feedback(
            "Your lists hold the first batch only, so the function ends too early. Is the `return` "
            "inside the loop?"
        ),
    ),
)


CHECKS = (SLICES, FILE_SLICES, BRIGHTNESS, WHO_SAW)
