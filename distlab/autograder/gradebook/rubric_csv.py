"""Reads and writes reports.csv, where a teacher gives points for each row of a rubric.

    marks = read_marks(out / "reports.csv", People(found.submissions), lessons)
    marks.given                                          # for Policy(rows=...)
    write_marks(out / "reports.csv", scored, marks)      # with the rows of new learners

What a teacher has filled in stays as it is, cell by cell: points, comments, columns of their own,
the order of the rows. Only our own cells beside them are written again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from distlab.autograder.gradebook.csv_reader import number_in, read_sheet
from distlab.autograder.gradebook.csv_writer import safe, write_rows
from distlab.autograder.gradebook.people import People
from distlab.autograder.gradebook.reading_status import READING_WORDINGS, ReadingStatus
from distlab.autograder.gradebook.scores import Given, Graded, RowKey, Score
from distlab.autograder.intake.gradable_exercises import Lessons
from distlab.course.checks.rubric import RubricRow
from distlab.errors import InvalidArgument, did_you_mean

COLUMNS = ("learner", "user", "exercise", "report", "criterion", "of", "points", "comment")
_TOLD = ("status", "what earns them")
_THEIRS = ("points", "comment")
_GONE = {"status": "not among what was graded"}
_NEEDS = ("learner", "exercise", "report", "criterion", "points")

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class RubricMarks:
    """What a teacher has filled in so far.

    Attributes:
        given: Points and comments.
        rows: All rows as they were saved, in their order.
        columns: Of the teacher's own.
        delimiter: The character between the cells.
    """

    given: Mapping[RowKey, Given] = field(default_factory=dict)
    rows: Mapping[RowKey, Mapping[str, str]] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    delimiter: str = ","


def read_marks(path: Path, people: People, lessons: Lessons | None = None) -> RubricMarks:
    """Returns what a teacher has filled in; nothing if there is no such file yet."""
    if not path.exists():
        return RubricMarks()
    sheet = read_sheet(path, needs=_NEEDS, begins=",".join(COLUMNS))
    own = tuple(name for name in sheet.columns if name not in (*COLUMNS, *_TOLD))
    lessons = lessons or Lessons()
    given: dict[RowKey, Given] = {}
    rows: dict[RowKey, Mapping[str, str]] = {}
    for line, row in sheet.rows:
        is_filled = any(row.get(name, "").strip() for name in (*_THEIRS, *own))
        asked = f"read {path}, line {line}"
        try:
            key, wanted = _meant(row, people, lessons, asked)
        except InvalidArgument:
            if is_filled:
                raise
            continue  # a row of ours, of a learner without a submission now
        if is_filled and key in given:
            raise InvalidArgument(asked=asked, found="the same row twice", do="delete one of them")
        if is_filled:
            given[key] = _given(row, wanted, asked)
        if is_filled or key not in rows:
            rows[key] = row
    return RubricMarks(given=given, rows=rows, columns=own, delimiter=sheet.delimiter)


def write_marks(path: Path, scored: Sequence[tuple[Graded, Score]], marks: RubricMarks) -> None:
    """Writes the table with a row for all that is to be read; nothing if there is nothing."""
    told = _told(scored)
    kept = [key for key in marks.rows if key in told or key in marks.given]
    new = [key for key in told if key not in marks.rows]
    if not kept and not new:
        return
    names = (*COLUMNS, *_TOLD, *marks.columns)
    rows = [dict(marks.rows.get(key, {})) | told.get(key, _GONE) for key in (*kept, *new)]
    table = [names, *([row.get(name, "") for name in names] for row in rows)]
    write_rows(path, table, delimiter=marks.delimiter)


def _told(scored: Iterable[tuple[Graded, Score]]) -> dict[RowKey, dict[str, str]]:
    """Returns our own cells of each row."""
    rows: dict[RowKey, dict[str, str]] = {}
    has_text: set[RowKey] = set()
    for one, score in scored:
        handed = one.submission
        for reading in score.readings:
            for row, _ in reading.rows:
                key = (handed.learner, handed.user, one.stem, reading.report.name, row.name)
                if key in has_text:
                    continue  # of two notebooks for one exercise: one has text
                if reading.status is not ReadingStatus.NOTHING_WRITTEN:
                    has_text.add(key)
                told = (*key, f"{row.points:g}")
                rows[key] = {
                    **{name: str(safe(cell)) for name, cell in zip(COLUMNS, told, strict=False)},
                    "status": READING_WORDINGS[reading.status].in_tables,
                    "what earns them": row.says,
                }
    return rows


def _meant(
    row: Mapping[str, str], people: People, lessons: Lessons, asked: str
) -> tuple[RowKey, RubricRow]:
    """Returns the learner and the row of a rubric that a row of the table names."""
    learner, user = people.find(row["learner"], row.get("user", ""), asked=asked)
    exercise, report, criterion = (
        row[name].strip() for name in ("exercise", "report", "criterion")
    )
    stem = _one_of({stem: stem for stem in lessons.stems}, exercise, "exercise", asked)
    reports = {one.name: one for one in lessons.reports_of(stem)}
    rubric = {one.name: one for one in _one_of(reports, report, "report", asked).rubric}
    wanted = _one_of(rubric, criterion, "criterion", asked)
    return (learner, user, exercise, report, criterion), wanted


def _one_of(known: Mapping[str, _T], name: str, kind: str, asked: str) -> _T:
    if name not in known:
        do = did_you_mean(name, known) if known else "take the row out: nothing is to be read"
        if kind == "exercise":
            do += "; for an exercise of your own give --extra-checks"
        raise InvalidArgument(asked=asked, found=f"no {kind} {name!r} there", do=do)
    return known[name]


def _given(row: Mapping[str, str], wanted: RubricRow, asked: str) -> Given:
    points = number_in(row["points"])
    if points is not None and (math.isnan(points) or not 0 <= points <= wanted.points):
        raise InvalidArgument(
            asked=asked,
            found=f"points={row['points']!r}",
            do=f"give 0 to {wanted.points:g} for {wanted.name!r}, or leave the cell empty",
        )
    return Given(points=points, comment=row.get("comment", "").strip())
