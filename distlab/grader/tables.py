"""Writes tables that a spreadsheet opens, and in which nothing runs.

    write_gradebook(scored, folder)          # gradebook.csv, details.csv, review.csv, mistakes.csv

A cell of a learner's making that a spreadsheet would take for a formula gets an apostrophe before.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from distlab.grader.counting import mistakes_in
from distlab.grader.scoring import Graded, Score
from distlab.grader.submissions import Problem
from distlab.grading.registry import stems

Cell = str | float | int
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%")


def safe(cell: Cell) -> Cell:
    """Returns a cell that a spreadsheet shows as it is; numbers stay numbers, 7.0 as 7.

    Args:
        cell: A text or a number.
    """
    if not isinstance(cell, str):
        return f"{cell:.10g}" if isinstance(cell, float) else cell
    text = "".join(letter if letter.isprintable() else " " for letter in cell)
    return f"'{text}" if cell.startswith(_FORMULA) or text.lstrip().startswith(_FORMULA) else text


def write_table(path: Path, rows: Iterable[Sequence[Cell]]) -> None:
    """Writes a table in which nothing runs, whole or not at all.

    Args:
        path: Where; what is there already is replaced.
        rows: The first has the names of the columns.
    """
    write_rows(path, ([safe(cell) for cell in row] for row in rows))


def write_rows(path: Path, rows: Iterable[Sequence[Cell]], *, delimiter: str = ",") -> None:
    """Writes a table as it is, whole or not at all.

    Args:
        path: Where; what is there already is replaced.
        rows: The first has the names of the columns.
        delimiter: What stands between cells.
    """
    part = path.with_name(f".{path.name}.part")
    with part.open("w", newline="", encoding="utf-8-sig") as file:  # the mark tells Excel UTF-8
        csv.writer(file, delimiter=delimiter).writerows(rows)
    part.replace(path)


def write_gradebook(
    scored: Sequence[tuple[Graded, Score]], folder: Path, *, left_out: Sequence[Problem] = ()
) -> None:
    """Writes what was earned, by learner and by check, what is to be looked at, and what to teach.

    Args:
        scored: All submissions, each with what it earned.
        folder: Where to.
        left_out: What was handed in and does not count, and why.
    """
    write_table(folder / "gradebook.csv", _gradebook(scored))
    write_table(folder / "details.csv", _details(scored))
    write_table(folder / "review.csv", _review(scored, left_out))
    write_table(folder / "mistakes.csv", _mistakes([one for one, _ in scored]))


def _gradebook(scored: Sequence[tuple[Graded, Score]]) -> Iterable[Sequence[Cell]]:
    stems = sorted({one.stem for one, _ in scored if one.stem})
    points = {stem: max(s.points for one, s in scored if one.stem == stem) for stem in stems}
    yield [
        "learner",
        "user",
        *(f"{stem} (of {points[stem]:g})" for stem in stems),
        "total",
        "late",
        "held for review",
        "to be read",
        "not graded",
    ]
    people = sorted({(one.submission.learner, one.submission.user) for one, _ in scored})
    for person in people:
        theirs = [
            (one, score)
            for one, score in scored
            if (one.submission.learner, one.submission.user) == person
        ]
        earned: dict[str, float] = {}
        for one, score in theirs:
            if not one.problem:  # of two notebooks for one exercise the better one counts
                earned[one.stem] = max(score.earned, earned.get(one.stem, 0.0))
        yield [
            *person,
            *(earned.get(stem, "") for stem in stems),
            round(sum(earned.values()), 2),
            sum(one.submission.is_late for one, _ in theirs),
            sum(len(score.waiting) for _, score in theirs),
            "; ".join(f"{one.stem}: {name}" for one, score in theirs for name in score.to_be_read),
            "; ".join(
                f"{one.submission.path.name}: {one.problem}" for one, _ in theirs if one.problem
            ),
        ]


def _details(scored: Sequence[tuple[Graded, Score]]) -> Iterable[Sequence[Cell]]:
    yield [
        "learner",
        "user",
        "exercise",
        "check",
        "earned",
        "points",
        "status",
        "mistake",
        "late",
        "comment",
    ]
    for one, score in scored:
        handed = one.submission
        for report in one.reports:
            yield [
                handed.learner,
                handed.user,
                one.stem,
                report.name,
                score.by_check[report.name],
                report.points,
                report.status,
                report.mistake,
                "late" if handed.is_late else "",
                score.comments.get(report.name, ""),
            ]
        for reading in score.readings:
            comments = (f"{row.name}: {given.comment}" for row, given in reading.rows)
            yield [
                handed.learner,
                handed.user,
                one.stem,
                reading.report.name,
                "" if reading.status == "to be read" else reading.earned,
                reading.report.points,
                reading.status,
                "",
                "late" if handed.is_late else "",
                "; ".join(text for text in comments if not text.endswith(": ")),
            ]


def _review(
    scored: Sequence[tuple[Graded, Score]], left_out: Sequence[Problem]
) -> Iterable[Sequence[Cell]]:
    yield ["learner", "user", "file", "check", "why", "would earn"]
    for problem in left_out:
        yield ["", "", str(problem.path), "", f"left out: {problem.says}", ""]
    for one, score in scored:
        handed = one.submission
        start = [handed.learner, handed.user, handed.path.name]
        if one.problem:
            yield [*start, "", f"not graded: {one.problem}", ""]
        if one.stem and handed.name in stems() and handed.name != one.stem:
            yield [*start, "", f"named {handed.name}, and the tasks are those of {one.stem}", ""]
        would_earn = {r.name: r.earned for r in one.reports if r.name in score.waiting}
        for held in one.held:
            yield [*start, held.check, held.reason, would_earn.get(held.check, "decided")]
        for note in one.notes:
            yield [*start, "", note, ""]


def _mistakes(graded: Sequence[Graded]) -> Iterable[Sequence[Cell]]:
    """What to teach again: how many were caught in each mistake, the most common first."""
    yield ["exercise", "check", "mistake", "learners", "what to think about again"]
    for one in mistakes_in(graded):
        yield [one.stem, one.check, one.name, one.learners, one.says]
