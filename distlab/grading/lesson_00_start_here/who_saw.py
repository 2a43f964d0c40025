"""A check of lesson 00, who saw which example; and the data sets that lesson's checks share out."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, islice
from typing import Any

import numpy as np

from distlab.batching import split_batch
from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_equal, expect_true, same_plain, shown
from distlab.grading.replicas import mirrored


def sizes(seed: int) -> tuple[np.random.Generator, dict[str, int]]:
    """Draws how many replicas, and a data set whose last batch is a partial one.

    Args:
        seed: Of the draw.

    Returns:
        What draws on, and the numbers of "replicas", of examples in a "batch", of "examples".
    """
    draw = np.random.default_rng(seed)
    replicas = int(draw.integers(2, 5))
    batch = int(draw.integers(2, 4)) * replicas + 1
    examples = 2 * batch + int(draw.integers(2, batch))
    return draw, {"replicas": replicas, "batch": batch, "examples": examples}


def places_of(inputs: Inputs, batches: slice = slice(None)) -> list[list[int]]:
    """For each replica the places in the data set that it sees in these batches, in order.

    Args:
        inputs: With the numbers that `sizes` drew.
        batches: Which batches; by default all.
    """
    seen: list[list[int]] = [[] for _ in range(inputs["replicas"])]
    for start in range(0, inputs["examples"], inputs["batch"])[batches]:
        size = min(inputs["batch"], inputs["examples"] - start)
        places = iter(range(start, start + size))
        for mine, share in zip(seen, split_batch(size, inputs["replicas"]), strict=True):
            mine.extend(islice(places, share))
    return seen


def _who_saw_inputs(seed: int) -> Inputs:
    draw, numbers = sizes(seed)
    return {**numbers, "numbers": draw.permutation(numbers["examples"])}


def _who_saw_call(who_saw: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices(inputs["numbers"]).batch(inputs["batch"])
    seen = who_saw(mirrored(inputs["replicas"]), dataset)
    # Two ways to hold lists of unequal lengths that no plain array is.
    return list(seen) if isinstance(seen, (tf.RaggedTensor, np.ndarray)) else seen


def _seen(inputs: Inputs, batches: slice = slice(None)) -> list[list[int]]:
    return [inputs["numbers"][places].tolist() for places in places_of(inputs, batches)]


def _who_saw_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    expected = _seen(inputs)
    if not isinstance(outputs, list) or not all(_is_flat(each) for each in outputs):
        found = "nothing: is there a `return`?" if outputs is None else shown(outputs)
        label = "a list of numbers for each replica"
        return Verdict.of(expect_true(label, False, message=f"yours returned {found}"))
    yours = [np.ravel(each).tolist() for each in outputs]
    everything = sorted(chain(*yours))
    return Verdict.of(
        expect_equal("one list for each replica", yours=len(yours), expected=len(expected)),
        expect_true(
            "every number was seen once",
            everything == list(range(inputs["examples"])),
            message=f"{inputs['examples']} numbers came in batches of {inputs['batch']}; "
            f"your lists hold {len(everything)}, {len(set(everything))} of them different",
        ),
        expect_equal("what each replica saw, in order", yours=yours, expected=expected, weight=2),
    )


def _is_flat(each: Plain) -> bool:
    """Whether it is a list of numbers, such as one replica's, and not a list of lists."""
    return isinstance(each, (list, np.ndarray)) and all(np.size(one) == 1 for one in each)


def _seen_in_each(inputs: Inputs) -> list[list[list[int]]]:
    """For each batch what `_seen` is for all."""
    count = -(-inputs["examples"] // inputs["batch"])
    return [_seen(inputs, slice(step, step + 1)) for step in range(count)]


def _same_but_for_order(inputs: Inputs, outputs: Plain) -> bool:
    return [sorted(numbers) for numbers in outputs] == [sorted(mine) for mine in _seen(inputs)]


WHO_SAW = Check(
    name="who_saw",
    function="who_saw",
    title="Which replica saw which example",
    points=3,
    inputs=_who_saw_inputs,
    call=_who_saw_call,
    judge=_who_saw_judge,
    hint="Keep a list for each replica, made before the first batch, and extend it in every one.",
    revisit="Which replica saw which example",
    mistakes=(
        Mistake(
            "every_replica_saw_all",
            "Every replica has all the numbers. Was the data set distributed? If it was, your "
            "lists are one and the same list: `[[]] * n` makes one, and shows it n times.",
            when=lambda inputs, outputs: same_plain(outputs[0], inputs["numbers"]),
        ),
        Mistake(
            "shares_appended",
            "Each of your lists holds shares, one for each batch. `append` puts a share in as one "
            "thing; `extend` puts in its numbers.",
            yields=lambda inputs: [list(mine) for mine in zip(*_seen_in_each(inputs), strict=True)],
        ),
        Mistake(
            "lists_of_batches",
            "Your outer list has an entry for each batch. It should have one for each replica.",
            yields=_seen_in_each,
        ),
        Mistake(
            "one_list",
            "All numbers are in one list, so nobody knows which replica saw which.",
            when=lambda inputs, outputs: same_plain(
                sorted(outputs), list(range(inputs["examples"]))
            ),
        ),
        Mistake(
            "last_batch_dropped",
            "The last batch is smaller, and its examples count like the others: do not drop it.",
            yields=lambda inputs: _seen(inputs, slice(None, -1)),
        ),
        Mistake(
            "only_last_batch",
            "Your lists start anew in every batch. Make them once, before the loop, and extend.",
            yields=lambda inputs: _seen(inputs, slice(-1, None)),
        ),
        Mistake(
            "only_first_batch",
            "These are the numbers of the first batch. Does your `return` stand inside the loop?",
            yields=lambda inputs: _seen(inputs, slice(1)),
        ),
        Mistake(
            "order_lost",
            "The right numbers on each replica, but not in the order in which they came.",
            when=_same_but_for_order,
        ),
        Mistake(
            "shared_by_hand",
            "Every number was seen once, but by other replicas than TensorFlow's. Let the strategy "
            "share, and look at what arrives.",
            when=lambda inputs, outputs: (
                sorted(chain(*outputs)) == list(range(inputs["examples"]))
                and len(outputs) == inputs["replicas"]
            ),
        ),
    ),
)
