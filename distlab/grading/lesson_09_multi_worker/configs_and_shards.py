"""Two checks of lesson 09: the TF_CONFIG of every task, and each worker's part of the data."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Criterion, Inputs, Mistake, Plain, Verdict
from distlab.grading.clusters import WORKERS, call_on_workers
from distlab.grading.comparing import expect_equal, expect_true

# --- tf_configs -----------------------------------------------------------------------------


def _configs_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    port = int(draw.integers(2000, 30000))
    hosts = [f"10.0.0.{n}" for n in draw.permutation(np.arange(2, 90))[: 2 + seed % 3]]
    return {"addresses": [f"{host}:{port + n}" for n, host in enumerate(hosts)]}


def _configs_call(tf_configs: Callable[..., Any], inputs: Inputs) -> Plain:
    return tf_configs(list(inputs["addresses"]))


def _read(outputs: Plain) -> list[Any]:
    """The texts as JSON says them; None for one that is no JSON."""

    def read(text: Plain) -> Any:
        try:
            return json.loads(text)
        except (TypeError, ValueError):
            return None

    return [read(text) for text in outputs]


def _clusters(outputs: Plain) -> list[Any]:
    return [config["cluster"]["worker"] for config in _read(outputs)]


def _indexes(outputs: Plain) -> list[Any]:
    return [config["task"]["index"] for config in _read(outputs)]


def _configs_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    addresses = inputs["addresses"]
    texts = outputs if isinstance(outputs, list) else [outputs]
    configs = _read(texts)
    are_json = expect_true(
        "a JSON text for each task",
        len(texts) == len(addresses) and None not in configs,
        message=f"{len(addresses)} texts were asked for, each of them JSON (double quotes)",
    )
    if not are_json.passed:
        return Verdict.of(are_json)
    return Verdict.of(
        are_json,
        expect_equal(
            "every task names the whole cluster, in the same order",
            yours=[_part(config, "cluster", "worker") for config in configs],
            expected=[addresses] * len(addresses),
        ),
        expect_equal(
            "each task has its own type and index",
            yours=[[_part(c, "task", "type"), _part(c, "task", "index")] for c in configs],
            expected=[["worker", index] for index in range(len(addresses))],
        ),
    )


def _part(config: Any, *keys: str) -> Any:
    for key in keys:
        config = config.get(key) if isinstance(config, dict) else None
    return config


def _lacks_itself(inputs: Inputs, outputs: Plain) -> bool:
    addresses, clusters = inputs["addresses"], _clusters(outputs)
    return all(own not in there for own, there in zip(addresses, clusters, strict=True))


def _begins_with_itself(inputs: Inputs, outputs: Plain) -> bool:
    addresses, clusters = inputs["addresses"], _clusters(outputs)
    return all(there[0] == own for own, there in zip(addresses, clusters, strict=True))


# --- my_part --------------------------------------------------------------------------------

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

    def part(context: Any) -> Any:
        data = my_part(context, inputs["numbers"], _GLOBAL_BATCH, inputs["seed"])
        if data is None:
            raise TypeError("your function returned None: is there a `return`?")
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
    orders = [_all_numbers(worker) for worker in outputs]
    return expect_true(
        "each worker's part is shuffled",
        all(order != sorted(order) for order in orders),
        message="a worker reads its part in the order in which it was given",
    )


def _all_read_all(inputs: Inputs, outputs: Plain) -> bool:
    numbers = inputs["numbers"].tolist()
    return all(sorted(_all_numbers(worker)) == numbers for worker in outputs)


def _overlap(inputs: Inputs, outputs: Plain) -> bool:
    parts = [_all_numbers(worker) for worker in outputs]
    right_size = all(len(set(part)) == len(inputs["numbers"]) // WORKERS for part in parts)
    return right_size and bool(set(parts[0]) & set(parts[1]))


CONFIG_AND_SHARD_CHECKS = (
    Check(
        name="tf_configs",
        function="tf_configs",
        title="The TF_CONFIG of every task",
        points=3,
        inputs=_configs_inputs,
        call=_configs_call,
        judge=_configs_judge,
        hint="Make a dictionary with the keys `cluster` and `task` for each index, and give it to "
        "json.dumps. Only the index differs from task to task.",
        revisit="Who is who: TF_CONFIG",
        mistakes=(
            Mistake(
                "not_json",
                "This is how Python writes a dictionary. TF_CONFIG is JSON: json.dumps writes it.",
                when=lambda _, out: all(isinstance(t, str) and "'" in t for t in out),
            ),
            Mistake(
                "index_is_text",
                "The index is a number in JSON, not a text in quotes.",
                when=lambda _, out: all(isinstance(index, str) for index in _indexes(out)),
            ),
            Mistake(
                "own_address_missing",
                "Each task names only the others. It must name itself too: the cluster is the "
                "same text everywhere.",
                when=_lacks_itself,
            ),
            Mistake(
                "own_address_first",
                "Each task names itself first. Then each has another idea of who is worker 1.",
                when=_begins_with_itself,
            ),
            Mistake(
                "same_index",
                "All tasks have the same index: each would believe that it is the same worker, "
                "and nobody would be the others.",
                when=lambda _, out: len(set(_indexes(out))) == 1,
            ),
            Mistake(
                "index_from_one",
                "The first task has the index 0.",
                when=lambda _, out: _indexes(out) == list(range(1, len(out) + 1)),
            ),
        ),
    ),
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
                "both_read_all",
                "Every worker reads every example. `context.num_input_pipelines` says how many "
                "share the data, `context.input_pipeline_id` which one this is.",
                when=_all_read_all,
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
                when=lambda _, out: not _shuffled(out).passed,
            ),
        ),
    ),
)
