"""A check of lesson 10 without a cluster: rows in shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Cost, Equal, Inputs, Plain
from distlab.course.checks.mistakes import Fault, Observed, Raises

_KINDS = {
    "large": "a large table",
    "more": "a table with room for two shards and more",
    "exact": "a table with room for two shards, to the row",
    "small": "a table smaller than a shard",
}


def _inputs(seed: int) -> Inputs:
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


def _call(shard_rows: Callable[..., Any], inputs: Inputs) -> Plain:
    options = (inputs["row_bytes"], inputs["least_bytes"], inputs["servers"])
    return {
        kind: shard_rows(rows, *options)
        for kind, rows in zip(_KINDS, inputs["tables"], strict=True)
    }


def _rounded_down(rows: int, given: Inputs) -> int:
    return rows * int(given["row_bytes"]) // int(given["least_bytes"])


def _rounded_up(rows: int, given: Inputs) -> int:
    return -(-rows * int(given["row_bytes"]) // int(given["least_bytes"]))


def _reference(
    given: Inputs,
    *,
    fit: Callable[[int, Inputs], int] = _rounded_down,
    most: int | None = None,
) -> Plain:
    """The rows of each shard; the first ones have a row more, as TensorFlow does it."""
    rows_of_shards = {}
    for kind, rows in zip(_KINDS, given["tables"], strict=True):
        shards = max(1, min(most or given["servers"], fit(rows, given)))
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
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=tuple(
        Equal(kind, f"{text}: the rows of each shard", points=0.5) for kind, text in _KINDS.items()
    ),
    hint="The number of shards is `rows * row_bytes // least_bytes`, but at most `servers` and at "
    "least 1. `divmod(rows, shards)` gives the rows of each shard, and how many have one more.",
    revisit="A table in shards",
    mistakes=(
        Observed("rest_is_lost", _rest_is_lost).feedback(
            "You gave every shard the same number of rows. If the rows do not divide evenly, some "
            "rows are in no shard. Where does the remainder go?"
        ),
        Fault("more_shards_than_servers", most=10**6).feedback(
            "You made more shards than there are servers. Then a server holds two pieces of the "
            "table. Which number limits the shards from above?"
        ),
        Fault("shard_too_small", sees=("more", "exact"), fit=_rounded_up).feedback(
            "You rounded the number of shards up, as TensorFlow's MinSizePartitioner does. Some "
            "shards then have fewer than `least_bytes` bytes. How many full ones fit into the "
            "table?"
        ),
        Fault("always_all_servers", fit=lambda rows, given: given["servers"]).feedback(
            "You cut every table for all servers. A small table then has tiny shards, and each "
            "step must ask every server. What does `least_bytes` say about such a table?"
        ),
        Raises(
            "no_shard", "ZeroDivisionError|division by zero|number sections must be larger than 0"
        ).feedback(
            "You divided by a number of shards that is 0. That happens if the table is smaller "
            "than `least_bytes`. How many shards does such a table have?"
        ),
    ),
)
