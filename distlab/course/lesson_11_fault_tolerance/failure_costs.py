"""The costs of failures in a long training, with the opening's numbers: one failure stops all.

interval_costs()                  # how much saving costs, and lost work, for different intervals
lost_share(1000, restart_secs=300)      # 0.05: of the time, at the best interval
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

# 419 failures in 54 days on 16,384 GPUs, 8 in a machine; a checkpoint takes 20 seconds.
MACHINES, SAVE_SECS = 2048, 20.0
FAILURE_SECS = 54 * 24 * 3600 / 419 * MACHINES  # between two failures of one machine
COUNTS = (100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)


def interval_costs() -> tuple[Any, dict[str, Any], float]:
    """Returns intervals in seconds, what each costs by its cause, and the best interval."""
    between = FAILURE_SECS / MACHINES
    every_secs = np.geomspace(60, 4 * 3600, 60)
    shares = {"saving": SAVE_SECS / every_secs, "lost work": every_secs / (2 * between)}
    return every_secs, shares, best_interval(MACHINES)


def best_interval(machines: int) -> float:
    """Returns the seconds from one checkpoint to the next that lose the least time."""
    return float(np.sqrt(2 * SAVE_SECS * FAILURE_SECS / machines))


def lost_share(machines: int, restart_secs: float) -> float:
    """Returns the share of the time that is not training, if failures come at random."""
    between, every = FAILURE_SECS / machines, best_interval(machines)
    until_failure = np.random.default_rng(1).exponential(between, size=50_000)
    training = np.maximum(until_failure - restart_secs, 0)  # each life begins with a restart
    kept = training // (every + SAVE_SECS) * every
    return float(1 - kept.sum() / until_failure.sum())


def lost_shares(restarts: Mapping[str, float]) -> dict[str, list[float]]:
    """Returns the lost share on each of `COUNTS` machines, by how long a restart takes."""
    return {
        name: [lost_share(machines, secs) for machines in COUNTS] for name, secs in restarts.items()
    }
