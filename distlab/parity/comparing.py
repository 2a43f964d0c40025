"""Two sides compared after every step, weight by weight, on every replica."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distlab.parity.noise import Noise, Path, Table, difference, largest, measure, only, wide
from distlab.parity.randomness import Randomness
from distlab.parity.sides import Case, Copies, Side, one_device, under_strategy
from distlab.parity.structure import plain_names


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What was found.

    Attributes:
        names: Of the weights, in the model's order.
        one: The side of one device.
        other: The side of the strategy.
        far: Largest difference from one device, over all replicas.
        apart: Largest difference of a replica's copy from the first replica's.
        allowed: What may be in `far`.
        path: The weights of one device after each step.
        noise: What rounding does on one device.
        tolerance: What may be in `far`, where it was given.
        finite: After how many steps the weights of one device were still finite.
    """

    names: tuple[str, ...]
    one: Side
    other: Side
    far: Table
    apart: Table
    allowed: Table
    path: Path
    noise: Noise
    tolerance: float | None
    finite: int

    @property
    def first(self) -> tuple[int, int] | None:
        """The first step, from 0, and there the first weight, that is too far away."""
        where = np.argwhere(self.far > self.allowed)
        return (int(where[0][0]), int(where[0][1])) if len(where) else None

    @property
    def randomness(self) -> Randomness:
        """The layers that draw random numbers, by plain names."""
        one, other = self.one.randomness, self.other.randomness
        off, left = plain_names(one.off, other.off), plain_names(one.left, other.left)
        return Randomness(off=tuple(off), left=tuple(left))

    def worst(self, step: int) -> int:
        """Returns the weight whose difference is largest against what is allowed there."""
        return int(np.argmax(self._ratio()[step]))

    def worst_step(self) -> int:
        """Returns the step in which that ratio is largest, from 0."""
        return int(np.argmax(self._ratio().max(axis=1)))

    def _ratio(self) -> Table:
        with np.errstate(invalid="ignore"):  # where one device is not finite all is allowed
            ratio = self.far / np.maximum(self.allowed, np.finfo(float).tiny)
        return np.asarray(np.nan_to_num(ratio, nan=0.0, posinf=np.inf))


def compare(
    case: Case, *, like: Comparison | None = None, tolerance: float | None = None
) -> Comparison:
    """Trains both sides from the same weights, and compares."""
    path: Path = []
    start = None if like is None else like.one.start
    one = one_device(case, lambda weights: path.append(only(weights)), start=start)
    noise = measure(case, one, path) if like is None else like.noise
    tolerance = tolerance if like is None else like.tolerance
    far: list[list[float]] = []
    apart: list[list[float]] = []

    def note(weights: list[Copies]) -> None:
        apart.append([max(_far(copy, copies[0]) for copy in copies) for copies in weights])
        expected = path[len(far)]
        far.append(
            [max(_far(copy, v) for copy in c) for c, v in zip(weights, expected, strict=True)]
        )

    other = under_strategy(case, one.start, note)
    allowed = largest(case, noise.allowed(one, path))
    finite = [all(np.isfinite(wide(value)).all() for value in values) for values in path]
    return Comparison(
        names=tuple(plain_names(one.start.paths, other.start.paths)),
        one=one,
        other=other,
        far=largest(case, far),
        apart=largest(case, apart),
        allowed=allowed if tolerance is None else np.full_like(allowed, tolerance),
        path=path,
        noise=noise,
        tolerance=tolerance,
        finite=finite.index(False) if False in finite else len(finite),
    )


def _far(one: np.ndarray, other: np.ndarray) -> float:
    return float(difference(one, other).max(initial=0))
