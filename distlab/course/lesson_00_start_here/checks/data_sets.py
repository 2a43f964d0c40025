"""The data sets that the checks of lesson 00 share out, and what each replica sees of them."""

from __future__ import annotations

from itertools import islice

import numpy as np

from distlab.batching import split_batch
from distlab.course.checks import Inputs


def sizes(seed: int) -> tuple[np.random.Generator, dict[str, int]]:
    """Draws how many replicas, and a data set whose last batch is a partial one."""
    draw = np.random.default_rng(seed)
    replicas = int(draw.integers(2, 5))
    batch = int(draw.integers(2, 4)) * replicas + 1
    examples = 2 * batch + int(draw.integers(2, batch))
    return draw, {"replicas": replicas, "batch": batch, "examples": examples}


def places_of(inputs: Inputs, batches: slice = slice(None)) -> list[list[int]]:
    """For each replica the places in the data set that it sees in these batches, in order."""
    seen: list[list[int]] = [[] for _ in range(inputs["replicas"])]
    for start in range(0, inputs["examples"], inputs["batch"])[batches]:
        size = min(inputs["batch"], inputs["examples"] - start)
        places = iter(range(start, start + size))
        for digits, share in zip(seen, split_batch(size, inputs["replicas"]), strict=True):
            digits.extend(islice(places, share))
    return seen
