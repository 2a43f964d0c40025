"""A check of lesson 10 without a cluster: rows in shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_equal


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
    kinds = (
        "a large table",
        "a table with room for two shards and more",
        "a table with room for two shards, to the row",
        "a table smaller than a shard",
    )
    return Verdict.of(
        *(
            expect_equal(f"{kind}: the rows of each shard", yours=yours, expected=expected)
            for kind, yours, expected in zip(kinds, outputs, _right(inputs), strict=True)
        )
    )


def _wrong(shares: Callable[[int, Inputs], list[int]]) -> Callable[[Inputs], Plain]:
    return lambda inputs: [shares(rows, inputs) for rows in inputs["tables"]]


def _rounded_up(rows: int, inputs: Inputs) -> list[int]:
    most = -(-rows * int(inputs["row_bytes"]) // int(inputs["least_bytes"]))
    return _shares(rows, min(inputs["servers"], most))


def _shards_as(other: Callable[[list[int], list[int]], bool]) -> Callable[[Inputs, Plain], bool]:
    """Whether as many shards as asked for have all the rows, and some are shared out otherwise."""

    def when(inputs: Inputs, outputs: Plain) -> bool:
        pairs = [(list(yours), right) for yours, right in zip(outputs, _right(inputs), strict=True)]
        are_shared = all(
            len(yours) == len(right) and sum(yours) == sum(right) and not any(n % 1 for n in yours)
            for yours, right in pairs
        )
        return are_shared and all(other(yours, right) for yours, right in pairs if yours != right)

    return when


def _rest_is_lost(inputs: Inputs, outputs: Plain) -> bool:
    return any(sum(shards) < rows for shards, rows in zip(outputs, inputs["tables"], strict=True))


SHARD_CHECKS = (
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
                "in_another_order",
                "The sizes are right, and not in their order: the first ones have a row more.",
                when=_shards_as(lambda yours, right: sorted(yours) == sorted(right)),
            ),
            Mistake(
                "one_takes_the_rest",
                "The shards differ by more than a row: one of them takes the whole remainder. "
                "Share it out: one row more for the first ones.",
                when=_shards_as(lambda yours, right: True),
            ),
            Mistake(
                "rows_for_bytes",
                "Rows are compared with bytes. `least_bytes` are bytes, and a row has `row_bytes`.",
                yields=_wrong(
                    lambda rows, inputs: _shares(
                        rows, max(1, min(inputs["servers"], rows // int(inputs["least_bytes"])))
                    )
                ),
            ),
            Mistake(
                "one_too_few",
                "A table with room for exactly so many shards has them: the last row counts too.",
                when=lambda inputs, out: len(out[2]) == 1 and list(out[1]) == _right(inputs)[1],
            ),
            Mistake(
                "for_each_server_a_number",
                "There is a number for each server, and some of them have no shard. Leave those "
                "out.",
                when=lambda inputs, out: (
                    [[n for n in shards if n] for shards in out] == _right(inputs)
                ),
            ),
            Mistake(
                "bytes_for_rows",
                "These are bytes. How many rows each shard has was asked for.",
                yields=lambda inputs: [
                    [rows * int(inputs["row_bytes"]) for rows in shards]
                    for shards in _right(inputs)
                ],
            ),
            Mistake(
                "no_shard",
                "A table that is smaller than `least_bytes` is one shard all the same.",
                error="ZeroDivisionError|division by zero|number sections must be larger than 0",
            ),
        ),
    ),
)
