"""The transfers in each step of an all-reduce: naive, tree and ring.

    steps = all_reduce_steps("ring", 4)
    steps[0][0]                      # Transfer(source=0, target=1, chunks=(0,), adds=True)
    holdings(steps, 4)[3, 0, 1]      # whose values chunk 1 of rank 0 contains after three steps

A vector is cut into as many chunks as there are ranks. Naive and tree send all of them together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distlab.errors import InvalidArgument

ALGORITHMS = ("naive", "tree", "ring")


@dataclass(frozen=True)
class Transfer:
    """One message of a step.

    Attributes:
        source: The rank that sends.
        target: The rank that receives.
        chunks: Which chunks of the vector the message holds.
        adds: Whether the target adds them to its own; otherwise they replace its own.
    """

    source: int
    target: int
    chunks: tuple[int, ...]
    adds: bool


Steps = tuple[tuple[Transfer, ...], ...]


def all_reduce_steps(algorithm: str, ranks: int) -> Steps:
    """Returns the transfers of each step of an all-reduce."""
    if algorithm not in ALGORITHMS or ranks < 2:
        raise InvalidArgument(
            asked=f"all_reduce_steps({algorithm!r}, {ranks})",
            found="fewer than 2 ranks" if ranks < 2 else f"no algorithm {algorithm!r}",
            do=f"use {', '.join(ALGORITHMS)}, with 2 ranks or more",
        )
    if algorithm == "ring":
        return reduce_scatter_steps(ranks) + all_gather_steps(ranks)
    if algorithm == "naive":
        reduce = hand_out = _to_rank_0(ranks)
    else:
        reduce = _to_rank_0_in_pairs(ranks)
        hand_out = reduce[::-1]
    every = tuple(range(ranks))
    sums = tuple(tuple(Transfer(a, b, every, adds=True) for a, b in step) for step in reduce)
    back = tuple(tuple(Transfer(b, a, every, adds=False) for a, b in step) for step in hand_out)
    return sums + back


def reduce_scatter_steps(ranks: int) -> Steps:
    """Returns the first half of the ring: each rank ends with the sum of one chunk."""
    return tuple(
        tuple(
            Transfer(rank, (rank + 1) % ranks, ((rank - step) % ranks,), adds=True)
            for rank in range(ranks)
        )
        for step in range(ranks - 1)
    )


def all_gather_steps(ranks: int) -> Steps:
    """Returns the second half of the ring: the finished chunks go once around."""
    return tuple(
        tuple(
            Transfer(rank, (rank + 1) % ranks, ((rank + 1 - step) % ranks,), adds=False)
            for rank in range(ranks)
        )
        for step in range(ranks - 1)
    )


def holdings(steps: Steps, ranks: int) -> NDArray[np.bool_]:
    """Returns whose values each chunk contains, at the start and after each step."""
    now = np.zeros((ranks, ranks, ranks), bool)
    now[np.arange(ranks), :, np.arange(ranks)] = True
    seen = [now]
    for step in steps:
        after = now.copy()
        for transfer in step:
            for chunk in transfer.chunks:
                sent = now[transfer.source, chunk]
                after[transfer.target, chunk] = (
                    now[transfer.target, chunk] | sent if transfer.adds else sent
                )
        now = after
        seen.append(now)
    return np.stack(seen)


def _to_rank_0(ranks: int) -> list[list[tuple[int, int]]]:
    """One rank after the other, as (source, target)."""
    return [[(rank, 0)] for rank in range(1, ranks)]


def _to_rank_0_in_pairs(ranks: int) -> list[list[tuple[int, int]]]:
    """In each step half of the ranks that are left send to the other half."""
    rounds, apart = [], 1
    while apart < ranks:
        rounds.append([(rank + apart, rank) for rank in range(0, ranks - apart, 2 * apart)])
        apart *= 2
    return rounds
