"""A check of lesson 09: each worker's part of the data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Criterion, Inputs, Mistake, Plain, Verdict
from distlab.grading.clusters import WORKERS, call_on_workers
from distlab.grading.comparing import expect_equal, expect_true

_GLOBAL_BATCH = 8


def _part_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    examples = int(draw.choice([24, 32, 40]))
    return {
        "numbers": np.sort(draw.choice(900, size=examples, replace=False)).astype("int64"),
        "seed": int(draw.integers(1, 1000)),
    }


def _part_call(my_part: Callable[..., Any], inputs: Inputs) -> Plain:
    return call_on_workers(_read_part, my_part, inputs)


def _read_part(strategy: Any, my_part: Callable[..., Any], inputs: Inputs) -> Plain:
    """The batches of this worker in one pass over its part."""
    import tensorflow as tf

    def part(context: Any) -> Any:
        data = my_part(context, inputs["numbers"], _GLOBAL_BATCH, inputs["seed"])
        if data is None:
            raise TypeError("your function returned None: is there a `return`?")
        if not isinstance(data, tf.data.Dataset):
            raise TypeError(f"a tf.data.Dataset was asked for; yours is a {type(data).__name__}")
        if len(getattr(data.element_spec, "shape", [None])) != 1:
            raise TypeError("batches of numbers were asked for; yours gives one number at a time")
        return data

    batches = strategy.distribute_datasets_from_function(part)
    local = strategy.experimental_local_results
    most = range(2 * len(inputs["numbers"]) // _GLOBAL_BATCH + 2)  # a part may have no end
    return [
        np.concatenate([one.numpy() for one in local(batch)])
        for _, batch in zip(most, batches, strict=False)
    ]


def _sizes(outputs: Plain) -> list[list[int]]:
    return [[len(batch) for batch in worker if len(batch)] for worker in outputs]


def _all_numbers(worker: Plain) -> list[int]:
    return [int(number) for batch in worker for number in batch]


def _part_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    numbers = inputs["numbers"].tolist()
    times = Counter(number for worker in outputs for number in _all_numbers(worker))
    missed = sum(number not in times for number in numbers)
    twice = sum(count > 1 for count in times.values())
    local = _GLOBAL_BATCH // WORKERS
    steps = len(numbers) // _GLOBAL_BATCH
    return Verdict.of(
        expect_true(
            "together the workers read each example once",
            times == Counter(numbers),
            message=f"of {len(numbers)} examples {missed} were read by nobody, {twice} twice",
            weight=2,
        ),
        expect_equal(
            "each worker's batches",
            yours=_sizes(outputs),
            expected=[[local] * steps] * WORKERS,
        ),
        _shuffled(outputs),
    )


def _shuffled(outputs: Plain) -> Criterion:
    is_in_order = any(order == sorted(order) for order in map(_all_numbers, outputs))
    message = "a worker reads its part in the order in which it was given"
    if not is_in_order:
        message = "in each batch of a worker the numbers are in the order in which they were given"
    return expect_true(
        "each worker's part is shuffled",
        not is_in_order and not _batches_in_order(outputs),
        message=message,
    )


def _batches_in_order(outputs: Plain) -> bool:
    """Whether some worker's batches are each in order: by chance that is next to never so."""

    def in_order(worker: Plain) -> bool:
        return all((np.diff(batch) > 0).all() for batch in worker) and max(map(len, worker)) > 1

    return any(worker and in_order(worker) for worker in outputs)


def _all_read_all(inputs: Inputs, outputs: Plain) -> bool:
    numbers = inputs["numbers"].tolist()
    return all(sorted(_all_numbers(worker)) == numbers for worker in outputs)


def _overlap(inputs: Inputs, outputs: Plain) -> bool:
    parts = [_all_numbers(worker) for worker in outputs]
    right_size = all(len(set(part)) == len(inputs["numbers"]) // WORKERS for part in parts)
    return right_size and bool(set(parts[0]) & set(parts[1]))


PART_CHECKS = (
    Check(
        name="my_part",
        function="my_part",
        title="Each worker's part of the data",
        points=4,
        inputs=_part_inputs,
        call=_part_call,
        judge=_part_judge,
        hint="`dataset.shard(how many, which)` keeps every n-th element. `context` knows both "
        "numbers, and `context.get_per_replica_batch_size(global_batch)`. What must be true of a "
        "shuffle that comes before a shard?",
        revisit="Who reads what",
        mistakes=(
            Mistake(
                "shard_arguments",
                "`shard(how_many, which)`: first how many share the data, then which one this is, "
                "counted from 0.",
                error="Number of shards must be|Index must be between",
            ),
            Mistake(
                "not_batched",
                "There is no batch. Each step takes so many examples as "
                "`context.get_per_replica_batch_size(global_batch)` says.",
                error="yours gives one number at a time",
            ),
            Mistake(
                "both_read_all",
                "Every worker reads every example. `context.num_input_pipelines` says how many "
                "share the data, `context.input_pipeline_id` which one this is.",
                when=_all_read_all,
            ),
            Mistake(
                "same_part",
                "Both workers read the same part, and nobody the rest. "
                "`context.input_pipeline_id` says which worker this is.",
                when=lambda _, out: sorted(_all_numbers(out[0])) == sorted(_all_numbers(out[1])),
            ),
            Mistake(
                "overlap",
                "Each worker shuffled in an order of its own, and then took every other example "
                "of that. Shuffle after the shard, or with the same seed everywhere.",
                when=_overlap,
            ),
            Mistake(
                "global_batch_each",
                "Each worker takes batches of the global size. Together they are too large.",
                when=lambda _, out: all(_GLOBAL_BATCH in sizes for sizes in _sizes(out)),
            ),
            Mistake(
                "not_shuffled",
                "The parts are right, but nothing was shuffled.",
                when=lambda _, out: any(order == sorted(order) for order in map(_all_numbers, out)),
            ),
            Mistake(
                "shuffles_batches",
                "Whole batches were shuffled: those who stood side by side stay together. Shuffle "
                "examples, and then batch them.",
                when=lambda _, out: _batches_in_order(out),
            ),
        ),
    ),
)
