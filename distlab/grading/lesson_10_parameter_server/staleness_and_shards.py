"""Two checks of lesson 10 without a cluster: staleness from a log, and rows in shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_equal

# --- staleness ------------------------------------------------------------------------------

_Log = list[list[Any]]  # of an event and the number of its step


def _log_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    steps, workers = int(draw.integers(8, 12)), 3
    log: _Log = []
    queue: list[int] = []
    at_work: list[int] = []
    gone: list[int] = []
    sent, done = 0, 0
    while done < steps:
        if done == 2 and workers == 3:  # one dies
            gone.append(at_work.pop(0))
            workers = 2
        elif done == 4 and gone:  # that is noticed, and its step goes back
            queue.insert(0, gone.pop())
        elif sent < steps and len(queue) < 3:  # the coordinator sends ahead
            queue.append(sent)
            log.append(["sent", sent])
            sent += 1
        elif queue and len(at_work) < workers:
            at_work.append(queue.pop(0))
            log.append(["read", at_work[-1]])
        else:  # the first of them is slow
            index = int(draw.integers(1 if done % 4 else 0, len(at_work))) if at_work[1:] else 0
            log.append(["written", at_work.pop(index)])
            done += 1
    return {"log": log}


def _log_call(staleness: Callable[..., Any], inputs: Inputs) -> Plain:
    return staleness([tuple(entry) for entry in inputs["log"]])


def _staleness(log: _Log, *, since: str = "read", first: bool = False, counted: str = "") -> Plain:
    """Of each step, how often something was `counted` since it did something."""
    steps = sorted({step for _, step in log})
    found = []
    for step in steps:
        end = log.index(["written", step])
        begins = [at for at, entry in enumerate(log[:end]) if entry == [since, step]]
        between = log[begins[0] if first else begins[-1] : end]
        found.append(sum(event == (counted or "written") for event, _ in between))
    return found


def _in_order_of_writing(log: _Log) -> Plain:
    found = _staleness(log)
    return [found[step] for event, step in log if event == "written"]


def _log_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    return Verdict.of(
        expect_equal(
            "the staleness of each step", yours=outputs, expected=_staleness(inputs["log"])
        )
    )


def _of_log(**how: Any) -> Callable[[Inputs], Plain]:
    return lambda inputs: _staleness(inputs["log"], **how)


# --- shards ---------------------------------------------------------------------------------


def _shard_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    row_bytes = int(draw.choice([8, 16, 64]))
    servers = int(draw.integers(3, 6))
    least_bytes = row_bytes * int(draw.integers(20, 40))
    in_a_shard = least_bytes // row_bytes
    tables = [
        # more than enough for all servers; not enough for one more; too little for two
        servers * in_a_shard * 2 + int(draw.integers(1, servers)),
        2 * in_a_shard + int(draw.integers(1, in_a_shard)),
        in_a_shard - int(draw.integers(1, in_a_shard - 1)),
    ]
    return {
        "tables": tables,
        "row_bytes": row_bytes,
        "least_bytes": least_bytes,
        "servers": servers,
    }


def _shard_call(shard_rows: Callable[..., Any], inputs: Inputs) -> Plain:
    options = (inputs["row_bytes"], inputs["least_bytes"], inputs["servers"])
    return [shard_rows(rows, *options) for rows in inputs["tables"]]


def _shares(rows: int, shards: int) -> list[int]:
    """The first ones have a row more, as TensorFlow does it."""
    return [rows // shards + (shard < rows % shards) for shard in range(shards)]


def _most(rows: int, inputs: Inputs) -> int:
    """How many shards of the least size there could be."""
    return max(1, rows * int(inputs["row_bytes"]) // int(inputs["least_bytes"]))


def _right(inputs: Inputs) -> list[list[int]]:
    servers = inputs["servers"]
    return [_shares(rows, min(servers, _most(rows, inputs))) for rows in inputs["tables"]]


def _shard_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    kinds = ("a large table", "one of middle size", "a small one")
    rows = outputs if isinstance(outputs, list) else []
    return Verdict.of(
        *(
            expect_equal(f"the rows of each shard of {kind}", yours=yours, expected=expected)
            for kind, yours, expected in zip(kinds, rows, _right(inputs), strict=True)
        )
    )


def _wrong(shares: Callable[[int, Inputs], list[int]]) -> Callable[[Inputs], Plain]:
    return lambda inputs: [shares(rows, inputs) for rows in inputs["tables"]]


def _rounded_up(rows: int, inputs: Inputs) -> list[int]:
    most = -(-rows * int(inputs["row_bytes"]) // int(inputs["least_bytes"]))
    return _shares(rows, min(inputs["servers"], most))


def _last_takes_the_rest(inputs: Inputs) -> Plain:
    found = []
    for right in _right(inputs):
        each = sum(right) // len(right)
        found.append([each] * (len(right) - 1) + [sum(right) - each * (len(right) - 1)])
    return found


def _rest_is_lost(inputs: Inputs, outputs: Plain) -> bool:
    return any(sum(shards) < rows for shards, rows in zip(outputs, inputs["tables"], strict=True))


LOG_AND_SHARD_CHECKS = (
    Check(
        name="staleness",
        function="staleness",
        title="Staleness from a log",
        points=3,
        inputs=_log_inputs,
        call=_log_call,
        judge=_log_judge,
        hint="Go through the log once and count the updates. When a step reads, note the count; "
        "when it writes, the staleness is the count now less the one it noted.",
        revisit="Stale gradients",
        mistakes=(
            Mistake(
                "counted_at_send",
                "You count from when the step was sent. It waited in the queue then, and had read "
                "nothing yet: count from when it reads.",
                yields=_of_log(since="sent"),
            ),
            Mistake(
                "first_reading",
                "One step reads twice: the worker that read first has died. Its gradient is from "
                "the last reading.",
                yields=_of_log(first=True),
            ),
            Mistake(
                "counts_itself",
                "A step's own update is no staleness: alone, it has 0.",
                yields=lambda inputs: [each + 1 for each in _staleness(inputs["log"])],
            ),
            Mistake(
                "counts_readings",
                "What others read changes nothing. Count what they write.",
                yields=lambda inputs: [
                    each - 1 for each in _staleness(inputs["log"], counted="read")
                ],
            ),
            Mistake(
                "in_order_of_writing",
                "These are the right numbers, in the order in which steps were written. Give them "
                "in the order of the steps' numbers.",
                yields=lambda inputs: _in_order_of_writing(inputs["log"]),
            ),
        ),
    ),
    Check(
        name="shard_rows",
        function="shard_rows",
        title="Rows in shards",
        points=3,
        inputs=_shard_inputs,
        call=_shard_call,
        judge=_shard_judge,
        hint="How many shards of the least size fit into the table? At least one, and no more than "
        "servers. `divmod(rows, shards)` tells what each has, and how many have one more.",
        revisit="A variable in shards",
        mistakes=(
            Mistake(
                "rest_is_lost",
                "Some rows are in no shard: the division has a remainder.",
                when=_rest_is_lost,
            ),
            Mistake(
                "more_shards_than_servers",
                "There are more shards than servers.",
                yields=_wrong(lambda rows, inputs: _shares(rows, _most(rows, inputs))),
            ),
            Mistake(
                "shard_too_small",
                "Some shards are smaller than allowed: round the number of shards down, not up. "
                "(TensorFlow's own MinSizePartitioner rounds up.)",
                yields=_wrong(_rounded_up),
            ),
            Mistake(
                "always_all_servers",
                "Every table is cut for all servers, however small it is.",
                yields=_wrong(lambda rows, inputs: _shares(rows, inputs["servers"])),
            ),
            Mistake(
                "last_takes_the_rest",
                "The last shard takes the whole remainder. Share it out: one row more for the "
                "first ones.",
                yields=_last_takes_the_rest,
            ),
        ),
    ),
)
