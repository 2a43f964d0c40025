"""Writes the gradebook of a class: points, details, what to review, and common mistakes.

write_gradebook(scored, folder)          # gradebook.csv, details.csv, review.csv, mistakes.csv
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from distlab.autograder.gradebook.class_counts import mistakes_in
from distlab.autograder.gradebook.csv_writer import Cell, write_table
from distlab.autograder.gradebook.reading_status import READING_WORDINGS, ReadingStatus
from distlab.autograder.gradebook.scores import Graded, Score
from distlab.autograder.intake.submissions import Problem
from distlab.course.checks.registry import stems


def write_gradebook(
    scored: Sequence[tuple[Graded, Score]], folder: Path, *, left_out: Sequence[Problem] = ()
) -> None:
    """Writes what was earned by learner and by check, what to look at, and what to teach."""
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
                "" if reading.status is ReadingStatus.TO_BE_READ else reading.earned,
                reading.report.points,
                READING_WORDINGS[reading.status].in_tables,
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
