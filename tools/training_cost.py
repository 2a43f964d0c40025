"""Predicts the speed of training a language model, from data sheets and four fitted numbers.

    runs, _ = read_runs()                               # published runs that the model covers
    numbers = fit(runs)
    tokens_per_sec(runs, numbers) / runs.tokens - 1     # relative errors

A step of one device, of a model with P parameters, L layers and width h, on T tokens in sequences
of length s, is a sum of parts. `tools/training_cost_page.py` writes docs/training_cost.md with
what the model misses.

* products: 6 P T operations at the speed measured for large products, and 6 L h s T for causal
  attention at `attention` times that speed. Recomputing all activations adds a third.
* other: what isn't a product moves `other_bytes` L h T bytes through the memory.
* tensor: 4 all-reduces of h T activations a layer, 6 with recomputation, and nothing hides them.
* bubble: (p - 1) / (m v) of the parts above, for p stages in v pieces and m micro-batches.
* gathers: with sharded weights, 2 or 3 collectives of all weights for each micro-batch.
* gradients: an all-reduce of the gradients between replicas. `hidden` of both is hidden.
* update: the optimizer reads and writes 30 bytes for each parameter that the device updates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from tools.published_runs import Runs

EFA_SHARE, EFA_HOP_SECS = 0.46, 15e-6  # what collectives reach on one such cluster
START = {"other_bytes": 600.0, "attention": 0.3, "hidden": 0.3, "hop_secs": 3e-6}


def step_parts(runs: Runs, numbers: Mapping[str, float]) -> dict[str, np.ndarray]:
    """Returns the seconds of each part of a step."""
    again = 1 + runs.recompute / 3
    tokens = runs.batch / runs.dp * runs.length
    own = tokens * again / (runs.tp * runs.pp * runs.cp)
    attention = runs.layers * runs.hidden * runs.length / (numbers["attention"] * runs.bf16_speed)
    products = 6 * own * (runs.used / runs.product_speed + attention)
    other = numbers["other_bytes"] * runs.layers * runs.hidden * own / runs.memory_speed

    speed, hop = ring(runs, numbers, runs.tp, 1)
    stage_layers = runs.layers / runs.pp
    activations = 2 * (runs.tp - 1) / runs.tp * tokens / runs.cp * runs.hidden * 2
    hops = runs.micro_batches * 2 * (runs.tp - 1) * hop
    tensor = stage_layers * (4 + 2 * runs.recompute) * (activations / speed + hops)
    busy = products + other + tensor

    kept = runs.params / (runs.tp * runs.pp)
    sharded = (runs.zero >= 2) & (runs.shard > 1)
    speed, hop = ring(runs, numbers, runs.shard, runs.tp)
    one = (runs.shard - 1) / runs.shard * 2 * kept / speed + stage_layers * (runs.shard - 1) * hop
    one = np.where(runs.zero == 3, 3, 2) * one
    shown = one - np.minimum(numbers["hidden"] * one, busy / runs.micro_batches)
    gathers = sharded * runs.micro_batches * shown

    copies = runs.dp * runs.cp
    copies = np.where(sharded, np.maximum(1, copies / runs.shard), copies)
    speed, hop = ring(runs, numbers, copies, runs.tp * np.where(sharded, runs.shard, 1))
    size = np.where(sharded, 4 / runs.shard, np.where(runs.zero == 0, 8, 6)) * kept
    buckets = np.where(sharded, stage_layers, np.clip(kept * 4 / 1e8, 1, stage_layers))
    sent = (copies - 1) / copies * size / speed + buckets * 2 * (copies - 1) * hop
    sent -= np.minimum(numbers["hidden"] * sent, 2 / 3 * busy / runs.micro_batches)
    return {
        "products": products,
        "other": other,
        "tensor": tensor,
        "bubble": busy * (runs.pp - 1) / (runs.vp * runs.micro_batches),
        "gathers": gathers,
        "gradients": np.where(copies > 1, sent, 0),
        "update": 30 * kept / np.where(runs.zero >= 1, runs.dp, 1) / runs.memory_speed,
    }


def ring(
    runs: Runs, numbers: Mapping[str, float], size: np.ndarray, stride: np.ndarray | int
) -> tuple[np.ndarray, np.ndarray]:
    """Bytes a second, and seconds of a hop, in a ring of `size` devices that are `stride` apart."""
    inside = np.clip(np.minimum(size, runs.near // stride), 1, None)
    leaves = size * stride > runs.near
    reached = runs.far_speed * inside * np.where(runs.efa, EFA_SHARE, 1)
    hop = np.where(runs.efa, EFA_HOP_SECS, numbers["hop_secs"])
    speed = np.where(leaves, np.minimum(runs.near_speed, reached), runs.near_speed)
    return speed, np.where(leaves, hop, 0)


def tokens_per_sec(
    runs: Runs, numbers: Mapping[str, float], calibration: float = 1.0
) -> np.ndarray:
    """Returns tokens a second and device; `calibration` multiplies what a device computes."""
    parts = step_parts(runs, numbers)
    secs = sum(parts.values()) + (calibration - 1) * (parts["products"] + parts["other"])
    return runs.batch * runs.length / runs.devices / secs


def fit(runs: Runs) -> dict[str, float]:
    """Returns the four numbers that miss the runs, and the way along their curves, by least.

    A team counts by the root of its runs. Each number in turn is multiplied or divided by a step
    that shrinks.
    """
    counts = Counter(runs.team)
    weight = np.array([counts[team] ** -0.5 for team in runs.team])
    first = {runs.curve[row]: row for row in smallest_first(runs)[::-1]}
    later = np.array([row for row, curve in enumerate(runs.curve) if curve and first[curve] != row])
    start = np.array([first[curve] for curve in runs.curve[later]])

    def loss(numbers: Mapping[str, float]) -> float:
        error = np.log(tokens_per_sec(runs, numbers) / runs.tokens)
        along = error[later] - error[start]
        pairs = ((error, weight, 1.0), (along, weight[later], 1.5))
        return sum(
            share * float(np.average(np.hypot(each, 0.02), weights=by)) for each, by, share in pairs
        )

    numbers, step = dict(START), 1.5
    while step > 1.01:
        tries = [
            {**numbers, name: min(numbers[name] * factor, 1.0 if name == "hidden" else np.inf)}
            for name in START
            for factor in (step, 1 / step)
        ]
        best = min(tries, key=loss)
        numbers, step = (best, step) if loss(best) < loss(numbers) - 1e-6 else (numbers, step**0.7)
    return numbers


def smallest_first(runs: Runs) -> np.ndarray:
    """Returns the rows in the order of their devices, and then of how the model is divided."""
    return np.lexsort((runs.tp * runs.pp, runs.devices))
