"""Published training runs to the same quality with batches of many sizes, and the bend in them.

    runs = published_runs()["BERT"]      # {256: 2552704.0, 448: 2410629.6, ...}: examples
    bend = fit_bend(runs)                # bend.examples(16_384), bend.batch

The runs are MLPerf's reference convergence points: each is the mean of 10 to 28 trainings, whose
other settings were tuned for that batch.
https://github.com/mlcommons/logging/tree/master/mlperf_logging/rcp_checker
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_FILE = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class Bend:
    """How many examples a training needs: `fewest` with tiny batches, twice as many at the bend.

    Attributes:
        fewest: Examples, or epochs, that any batch needs at least.
        batch: The batch size at which a training needs twice as many.
    """

    fewest: float
    batch: float

    def examples(self, batch: float) -> float:
        """Returns the examples, or epochs, to the same quality with this batch."""
        return self.fewest * (1 + batch / self.batch)


def published_runs() -> dict[str, dict[int, float]]:
    """Returns examples or epochs to the target quality by global batch, for each model."""
    read = json.loads(_FILE.read_text(encoding="utf-8"))["to_target"]
    return {model: {int(b): amount for b, amount in runs.items()} for model, runs in read.items()}


def fit_bend(runs: Mapping[int, float]) -> Bend:
    """Returns the line that fits best, by least squares of the relative errors."""
    batches, amounts = np.array(list(runs)), np.array(list(runs.values()))
    rows = np.stack([np.ones(len(batches)), batches], axis=1) / amounts[:, None]
    fewest, slope = np.linalg.lstsq(rows, np.ones(len(batches)), rcond=None)[0]
    return Bend(float(fewest), float(fewest / slope))
