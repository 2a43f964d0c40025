"""Adds up what a learner earned: checks, the teacher's own points, and the cost of being late.

graded = Graded(submission=submission, stem="09_multi_worker", reports=reports)
policy = Policy(late_factor=0.8, overrides={("jane", "", "split"): Given(points=2)})
score_of(graded, policy)             # Score(earned=9.5, points=12.0, ...)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from distlab.autograder.intake.exercises import Exercises
from distlab.autograder.intake.submissions import Submission
from distlab.autograder.intake.written_reports import Written
from distlab.course.checks.report import Report
from distlab.course.checks.rubric import RubricRow, WrittenReport
from distlab.course.checks.run_check import to_half_points
from distlab.errors import InvalidArgument

# learner, user, check; and learner, user, exercise, report, row of its rubric
OverrideKey = tuple[str, str, str]
RowKey = tuple[str, str, str, str, str]


@dataclass(frozen=True, kw_only=True)
class Graded:
    """A submission that was graded, or could not be."""

    submission: Submission
    stem: str = ""  # of the exercise, where it could be told
    reports: tuple[Report, ...] = ()  # one for each check, in their order
    written: tuple[Written, ...] = ()  # what a teacher is to read
    code: Mapping[str, str] = field(default_factory=dict)  # of each answer, by its check
    notes: tuple[str, ...] = ()  # what was odd about the notebook
    problem: str = ""  # why it was not graded
    is_final: bool = True  # otherwise the next run grades it again


@dataclass(frozen=True, kw_only=True)
class Given:
    """Points and a comment that a teacher gives; None for no points yet."""

    points: float | None = None
    comment: str = ""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How points become a mark: what a teacher gives for checks, and for rows of rubrics."""

    late_factor: float = 1.0  # what is left of the points of a late hand-in, 0 to 1
    overrides: Mapping[OverrideKey, Given] = field(default_factory=dict)
    rows: Mapping[RowKey, Given] = field(default_factory=dict)
    exercises: Exercises = field(default_factory=Exercises, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.late_factor <= 1:
            is_percent = 1 < self.late_factor <= 100
            raise InvalidArgument(
                asked=f"grade with --late {self.late_factor:g}",
                found=f"{self.late_factor:g} times the points for a late hand-in",
                do="write the part that is left, from 0 to 1: 0.8 takes a fifth off"
                + (f"; for {self.late_factor:g} % write {self.late_factor / 100:g}" * is_percent),
            )


class ReadingStatus(StrEnum):
    """How far a teacher has read a report, as tables and pages show it."""

    READ = "read"
    TO_BE_READ = "to be read"
    NOTHING_WRITTEN = "nothing written"


@dataclass(frozen=True, kw_only=True)
class ReportScore:
    """A report with what was handed in, and the points for each row of its rubric."""

    report: WrittenReport
    written: Written
    rows: tuple[tuple[RubricRow, Given], ...]

    @property
    def earned(self) -> float:
        """The points that were given so far."""
        return sum(given.points or 0.0 for _, given in self.rows)

    @property
    def status(self) -> ReadingStatus:
        """Whether a teacher has given points for all rows, or where there is nothing to read."""
        if all(given.points is not None for _, given in self.rows):
            return ReadingStatus.READ
        has_text = bool(self.written.text)
        return ReadingStatus.TO_BE_READ if has_text else ReadingStatus.NOTHING_WRITTEN


@dataclass(frozen=True, kw_only=True)
class Score:
    """The points that a submission earned, and how many there are."""

    earned: float  # after what being late costs
    points: float
    by_check: Mapping[str, float]  # overrides included, before what being late costs
    comments: Mapping[str, str]  # of a teacher, by check
    readings: tuple[ReportScore, ...] = ()

    @property
    def to_be_read(self) -> tuple[str, ...]:
        """The names of the reports that a teacher is still to read."""
        unread = (r for r in self.readings if r.status is ReadingStatus.TO_BE_READ)
        return tuple(reading.report.name for reading in unread)


def score_of(graded: Graded, policy: Policy) -> Score:
    """Returns what a submission earned."""
    person = graded.submission.person
    given = {
        report.name: policy.overrides.get((*person, report.name), Given())
        for report in graded.reports
    }
    by_check = {
        report.name: report.earned if (own := given[report.name].points) is None else own
        for report in graded.reports
    }
    readings = _readings(graded, policy)
    earned = sum(by_check.values()) + sum(reading.earned for reading in readings)
    if graded.submission.is_late and policy.late_factor != 1:
        earned = to_half_points(earned * policy.late_factor)
    return Score(
        earned=round(earned, 2),
        points=sum(r.points for r in graded.reports) + sum(r.report.points for r in readings),
        by_check=by_check,
        comments={name: own.comment for name, own in given.items() if own.comment},
        readings=readings,
    )


def _readings(graded: Graded, policy: Policy) -> tuple[ReportScore, ...]:
    written = {report.report: report for report in graded.written}
    start = (*graded.submission.person, graded.stem)
    return tuple(
        ReportScore(
            report=report,
            written=written[report.name],
            rows=tuple(
                (row, policy.rows.get((*start, report.name, row.name), Given()))
                for row in report.rubric
            ),
        )
        for report in (policy.exercises.reports_of(graded.stem) if written else ())
        if report.name in written
    )
