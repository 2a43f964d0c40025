"""A check of lesson 10 without a cluster: rows in shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.checks import Check, Cost, Equal, Inputs, Plain
from distlab.checks.mistakes import Fault, Observed, Raises

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


def _as_it_is(rows: list[int], given: Inputs) -> list[int]:
    return rows


def _reference(
    given: Inputs,
    *,
    fit: Callable[[int, Inputs], int] = _rounded_down,
    most: int | None = None,
    write: Callable[[list[int], Inputs], list[int]] = _as_it_is,
) -> Plain:
    """The rows of each shard; the first ones have a row more, as TensorFlow does it."""
    found = {}
    for kind, rows in zip(_KINDS, given["tables"], strict=True):
        shards = max(1, min(most or given["servers"], fit(rows, given)))
        even = [rows // shards + (shard < rows % shards) for shard in range(shards)]
        found[kind] = write(even, given)
    return found


def _shared_otherwise(given: Inputs, out: Plain) -> bool:
    """Whether there are as many shards as asked for, with all rows."""
    right = _reference(given)
    return all(
        len(out[kind]) == len(right[kind])
        and sum(out[kind]) == sum(right[kind])
        and not any(rows % 1 for rows in out[kind])
        for kind in _KINDS
    )


def _order_lost(given: Inputs, out: Plain) -> bool:
    right = _reference(given)
    return all(sorted(out[kind]) == sorted(right[kind]) for kind in _KINDS)


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
        Observed("in_a_different_order", _order_lost).feedback(
            "Your shards have the right sizes in a different order. Which shards get the extra row?"
        ),
        Observed("one_takes_the_rest", _shared_otherwise).feedback(
            "You gave the whole remainder to one shard. That shard differs from the others by more "
            "than one row. How many shards can get one extra row each?"
        ),
        Fault("rows_for_bytes", fit=lambda rows, given: rows // given["least_bytes"]).feedback(
            "You compared a number of rows with `least_bytes`, a number of bytes. The table then "
            "looks smaller than it is. How many bytes does it have?"
        ),
        Fault(
            "one_too_few",
            sees=("more", "exact"),
            fit=lambda rows, given: _rounded_up(rows, given) - 1,
        ).feedback(
            "You made one shard too few for a table into which the shards fit to the byte. What "
            "does your rounding do if nothing is left over?"
        ),
        Fault(
            "for_each_server_a_number",
            write=lambda rows, given: rows + [0] * (given["servers"] - len(rows)),
        ).feedback(
            "You returned one number for each server, and some are 0. A shard without rows is no "
            "shard. How long should the list be?"
        ),
        Fault(
            "bytes_for_rows", write=lambda rows, given: [given["row_bytes"] * n for n in rows]
        ).feedback(
            "You returned bytes. The task asks for the rows of each shard. How many bytes has one "
            "row?"
        ),
        Raises(
            "no_shard", "ZeroDivisionError|division by zero|number sections must be larger than 0"
        ).feedback(
            "You divided by a number of shards that is 0. That happens if the table is smaller "
            "than `least_bytes`. How many shards does such a table have?"
        ),
    ),
)
