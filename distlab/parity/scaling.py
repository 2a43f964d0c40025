"""By what factor the updates under a strategy differ from those of one device.

Plain SGD moves a weight by its gradient, so that a loss that is scaled wrongly shows as one factor
on all weights; Adam divides it out again and hides it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import keras
import numpy as np

from distlab.parity import changes
from distlab.parity.noise import wide
from distlab.parity.sides import Case, Copies, Note, one_device, under_strategy
from distlab.parity.structure import Start
from distlab.training.workers.exchanging import workers_of

# Relative; what SGD(1.0) leaves of float32 after one step is far below.
_SAME = 0.02

BARE = (
    changes.synchronise_batch_norms,
    changes.stop_clipping,
    changes.use_plain_sgd,
)


@dataclass(frozen=True, kw_only=True)
class Factor:
    """One step under the strategy as a multiple of that of one device.

    Attributes:
        value: The multiple that fits best.
        fits: Whether all weights have that same multiple.
    """

    value: float
    fits: bool

    def is_about(self, value: float) -> bool:
        """Whether it is that multiple."""
        return self.fits and abs(self.value - value) <= _SAME * max(abs(value), 1.0 / 16)


def loss_factor(case: Case, start: Start) -> Factor:
    """Returns the factor of the loss alone: no regulariser, clipping or own optimizer."""
    try:
        one, other = _updates(_bare(case, changes.zero_regularisers), start)
    except Exception:  # a user's loop may need what is taken out of the model here
        return Factor(value=float("nan"), fits=False)
    return _fit(case, one, other)


def regulariser_factor(case: Case, start: Start) -> Factor:
    """Returns the factor of the regularisers alone: steps with them less steps without."""
    one, other = _updates(_bare(case), start)
    one_without, other_without = _updates(_bare(case, changes.zero_regularisers), start)
    return _fit(case, one - one_without, other - other_without)


def _bare(case: Case, *more: Callable[[keras.Model], None]) -> Case:
    alike = case.batches.with_shares_alike(case.strategy.num_replicas_in_sync)
    batches = (alike or case.batches).up_to(1)
    return replace(case, batches=batches, changes=(*BARE, *more))


def _updates(case: Case, start: Start) -> tuple[np.ndarray, np.ndarray]:
    """Returns how the first step moves the trainable weights on each side, in one row."""
    ends: list[list[np.ndarray]] = []

    def note() -> Note:
        def keep(weights: list[Copies]) -> None:
            ends.append([wide(copies[0]) for copies in weights])

        return keep

    one = one_device(case, note(), start=start)
    under_strategy(case, one.start, note())
    trains = [weight.trainable for weight in one.start.weights]
    rows = [
        np.concatenate(
            [
                (end - wide(start)).ravel()
                for end, start, yes in zip(side, one.start.values, trains, strict=True)
                if yes
            ]
        )
        for side in ends
    ]
    return rows[0], rows[1]


def _fit(case: Case, one: np.ndarray, other: np.ndarray) -> Factor:
    found = _factor(one, other)
    value, fits = workers_of(case.strategy).from_chief([found.value, found.fits])
    return Factor(value=value, fits=fits)


def _factor(one: np.ndarray, other: np.ndarray) -> Factor:
    size = float(one @ one)
    if not np.isfinite(size) or not np.isfinite(other).all() or size == 0:
        return Factor(value=float("nan"), fits=False)
    value = float(one @ other) / size
    left = float(np.linalg.norm(other - value * one))
    return Factor(
        value=value, fits=left <= _SAME * max(float(np.linalg.norm(other)), size**0.5 / 16)
    )
