"""A check of lesson 09: each worker's part of the data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Cost, Equal, Inputs, Plain
from distlab.course.checks.criteria import Holds, Then
from distlab.course.checks.mistakes import Fault, Observed
from distlab.course.runs.cluster_calls import WORKERS, call_on_workers

_GLOBAL_BATCH = 8


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    examples = int(draw.choice([24, 32, 40]))
    return {
        "numbers": np.sort(draw.choice(900, size=examples, replace=False)).astype("int64"),
        "seed": int(draw.integers(1, 1000)),
    }


def _call(my_part: Callable[..., Any], inputs: Inputs) -> Plain:
    workers = call_on_workers(_read_parts, my_part, inputs)
    return _noted(*([worker[pass_] for worker in workers] for pass_ in range(3)))


def _read_parts(strategy: Any, my_part: Callable[..., Any], inputs: Inputs) -> Plain:
    """This worker's batches, read once, again with the same seed, and with a different seed."""
    import tensorflow as tf

    def batches_of(seed: int) -> list[Any]:
        def part(context: Any) -> Any:
            data = my_part(context, inputs["numbers"], _GLOBAL_BATCH, seed)
            if data is None:
                raise TypeError("your function returned None: is there a `return`?")
            if not isinstance(data, tf.data.Dataset):
                kind = type(data).__name__
                raise TypeError(f"a tf.data.Dataset was asked for; yours is a {kind}")
            if len(getattr(data.element_spec, "shape", [None])) != 1:
                raise TypeError(
                    "batches of numbers were asked for; yours gives one number at a time"
                )
            return data

        batches = strategy.distribute_datasets_from_function(part)
        local = strategy.experimental_local_results
        most = range(2 * len(inputs["numbers"]) // _GLOBAL_BATCH + 2)  # a part may have no end
        return [
            np.concatenate([numbers.numpy() for numbers in local(batch)])
            for _, batch in zip(most, batches, strict=False)
        ]

    return [batches_of(inputs["seed"] + more) for more in (0, 0, 1)]


def _noted(parts: list[Any], again: list[Any], reseeded: list[Any]) -> Plain:
    """By worker: batches and their sizes, and the numbers in the order in which they were read."""

    def orders(workers: list[Any]) -> list[list[int]]:
        return [[int(number) for batch in batches for number in batch] for batches in workers]

    return {
        "parts": parts,
        "sizes": [[len(batch) for batch in batches if len(batch)] for batches in parts],
        "orders": orders(parts),
        "again": orders(again),
        "reseeded": orders(reseeded),
    }


def _reference(given: Inputs, *, batch: int = _GLOBAL_BATCH // WORKERS) -> Plain:
    """One order for all workers, of which each takes every other number, in batches."""

    def parts(seed: int) -> list[Any]:
        order = np.random.default_rng(seed).permutation(given["numbers"])
        own = [order[worker::WORKERS] for worker in range(WORKERS)]
        return [
            [examples[at : at + batch] for at in range(0, len(examples), batch)] for examples in own
        ]

    return _noted(*(parts(given["seed"] + more) for more in (0, 0, 1)))


def _together(out: Plain) -> Counter[int]:
    return Counter(number for order in out["orders"] for number in order)


def _missed(given: Inputs, out: Plain) -> str:
    times = _together(out)
    missed = sum(int(number) not in times for number in given["numbers"])
    twice = sum(count > 1 for count in times.values())
    return f"of {len(given['numbers'])} examples {missed} were read by no worker, {twice} twice"


def _not_shuffled(given: Inputs, out: Plain) -> str:
    """What shows that a part is not shuffled by `seed`; nothing if it is."""
    if any(order == sorted(order) for order in out["orders"]):
        return "a worker reads its part in the order in which it was given"
    if _batches_in_order(out):
        return "in each batch of a worker the numbers are in the order in which they were given"
    if out["again"] != out["orders"]:
        return "with the same `seed` again, a worker reads its part in a different order"
    if any(a == b for a, b in zip(out["orders"], out["reseeded"], strict=True)):
        return "with a different `seed`, a worker reads its part in the same order"
    return ""


def _batches_in_order(out: Plain) -> bool:
    """Whether some worker's batches are each in order: by chance that is next to never so."""

    def in_order(batches: Plain) -> bool:
        return all((np.diff(batch) > 0).all() for batch in batches) and max(map(len, batches)) > 1

    return any(batches and in_order(batches) for batches in out["parts"])


def _overlap(given: Inputs, out: Plain) -> bool:
    """Whether parts of the right size share some numbers, and not all."""
    first, second = map(set, out["orders"])
    right_size = len(first) == len(second) == len(given["numbers"]) // WORKERS
    return right_size and first != second and bool(first & second)


MY_PART = Check(
    name="my_part",
    title="Each worker's part of the data",
    question="Which numbers does each worker read, and does any number come twice or never?",
    direction=(
        "Look at the order of shard, shuffle and batch, and at what each worker knows when it "
        "shuffles."
    ),
    cost=Cost.CLUSTER,
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=(
        Holds(
            "together the workers read each example once",
            lambda given, out: _together(out) == Counter(given["numbers"].tolist()),
            _missed,
            points=2,
        ),
        Then(
            Equal("sizes", "each worker's batches"),
            Holds(
                "each worker's part is shuffled",
                lambda given, out: not _not_shuffled(given, out),
                _not_shuffled,
            ),
        ),
    ),
    hint="Select with `dataset.shard(context.num_input_pipelines, "
    "context.input_pipeline_id)`, then shuffle with `seed`, then batch by "
    "`context.get_per_replica_batch_size(global_batch)`.",
    revisit="Who reads what",
    mistakes=(
        Observed(
            "both_read_all",
            lambda given, out: all(
                sorted(order) == given["numbers"].tolist() for order in out["orders"]
            ),
        ).feedback(
            "Both workers read every number. So each example is trained on twice, and two "
            "workers are no faster than one. Which two values of `context` say how many "
            "workers there are, and which one this is?"
        ),
        Observed("overlap", _overlap).feedback(
            "Each worker shuffled in its own order and then took every second number of it. So "
            "some numbers are read twice and some by no worker. What must be equal on all "
            "workers if you shuffle before you shard?"
        ),
        Fault("global_batch_each", batch=_GLOBAL_BATCH).feedback(
            "Each worker's batches have the size of the global batch. Together the workers "
            "then take twice as many examples in a step as asked for. How many of a global "
            "batch belong to one worker?"
        ),
        Observed(
            "not_shuffled",
            lambda given, out: any(order == sorted(order) for order in out["orders"]),
        ).feedback(
            "You gave each worker the right part, in the given order. So every epoch shows the "
            "examples in the same order. Where does `seed` enter your code?"
        ),
    ),
)
