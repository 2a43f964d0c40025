"""Reads what a teacher changes: points in place of a check's, and points for written reports.

    people = People(folder.submissions)
    overrides = read_overrides(path, people)                # for Policy(overrides=...)
    rows = read_marks(out / "reports.csv", people, exercises)     # for Policy(rows=rows.given)
    write_marks(out / "reports.csv", scored, rows)          # with the rows of new learners

An override is a row with learner, check, points, comment, and user where two have the same name.
In reports.csv a teacher fills in points and comments, which stay; the other cells are ours.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from distlab.autograder.gradebook.scores import (
    Given,
    Graded,
    OverrideKey,
    ReadingStatus,
    RowKey,
    Score,
)
from distlab.autograder.gradebook.tables import number_in, read_table, safe, write_rows
from distlab.autograder.intake.exercises import Exercises
from distlab.autograder.intake.forms import composed
from distlab.autograder.intake.submissions import Person, Submission
from distlab.autograder.intake.written_reports import Written
from distlab.course.checks.report import Ending, Report
from distlab.errors import InvalidArgument, did_you_mean

_OVERRIDE = ("learner", "check", "points", "comment")
_KEY = ("learner", "user", "exercise", "report", "criterion")
_COLUMNS = (*_KEY, "of", "points", "comment", "status", "what earns them")
_MOST_NAMES = 10  # in a message
_GONE = ("", "not among what was graded", "")

_T = TypeVar("_T")


class People:
    """The learners of a folder, as rows of a teacher's table name them."""

    def __init__(self, submissions: Iterable[Submission]) -> None:
        self._named: dict[str, list[Person]] = {}
        for person in sorted({submission.person for submission in submissions}):
            # A teacher writes a name as our tables show it, and a spreadsheet may cut its spaces.
            for name in dict.fromkeys((person[0].strip(), str(safe(person[0])).strip())):
                self._named.setdefault(name, []).append(person)

    def find(self, learner: str, user: str, *, asked: str) -> Person:
        """Returns the learner of a row."""
        named = self._named.get(composed(learner).strip(), [])
        exact = [person for person in named if person[1] == user.strip()]
        if len(exact) == 1 or len(named) == 1:
            return (exact or named)[0]
        if named:
            numbers = ", ".join(number for _, number in named)
            raise InvalidArgument(
                asked=asked,
                found=f"{len(named)} learners named {learner!r}",
                do=f"write one of their numbers in the column 'user': {numbers}",
            )
        raise InvalidArgument(
            asked=asked,
            found=f"no such learner: {learner!r}",
            do=did_you_mean(learner, sorted(self._named), most=_MOST_NAMES),
        )


# Points in place of a check's


def read_overrides(path: Path, people: People) -> dict[OverrideKey, Given]:
    """Returns what a teacher has decided."""
    overrides: dict[OverrideKey, Given] = {}
    for line, row in read_table(path, needs=_OVERRIDE[:3], begins=",".join(_OVERRIDE)).rows:
        asked = f"overrides of {path}, line {line}"
        person = people.find(row["learner"], row.get("user", ""), asked=asked)
        points = row.get("points", "")
        given = Given(points=number_in(points), comment=row.get("comment", "").strip())
        key = (*person, row.get("check", "").strip())
        if given == Given() or (given.points is not None and math.isnan(given.points)):
            raise InvalidArgument(asked=asked, found=f"points={points!r}", do="enter a number")
        if key in overrides:
            raise InvalidArgument(
                asked=asked, found=f"two rows for {key[0]} and {key[2]}", do="delete one of them"
            )
        overrides[key] = given
    return overrides


def check_overrides(overrides: Mapping[OverrideKey, Given], graded: Sequence[Graded]) -> None:
    """Raises where an override meets nothing: the name of a check is misspelt."""
    checks: dict[Person, set[str]] = {}
    for notebook in graded:
        names = checks.setdefault(notebook.submission.person, set())
        names.update(report.name for report in notebook.reports)
    everybodys = sorted(set().union(*checks.values()))
    for learner, user, check in overrides:
        own = checks.get((learner, user))
        if own is not None and check not in own:
            is_report = any(check == w.report for notebook in graded for w in notebook.written)
            raise InvalidArgument(
                asked=f"an override of {check!r} for {learner!r}",
                found=f"no answer of {learner!r} to that check",
                do="enter its points in reports.csv, because it is a report"
                if is_report
                else did_you_mean(check, sorted(own) or everybodys)
                if everybodys
                else "correct the name: no exercise has such a check",
            )


def grade_by_hand(
    graded: Sequence[Graded], overrides: Collection[OverrideKey], exercises: Exercises
) -> list[Graded]:
    """Returns all notebooks; one that can't be graded counts if a teacher gives points for it.

    Which exercise it is, is not known. It counts as that of the check, with no task answered.
    """
    notebooks = list(graded)
    for *person, check in overrides:
        own = [
            at
            for at, notebook in enumerate(notebooks)
            if notebook.submission.person == tuple(person)
        ]
        stem = exercises.stem_of(check)
        if not stem or any(notebooks[at].stem == stem for at in own):
            continue
        broken = [at for at in own if notebooks[at].problem]
        named = [at for at in broken if notebooks[at].submission.name == stem]
        for at in (named or broken)[:1]:
            notebooks[at] = _unanswered(notebooks[at], stem, exercises)
    return notebooks


def _unanswered(notebook: Graded, stem: str, exercises: Exercises) -> Graded:
    nothing = [
        Report(check.name, check.function, check.title, Ending.NOT_STARTED, 0, check.points)
        for check, _ in exercises.questions(stem)
    ]
    return replace(
        notebook,
        stem=stem,
        reports=tuple(replace(r, message="The notebook could not be graded.") for r in nothing),
        written=tuple(Written(report=report.name) for report in exercises.reports_of(stem)),
        notes=(f"not graded: {notebook.problem}; the points are those that the teacher gives",),
        problem="",
    )


# Points for written reports


@dataclass(frozen=True, kw_only=True)
class Marks:
    """The marks that a teacher has filled in so far, and the delimiter of their file."""

    given: Mapping[RowKey, Given] = field(default_factory=dict)
    delimiter: str = ","


def read_marks(path: Path, people: People, exercises: Exercises) -> Marks:
    """Returns what a teacher has filled in; nothing if there is no such file yet."""
    if not path.exists():
        return Marks()
    table = read_table(path, needs=("learner", *_KEY[2:], "points"), begins=",".join(_COLUMNS))
    given: dict[RowKey, Given] = {}
    for line, row in table.rows:
        if not (row.get("points", "").strip() or row.get("comment", "").strip()):
            continue
        key, points = _marked(row, people, exercises, f"read {path}, line {line}")
        if key in given:
            raise InvalidArgument(
                asked=f"read {path}, line {line}",
                found="the same row twice",
                do="delete one of them",
            )
        given[key] = Given(points=points, comment=row.get("comment", "").strip())
    return Marks(given=given, delimiter=table.delimiter)


def write_marks(path: Path, scored: Iterable[tuple[Graded, Score]], marks: Marks) -> None:
    """Writes a row for all that is to be read, or was; nothing if there is nothing."""
    current: dict[RowKey, tuple[str, ...]] = {}
    for notebook, score in scored:
        for reading in score.readings:
            start = (*notebook.submission.person, notebook.stem, reading.report.name)
            for row, _ in reading.rows:
                # Of two notebooks for one exercise, one may have no text.
                if reading.status is not ReadingStatus.NOTHING_WRITTEN or (
                    (*start, row.name) not in current
                ):
                    current[*start, row.name] = (f"{row.points:g}", reading.status, row.says)
    rows = []
    for key in dict.fromkeys((*current, *marks.given)):
        own, (most, status, says) = marks.given.get(key, Given()), current.get(key, _GONE)
        points = "" if own.points is None else f"{own.points:g}"
        rows.append([*(str(safe(cell)) for cell in key), most, points, own.comment, status, says])
    if rows:
        write_rows(path, [_COLUMNS, *rows], delimiter=marks.delimiter)


def _marked(
    row: Mapping[str, str], people: People, exercises: Exercises, asked: str
) -> tuple[RowKey, float | None]:
    """Returns the row of a rubric that a row of the table names, and the points for it."""
    person = people.find(row["learner"], row.get("user", ""), asked=asked)
    stem, report, criterion = (row.get(name, "").strip() for name in _KEY[2:])
    _pick({known: known for known in exercises.stems}, stem, "exercise", asked)
    reports = {known.name: known for known in exercises.reports_of(stem)}
    rubric = {known.name: known for known in _pick(reports, report, "report", asked).rubric}
    wanted = _pick(rubric, criterion, "criterion", asked)
    points = number_in(row.get("points", ""))
    if points is not None and (math.isnan(points) or not 0 <= points <= wanted.points):
        raise InvalidArgument(
            asked=asked,
            found=f"points={row['points']!r}",
            do=f"enter 0 to {wanted.points:g} for {wanted.name!r}, or leave the cell empty",
        )
    return (*person, stem, report, criterion), points


def _pick(known: Mapping[str, _T], name: str, kind: str, asked: str) -> _T:
    if name not in known:
        do = did_you_mean(name, known) if known else "take the row out: nothing is to be read"
        if kind == "exercise":
            do += "; for an exercise of your own give --extra-checks"
        raise InvalidArgument(asked=asked, found=f"no {kind} {name!r} there", do=do)
    return known[name]
