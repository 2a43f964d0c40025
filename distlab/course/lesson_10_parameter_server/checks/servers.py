"""Checks of lesson 10 without a cluster: staleness from a log, and a table's rows in shards."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import (
    Check,
    Cost,
    Equal,
    Fault,
    Inputs,
    Observed,
    Plain,
)

# --- staleness: staleness from a log

_Log = list[list[Any]]  # of an event and the number of its step


def _staleness_inputs(seed: int) -> Inputs:
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


def _staleness_call(staleness: Callable[..., Any], inputs: Inputs) -> Plain:
    answer = staleness([tuple(entry) for entry in inputs["log"]])
    if isinstance(answer, dict):
        raise TypeError("return a list in the order of the steps; yours is a dict")
    return {"staleness": answer}


def _staleness_reference(
    given: Inputs,
    *,
    since: str = "read",
    reading: int = -1,
    own: int = 0,
    in_order_of_writing: bool = False,
) -> Plain:
    """For each step, the updates from one of its readings to its own, which may count, too."""
    log: _Log = given["log"]
    written = [step for event, step in log if event == "written"]
    staleness = []
    for step in written if in_order_of_writing else sorted(written):
        end = log.index(["written", step])
        begin = [at for at, entry in enumerate(log[:end]) if entry == [since, step]][reading]
        staleness.append(own + sum(event == "written" for event, _ in log[begin:end]))
    return {"staleness": staleness}


STALENESS = Check(
    name="staleness",
    title="Staleness from a log",
    question="How many updates lie between a step's read and its write?",
    direction=(
        "Follow one worker through the log: note the count of updates when it reads, and again when"
        " it writes."
    ),
    cost=Cost.PURE,
    inputs=_staleness_inputs,
    call=_staleness_call,
    reference=_staleness_reference,
    criteria=(Equal("staleness", "the staleness of each step", points=3),),
    hint="Go through the log once and count the updates. If a step reads, note the count for it, "
    "again if it reads again. If it writes, its staleness is the count less the noted one.",
    revisit="What an old gradient does",
    mistakes=(
        Fault("counted_at_send", since="sent").feedback(
            "You counted from when the step was sent. It then waited in the queue and had read "
            "nothing, so its weights were younger than you counted. From which event on are a "
            "step's weights fixed?"
        ),
        Fault("first_reading", reading=0).feedback(
            "For the step that was done again, you counted from its first reading. That worker "
            "died, and its gradient was never written. Which reading does the written gradient "
            "come from?"
        ),
        Fault("counts_itself", own=1).feedback(
            "You counted each step's own update, too. Then a worker that trains alone would be "
            "stale. What is its staleness by definition?"
        ),
        Fault("in_order_of_writing", in_order_of_writing=True).feedback(
            "You listed the numbers in the order in which the steps were written. A slow step is "
            "then at the wrong place. At which place of the list does step 0 belong?"
        ),
    ),
)


# --- shard_rows: rows in shards

_KINDS = {
    "large": "a large table",
    "more": "a table with room for two shards and more",
    "exact": "a table with room for two shards, to the row",
    "small": "a table smaller than a shard",
}


def _shard_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    row_bytes = int(draw.choice([8, 16, 64]))
    servers = int(draw.integers(3, 6))
    least_bytes = row_bytes * int(draw.integers(20, 40))
    in_a_shard = least_bytes // row_bytes
    tables = [
        # more than enough for all servers; hardly enough for one more, and yet not; enough to the
        # row; too little for one
        servers * in_a_shard * 2 + int(draw.integers(1, servers)),
        2 * in_a_shard + int(draw.integers(in_a_shard // 2 + 1, in_a_shard)),
        2 * in_a_shard,
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
    return {
        kind: shard_rows(rows, *options)
        for kind, rows in zip(_KINDS, inputs["tables"], strict=True)
    }


def _shard_reference(
    given: Inputs, *, round_up: bool = False, all_servers: bool = False, most: int | None = None
) -> Plain:
    """The rows of each shard; the first ones have a row more, as TensorFlow does it."""
    rounded = math.ceil if round_up else math.floor
    rows_of_shards = {}
    for kind, rows in zip(_KINDS, given["tables"], strict=True):
        enough = rounded(rows * given["row_bytes"] / given["least_bytes"])
        shards = max(1, min(most or given["servers"], given["servers"] if all_servers else enough))
        rows_of_shards[kind] = [rows // shards + (shard < rows % shards) for shard in range(shards)]
    return rows_of_shards


def _rest_is_lost(given: Inputs, out: Plain) -> bool:
    return any(sum(out[kind]) < rows for kind, rows in zip(_KINDS, given["tables"], strict=True))


SHARD_ROWS = Check(
    name="shard_rows",
    title="Rows in shards",
    question="How many rows may the smallest shard have, and how many shards does that allow?",
    direction=(
        "Three limits meet: the least size of a shard, the number of servers, and the rows that are"
        " left over."
    ),
    cost=Cost.PURE,
    inputs=_shard_inputs,
    call=_shard_call,
    reference=_shard_reference,
    criteria=tuple(
        Equal(kind, f"{text}: the rows of each shard", points=0.5) for kind, text in _KINDS.items()
    ),
    hint="The number of shards is `rows * row_bytes // least_bytes`, but at most `servers` and at "
    "least 1. `divmod(rows, shards)` gives the rows of each shard, and how many have one more.",
    revisit="Your own model, with one command",
    mistakes=(
        Observed("rest_is_lost", _rest_is_lost).feedback(
            "You gave every shard the same number of rows. If the rows do not divide evenly, some "
            "rows are in no shard. Where does the remainder go?"
        ),
        Fault("more_shards_than_servers", most=10**6).feedback(
            "You made more shards than there are servers. Then a server holds two pieces of the "
            "table. Which number limits the shards from above?"
        ),
        Fault("shard_too_small", sees=("more", "exact"), round_up=True).feedback(
            "You rounded the number of shards up, as TensorFlow's MinSizePartitioner does. Some "
            "shards then have fewer than `least_bytes` bytes. How many full ones fit into the "
            "table?"
        ),
        Fault("always_all_servers", all_servers=True).feedback(
            "You cut every table for all servers. A small table then has tiny shards, and each "
            "step must ask every server. What does `least_bytes` say about such a table?"
        ),
    ),
)
