"""The result of judging: a `Criterion` for each thing looked at, and the `Verdict` over all."""

from __future__ import annotations

from dataclasses import dataclass

from distlab.course.results.plain_values import Plain as Plain
from distlab.errors import InvalidArgument

Inputs = dict[str, Plain]


@dataclass(frozen=True)
class Criterion:
    """One thing that a check looks at.

    Args:
        label: What is looked at, in the learner's words; unique within its verdict.
        passed: Whether it is right.
        message: What is wrong, in one sentence; empty when passed.
        yours: The learner's value as text.
        expected: The expected value as text.
        weight: Its share of the check's points, relative to the other criteria.
    """

    label: str
    passed: bool
    message: str = ""
    yours: str = ""
    expected: str = ""
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise InvalidArgument(
                asked=f"Criterion({self.label!r}, weight={self.weight!r})",
                found=f"weight={self.weight!r}",
                do="set a weight above 0",
            )


@dataclass(frozen=True)
class Verdict:
    """All criteria of one judged draw; passed when every one is.

    Args:
        criteria: What was looked at.
        out_of: The weight of all the check's criteria, if some of them were not looked at.
    """

    criteria: tuple[Criterion, ...]
    out_of: float = 0.0

    def __post_init__(self) -> None:
        if not self.criteria:
            raise InvalidArgument(
                asked="Verdict(criteria=())",
                found="no criterion, so anything would pass",
                do="state at least one criterion",
            )

    @classmethod
    def of(cls, *criteria: Criterion) -> Verdict:
        """The verdict made of these criteria."""
        return cls(criteria)

    @property
    def passed(self) -> bool:
        """Whether every criterion passed."""
        return all(criterion.passed for criterion in self.criteria)

    @property
    def share(self) -> float:
        """The weighted part of the criteria that passed, 0 to 1."""
        whole = self.out_of or sum(criterion.weight for criterion in self.criteria)
        return sum(c.weight for c in self.criteria if c.passed) / whole
