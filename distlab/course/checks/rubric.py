"""Defines a report that a learner writes, and the rubric by which a teacher grades it.

    REPORTS = (
        WrittenReport(
            name="speed",
            title="One device against many",
            rubric=(
                RubricRow("what_jumps", 2, "says which figure jumps, and at how many replicas"),
                RubricRow("why", 3, "explains the jump by what is sent at each step"),
            ),
        ),
    )

A lesson's `checks` hold such a tuple beside its `CHECKS`. In the exercise, the cell with the first
line `# report: speed` draws the report's picture, and the text is the markdown cell with the first
line `<!-- report: speed -->`. No machine gives points for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from distlab.errors import InvalidArgument


@dataclass(frozen=True)
class RubricRow:
    """One thing that a teacher looks for in a report.

    Args:
        name: One word, unique within its report.
        points: The most that it earns.
        says: What earns them.
    """

    name: str
    points: float
    says: str

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or not self.points > 0:
            raise InvalidArgument(
                asked=f"RubricRow({self.name!r}, {self.points!r})",
                found="a name that is not an identifier, or points that are not above 0",
                do="use letters, digits and underscores, and set points above 0",
            )


@dataclass(frozen=True)
class WrittenReport:
    """A report of an exercise.

    Args:
        name: One word, unique within its lesson, and no check's.
        title: What it is about, a few words.
        rubric: What a teacher looks for.
    """

    name: str
    title: str
    rubric: tuple[RubricRow, ...]

    def __post_init__(self) -> None:
        names = [row.name for row in self.rubric]
        if not self.name.isidentifier() or not names or len(set(names)) != len(names):
            raise InvalidArgument(
                asked=f"WrittenReport({self.name!r})",
                found=f"rubric rows named {names}",
                do="use an identifier as its name, and list at least one row, each named once",
            )

    @property
    def points(self) -> float:
        """The most that the report earns."""
        return sum(row.points for row in self.rubric)
