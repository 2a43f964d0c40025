"""How far rounding alone moves a model's weights, measured on one device.

Floats have a few digits, so sums in another order differ in the last one. An optimizer may magnify
that: Adam divides a gradient by its own size, so that where the true gradient is zero (a bias
before BatchNormalization) rounding noise becomes a full step. One device trains once more, with
the examples of each batch in another order, which in exact arithmetic changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distlab.parity.randomness import reseed
from distlab.parity.sides import Case, Copies, Side, one_device, rounding_of

ROUNDINGS_A_STEP = 4  # in units of the last digit
NOISE_FACTOR = 8  # the probe is one sample of the noise, the strategy's steps are another
MOSTLY_NOISE = 0.25  # of a weight's movement: beyond that the weight says nothing
NOT_REPEATED = 0.01  # of a weight's movement: less is rounding on devices that add in any order

Table = np.ndarray  # one row a step, one column a weight
Path = list[list[np.ndarray]]  # the weights after each step


@dataclass(frozen=True, kw_only=True)
class Noise:
    """What rounding does on one device.

    Attributes:
        table: Largest difference between the two orders of examples.
        moved: How far the weights moved from the start.
        rounding_only: For each weight whether it moves by rounding alone.
        order_matters: Whether a step depends on the order of examples inside a batch.
        random: Whether one device does not repeat its own steps, with other seeds.
    """

    table: Table
    moved: Table
    rounding_only: np.ndarray
    order_matters: bool = False
    random: bool = False

    def allowed(self, one: Side, path: Path) -> Table:
        """Returns the largest difference that rounding explains; infinite where it is all.

        Args:
            one: The side of one device.
            path: Its weights after each step.
        """
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
    """Measures it.

    Args:
        case: What is compared.
        one: The side of one device.
        path: Its weights after each step.
    """
    still = [list(one.start.values)] * len(path)
    moved, moved_rms = distances(path, still)
    # Layers draw for each place in a batch: another order would be another training.
    table, rms = _once_more(case, one, path, reorder=not one.randomness.alike)
    noisy = rms[-1] > MOSTLY_NOISE * np.maximum(moved_rms[-1], np.finfo(np.float32).eps)
    trains = np.array([weight.trainable for weight in one.start.weights]) & (moved_rms[-1] > 0)
    nearly_all = bool(trains.any() and noisy[trains].mean() >= 0.5)
    if one.randomness.left or nearly_all:
        _, again = _once_more(case, one, path, reorder=False)
        random = bool((again[-1] > NOT_REPEATED * moved_rms[-1]).any())
        if random or nearly_all:
            nothing = np.zeros_like(table)
            return Noise(
                table=nothing,
                moved=moved,
                rounding_only=np.zeros_like(noisy),
                order_matters=not random,
                random=random,
            )
    return Noise(table=table, moved=moved, rounding_only=noisy)


def _once_more(case: Case, one: Side, path: Path, *, reorder: bool) -> tuple[Table, Table]:
    batches = case.batches.reordered() if reorder else case.batches
    if batches is None:
        nothing = np.zeros((len(path), len(path[0])))
        return nothing, nothing
    other: Path = []
    again = Case(
        build=case.build,
        strategy=case.strategy,
        train=case.train,
        batches=batches,
        # Seeds that a layer was given would repeat themselves here, but not on other replicas.
        changes=case.changes if reorder else (*case.changes, reseed),
    )
    one_device(again, lambda weights: other.append(only(weights)), start=one.start)
    return distances(path, other)


def only(weights: list[Copies]) -> list[np.ndarray]:
    """Returns each weight's first copy.

    Args:
        weights: The copies of each.
    """
    return [copies[0] for copies in weights]


def distances(one: Path, other: Path) -> tuple[Table, Table]:
    """Returns the largest and the root mean square difference, by step and weight.

    Args:
        one: Weights after each step.
        other: The same of another training.
    """
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
    """Returns the absolute differences: infinite where only one of two numbers is finite.

    Args:
        one: Numbers.
        other: As many.
    """
    a, b = wide(one), wide(other)
    with np.errstate(invalid="ignore"):
        far = np.abs(a - b)
    alike = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(alike, 0.0, np.where(np.isnan(far), np.inf, far))


def wide(value: np.ndarray) -> np.ndarray:
    """Returns numbers of any type, also bfloat16, as float64.

    Args:
        value: Numbers.
    """
    return np.asarray(value).astype(np.float64)
