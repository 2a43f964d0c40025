"""How far rounding alone moves a model's weights, measured on one device.

Floats have a few digits, so sums in another order differ in the last one. An optimizer may magnify
that: Adam divides a gradient by its own size, so that where the true gradient is zero (a bias
before BatchNormalization) rounding noise becomes a full step. One device trains once more, from
weights that are changed in their last digit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distlab.parity.sides import Case, Copies, Side, one_device, rounding_of
from distlab.parity.structure import Start
from distlab.training.workers.exchanging import workers_of

ROUNDINGS_A_STEP = 4  # in units of the last digit
NOISE_FACTOR = 8  # the probe is one sample of the noise, the strategy's steps are another
MOSTLY_NOISE = 0.25  # of a weight's movement: beyond that the weight says nothing

Table = np.ndarray  # one row a step, one column a weight
Path = list[list[np.ndarray]]  # the weights after each step


@dataclass(frozen=True, kw_only=True)
class Noise:
    """What rounding does on one device.

    Attributes:
        table: Largest difference that a change of the last digit makes.
        moved: How far the weights moved from the start.
        rounding_only: For each weight whether it moves by rounding alone.
        everywhere: Whether rounding alone moves most weights as much as training does.
    """

    table: Table
    moved: Table
    rounding_only: np.ndarray
    everywhere: bool

    def allowed(self, one: Side, path: Path) -> Table:
        """Returns the largest difference that rounding explains; infinite where it is all."""
        computed = one.rounding()
        allowed = np.zeros((len(path), len(path[0])))
        for step, values in enumerate(path):
            for index, value in enumerate(values):
                size = max(1.0, float(np.abs(wide(value)).max(initial=0)))
                stored = rounding_of(one.start.weights[index].dtype)
                allowed[step, index] = ROUNDINGS_A_STEP * (step + 1) * stored * size
                if stored:
                    allowed[step, index] += ROUNDINGS_A_STEP * computed * self.moved[step, index]
        allowed += NOISE_FACTOR * self.table[: len(path)]
        allowed[:, self.rounding_only] = np.inf
        return allowed


def measure(case: Case, one: Side, path: Path) -> Noise:
    """Measures it."""
    moved = largest(case, distances(path, [list(one.start.values)] * len(path))[0])
    table, noisy = moves(case, one, path, start=_last_digits_changed(one.start))
    trains = np.array([weight.trainable for weight in one.start.weights]) & (moved[-1] > 0)
    everywhere = bool(trains.any() and noisy[trains].mean() >= 0.5)
    if everywhere:
        table, noisy = np.zeros_like(table), np.zeros_like(noisy)
    return Noise(table=table, moved=moved, rounding_only=noisy, everywhere=everywhere)


def moves(
    case: Case, one: Side, path: Path, *, start: Start | None = None, share: float = MOSTLY_NOISE
) -> tuple[Table, np.ndarray]:
    """Returns how far one device comes to lie elsewhere, and which weights by a large share."""
    other: Path = []
    one_device(case, lambda weights: other.append(only(weights)), start=start or one.start)
    _, moved = distances(path, [list(one.start.values)] * len(path))
    table, apart = (largest(case, part) for part in distances(path, other))
    return table, apart[-1] > share * np.maximum(moved[-1], np.finfo(np.float32).eps)


def largest(case: Case, table: Any) -> Table:
    """Returns the largest numbers of all workers: they go by the same, whatever they compute on."""
    told = workers_of(case.strategy).exchange(np.asarray(table).tolist())
    return np.asarray(np.max(np.array(told, dtype=float), axis=0))


def _last_digits_changed(start: Start) -> Start:
    draw = np.random.default_rng(0)  # of its own: nobody's random numbers are used up
    values = []
    for weight, value in zip(start.weights, start.values, strict=True):
        signs = draw.choice((-1.0, 1.0), size=np.shape(value))
        changed = wide(value) * (1 + signs * rounding_of(weight.dtype))
        values.append(changed.astype(np.asarray(value).dtype))
    return replace(start, values=tuple(values))


def only(weights: list[Copies]) -> list[np.ndarray]:
    """Returns each weight's first copy."""
    return [copies[0] for copies in weights]


def distances(one: Path, other: Path) -> tuple[Table, Table]:
    """Returns the largest and the root mean square difference, by step and weight."""
    pairs = [
        [difference(a, b) for a, b in zip(here, there, strict=True)]
        for here, there in zip(one, other, strict=True)
    ]
    largest = [[float(part.max(initial=0)) for part in row] for row in pairs]
    rms = [
        [float(np.sqrt(np.mean(part**2))) if part.size else 0.0 for part in row] for row in pairs
    ]
    return np.array(largest), np.array(rms)


def difference(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Returns the absolute differences: infinite where only one of two numbers is finite."""
    a, b = wide(one), wide(other)
    with np.errstate(invalid="ignore"):
        far = np.abs(a - b)
    alike = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(alike, 0.0, np.where(np.isnan(far), np.inf, far))


def wide(value: np.ndarray) -> np.ndarray:
    """Returns numbers of any type, also bfloat16, as float64."""
    return np.asarray(value).astype(np.float64)
