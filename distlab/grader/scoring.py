"""What a learner earned: the checks' points, a teacher's own, and what a late hand-in costs.

graded = Graded(submission=one, stem="09_multi_worker", reports=reports)
policy = Policy(late_factor=0.8, overrides=read_overrides("overrides.csv"))
score_of(graded, policy)             # Score(earned=9.6, points=12.0, ...)
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from distlab.errors import InvalidArgument
from distlab.grader.submissions import Submission
from distlab.grading.report import Report

_COLUMNS = ("learner", "check", "points", "comment")


@dataclass(frozen=True, kw_only=True)
class Held:
    """Why a person should look at an answer before its points count.

    Attributes:
        check: The check's name.
        reason: What was seen, and where.
    """

    check: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Graded:
    """A submission that was graded, or could not be.

    Attributes:
        submission: What was handed in.
        stem: The lesson; "" where it could not be told.
        reports: One for each check, in their order.
        held: What a person should look at.
        notes: What was odd about the notebook.
        problem: Why it was not graded; "" where it was.
    """

    submission: Submission
    stem: str = ""
    reports: tuple[Report, ...] = ()
    held: tuple[Held, ...] = ()
    notes: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Override:
    """Points that a teacher gives, in place of the check's.

    Attributes:
        points: How many.
        comment: Shown to the learner.
    """

    points: float
    comment: str = ""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How points become a mark.

    Attributes:
        late_factor: What is left of the points of a late hand-in, 0 to 1.
        overrides: By learner and check.
    """

    late_factor: float = 1.0
    overrides: Mapping[tuple[str, str], Override] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.late_factor <= 1:
            raise InvalidArgument(
                asked=f"late_factor={self.late_factor!r}",
                found="what is no part of the points",
                do="give what is left of them, from 0 to 1: 0.8 takes a fifth off",
            )


@dataclass(frozen=True, kw_only=True)
class Score:
    """What a submission earned.

    Attributes:
        earned: All in all, after what being late costs.
        points: What could be earned.
        by_check: What each check earned, overrides included, before what being late costs.
        comments: What a teacher says, by check.
    """

    earned: float
    points: float
    by_check: Mapping[str, float]
    comments: Mapping[str, str]


def score_of(graded: Graded, policy: Policy) -> Score:
    """Returns what a submission earned.

    Args:
        graded: The submission.
        policy: How points become a mark.
    """
    by_check: dict[str, float] = {}
    comments: dict[str, str] = {}
    for report in graded.reports:
        override = policy.overrides.get((graded.submission.learner, report.name))
        by_check[report.name] = report.earned if override is None else override.points
        if override is not None and override.comment:
            comments[report.name] = override.comment
    factor = policy.late_factor if graded.submission.is_late else 1.0
    return Score(
        earned=round(sum(by_check.values()) * factor, 2),
        points=sum(report.points for report in graded.reports),
        by_check=by_check,
        comments=comments,
    )


def read_overrides(path: Path) -> dict[tuple[str, str], Override]:
    """Reads what a teacher has decided: a table with the columns learner, check, points, comment.

    Args:
        path: Of a CSV file.

    Raises:
        InvalidArgument: It is no such table: which line, and what is wrong with it.
    """

    def refuse(line: int, found: str, do: str) -> InvalidArgument:
        return InvalidArgument(asked=f"overrides of {path}, line {line}", found=found, do=do)

    overrides: dict[tuple[str, str], Override] = {}
    with path.open(newline="", encoding="utf-8-sig") as file:
        table = csv.DictReader(file)
        missing = [name for name in _COLUMNS[:3] if name not in (table.fieldnames or ())]
        if missing:
            raise refuse(
                1,
                f"no column {missing[0]!r} among {', '.join(table.fieldnames or ()) or 'none'}",
                f"begin with the line {','.join(_COLUMNS)}",
            )
        for row in table:
            key = (row["learner"] or "", row["check"] or "")
            try:
                points = float(row["points"])
            except (TypeError, ValueError):
                points = math.nan
            if not math.isfinite(points):
                raise refuse(table.line_num, f"points={row['points']!r}", "give a number")
            if key in overrides:
                raise refuse(
                    table.line_num, f"{key[0]} and {key[1]} once more", "leave one of them"
                )
            overrides[key] = Override(points=points, comment=row.get("comment") or "")
    return overrides


def check_overrides(policy: Policy, graded: list[Graded]) -> None:
    """Raises where an override meets nothing: a name is misspelt.

    Args:
        policy: With the overrides.
        graded: All submissions.

    Raises:
        InvalidArgument: Which one.
    """
    there = {(one.submission.learner, r.name) for one in graded for r in one.reports}
    learners = {learner for learner, _ in there}
    for learner, check in policy.overrides:
        if (learner, check) not in there:
            found = (
                "no answer to that check of theirs" if learner in learners else "no such learner"
            )
            raise InvalidArgument(
                asked=f"an override of {check!r} for {learner!r}",
                found=found,
                do="write both as gradebook.csv has them",
            )
