"""Reads the points that a teacher gives instead of the checks' points.

    overrides = read_overrides(path, People(found.submissions))
    check_overrides(overrides, graded)       # raises where one meets nothing

A table with the columns learner, check, points, comment, and user where two have the same name.
Where points are empty the check's stay, and the comment is shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from distlab.autograder.gradebook.csv_reader import number_in, read_sheet
from distlab.autograder.gradebook.people import People
from distlab.autograder.gradebook.scores import Given, Graded, OverrideKey
from distlab.errors import InvalidArgument, did_you_mean

COLUMNS = ("learner", "check", "points", "comment")


def read_overrides(path: Path, people: People) -> dict[OverrideKey, Given]:
    """Returns what a teacher has decided."""
    overrides: dict[OverrideKey, Given] = {}
    for line, row in read_sheet(path, needs=COLUMNS[:3], begins=",".join(COLUMNS)).rows:
        asked = f"overrides of {path}, line {line}"
        person = people.find(row["learner"], row.get("user", ""), asked=asked)
        given = Given(points=number_in(row["points"]), comment=row.get("comment", "").strip())
        key = (*person, row["check"].strip())
        if given.points != given.points or given == Given():  # NaN, or nothing at all
            raise InvalidArgument(
                asked=asked, found=f"points={row['points']!r}", do="give a number"
            )
        if key in overrides:
            raise InvalidArgument(
                asked=asked, found=f"two rows for {key[0]} and {key[2]}", do="delete one of them"
            )
        overrides[key] = given
    return overrides


def check_overrides(overrides: Mapping[OverrideKey, Given], graded: Sequence[Graded]) -> None:
    """Raises where an override meets nothing: the name of a check is misspelt."""
    checks: dict[tuple[str, str], set[str]] = {}
    for one in graded:
        person = (one.submission.learner, one.submission.user)
        checks.setdefault(person, set()).update(report.name for report in one.reports)
    everybodys = sorted(set().union(*checks.values()))
    for learner, user, check in overrides:
        there = checks.get((learner, user))
        if there is not None and check not in there:
            written = any(check == report.report for one in graded for report in one.written)
            raise InvalidArgument(
                asked=f"an override of {check!r} for {learner!r}",
                found=f"no answer of {learner!r} to that check",
                do="give its points in reports.csv, because it is a report"
                if written
                else did_you_mean(check, sorted(there) or everybodys)
                if everybodys
                else "correct the name: no exercise has such a check",
            )
