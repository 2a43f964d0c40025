"""Which sparse gradients have the same slices in every share of a batch, such as positions'.

A table of tokens is looked up for each example: the whole batch has the slices of all shares. A
table of positions is looked up once for a batch: the whole batch has no more slices than a share.
"""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import tensorflow as tf

from distlab.training.trial.seen import Seen


def alike_in_each(whole: Seen, shares: list[Seen]) -> list[frozenset[str]]:
    """Returns, for each call of `GradientTape.gradient`, the positions of such gradients.

    Args:
        whole: What the trial of the whole batch has seen.
        shares: What those of its shares have seen.
    """
    if any(len(seen.gradients) != len(whole.gradients) for seen in shares):
        return []
    return [
        frozenset(
            str(index)
            for index, one in enumerate(found)
            if _is_alike(one, [seen.gradients[call][index] for seen in shares])
        )
        for call, found in enumerate(whole.gradients)
    ]


def _is_alike(whole: Any, parts: list[Any]) -> bool:
    if not all(isinstance(one, tf.IndexedSlices) for one in (whole, *parts)):
        return False
    expected, *rows = [one.indices.numpy() for one in (whole, *parts)]
    if not expected.size:
        return False  # no row says nothing of later batches
    if all(np.array_equal(one, expected) for one in rows):
        return True
    sizes = {one.size for one in rows}
    if len(sizes) == 1 or sum(one.size for one in rows) <= expected.size:
        return False
    # Shares may have a part of them, as those of positions up to the longest example.
    most: collections.Counter[int] = collections.Counter()
    for one in rows:
        most |= collections.Counter(one.tolist())
    return most == collections.Counter(expected.tolist())
