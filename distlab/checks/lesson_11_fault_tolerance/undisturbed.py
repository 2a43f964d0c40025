"""The criterion of lesson 11: a training that was stopped has what an undisturbed one has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from distlab.checks.criteria import Close
from distlab.checks.verdict import Criterion, Inputs, Plain


@dataclass(frozen=True)
class AsUndisturbed(Close):
    """Equal to the bit; no reference in NumPy draws the masks of dropout."""

    of: Callable[[Inputs, Plain], Plain] = field(kw_only=True)
    atol: float = field(default=0, kw_only=True)

    def look(self, inputs: Inputs, outputs: Plain, right: Plain) -> Criterion:
        """As for every expectation."""
        return super().look(inputs, outputs, self.of(inputs, outputs))
