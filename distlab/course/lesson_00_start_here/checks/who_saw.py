"""A check of lesson 00: who saw which example."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np

from distlab.course.checks import Check, Cost, Equal, Fault, Form, Holds, Inputs, Observed, Plain
from distlab.course.lesson_00_start_here.checks.data_sets import places_of, sizes
from distlab.course.runs.replicas import mirrored


def _inputs(seed: int) -> Inputs:
    draw, numbers = sizes(seed)
    return {**numbers, "numbers": draw.permutation(numbers["examples"])}


def _call(who_saw: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices(inputs["numbers"]).batch(inputs["batch"])
    seen = who_saw(mirrored(inputs["replicas"]), dataset)
    # Two ways to hold lists of unequal lengths that no plain array is.
    return list(seen) if isinstance(seen, (tf.RaggedTensor, np.ndarray)) else seen


def _read(given: Inputs, outputs: Plain) -> Plain:
    seen = outputs
    if _is_lists_of_numbers(outputs):
        seen = [np.ravel(each).tolist() for each in outputs]
    return {"seen": seen, "lists": len(seen) if isinstance(seen, list) else 0}


def _is_lists_of_numbers(seen: Plain) -> bool:
    def is_flat(each: Plain) -> bool:
        return isinstance(each, (list, np.ndarray)) and all(np.size(entry) == 1 for entry in each)

    return isinstance(seen, list) and all(is_flat(each) for each in seen)


def _reference(given: Inputs, *, batches: slice = slice(None)) -> Plain:
    """What each replica sees of all batches, or of some."""
    seen = [given["numbers"][places].tolist() for places in places_of(given, batches)]
    return {"seen": seen, "lists": len(seen)}


def _numbers(out: Plain) -> list[int]:
    return sorted(chain(*out["seen"]))


def _each_once(given: Inputs, out: Plain) -> bool:
    return _numbers(out) == list(range(given["examples"]))


def _appended(given: Inputs, out: Plain) -> bool:
    """Whether each share became one entry, with the right numbers."""
    joined = [list(chain(*shares)) for shares in out["seen"]]
    return bool(joined == _reference(given)["seen"])


def _shared_otherwise(given: Inputs, out: Plain) -> bool:
    """Whether replicas have other numbers than TensorFlow gives them, each number once."""
    is_complete = out["lists"] == given["replicas"] and _each_once(given, out)
    right = _reference(given)["seen"]
    return bool(is_complete and list(map(sorted, out["seen"])) != list(map(sorted, right)))


WHO_SAW = Check(
    name="who_saw",
    title="Which replica saw which example",
    question="Where in your code is one replica's share of a batch a value of its own?",
    direction=(
        "`strategy.experimental_local_results` takes a distributed batch apart, in the order of the"
        " replicas. Follow one replica through all batches."
    ),
    cost=Cost.TENSORFLOW,
    inputs=_inputs,
    call=_call,
    read=_read,
    reference=_reference,
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
            _each_once,
            lambda given, out: (
                f"{given['examples']} numbers came in batches of {given['batch']}; your lists hold "
                f"{len(_numbers(out))}, {len(set(_numbers(out)))} of them different"
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
            "Each of your lists holds all the numbers. Either the data set was not "
            "distributed, or your lists are one and the same list: `[[]] * n` shows one list "
            "n times. Which of the two is it?"
        ),
        Observed("shares_appended", _appended).feedback(
            "You appended each share as one entry, so your lists hold lists. Which method of "
            "a list adds the numbers of a share one by one?"
        ),
        Fault("only_last_batch", batches=slice(-1, None)).feedback(
            "Your lists hold the last batch only, so each batch replaces the one before. "
            "Where should the lists be made, before the loop or inside it?"
        ),
        Fault("only_first_batch", batches=slice(1)).feedback(
            "Your lists hold the first batch only, so the function ends too early. Is the "
            "`return` inside the loop?"
        ),
        Observed("shared_by_hand", _shared_otherwise).feedback(
            "Each number was seen once, but you dealt the numbers out yourself, in a "
            "different way from TensorFlow. Which call lets the strategy share a data set?"
        ),
    ),
)
