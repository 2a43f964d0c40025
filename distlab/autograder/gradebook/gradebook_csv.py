"""Writes the gradebook of a class: points, details, and what to review.

write_gradebook(scored, folder)          # gradebook.csv, details.csv, review.csv
mistakes_in(graded)                      # what to teach again
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from distlab.autograder.gradebook.scores import Graded, ReadingStatus, Score
from distlab.autograder.gradebook.tables import Cell, write_table
from distlab.autograder.intake.submissions import Person, Problem
from distlab.autograder.isolation.question import COULD_NOT_JUDGE
from distlab.course.checks.registry import stems
from distlab.course.checks.report import WORDINGS, Ending, Report

Scored = Sequence[tuple[Graded, Score]]


class AnswerOutcome(StrEnum):
    """An answer's result on a page: its ending, or partial if it earned some points."""

    PASSED = Ending.PASSED
    PARTIAL = "partial"
    NOT_YET = Ending.NOT_YET
    NOT_STARTED = Ending.NOT_STARTED
    ERROR = Ending.ERROR
    TIMED_OUT = Ending.TIMED_OUT

    @property
    def label(self) -> str:
        """The outcome's wording on pages."""
        return self.value if self is self.PARTIAL else WORDINGS[Ending(self)].label


@dataclass(frozen=True, kw_only=True)
class CommonMistake:
    """A mistake of a check, how many learners were caught in it, and what it says."""

    stem: str
    check: str
    name: str
    learners: int
    says: str


def mistakes_in(graded: Sequence[Graded]) -> list[CommonMistake]:
    """Returns the mistakes that learners were caught in, the most common first."""
    caught: dict[tuple[str, str, str], set[Person]] = {}
    says: dict[tuple[str, str, str], str] = {}
    for notebook in graded:
        for report in notebook.reports:
            if report.mistake:
                key = (notebook.stem, report.name, report.mistake)
                caught.setdefault(key, set()).add(notebook.submission.person)
                says[key] = report.mistake_says
    return [
        CommonMistake(stem=key[0], check=key[1], name=key[2], learners=len(people), says=says[key])
        for key, people in sorted(caught.items(), key=lambda item: (-len(item[1]), item[0]))
    ]


def write_gradebook(scored: Scored, folder: Path, *, left_out: Sequence[Problem] = ()) -> int:
    """Writes what was earned by learner and by check, and what to look at; returns how much."""
    header, *review = _review(scored, left_out)
    write_table(folder / "gradebook.csv", _gradebook(scored))
    write_table(folder / "details.csv", _details(scored))
    write_table(folder / "review.csv", [header, *review])
    return len(review)


def outcome_of(report: Report) -> AnswerOutcome:
    """Returns what pages show of an answer."""
    is_partial = report.ending is Ending.NOT_YET and report.earned
    return AnswerOutcome.PARTIAL if is_partial else AnswerOutcome(report.ending)


def _gradebook(scored: Scored) -> Iterable[Sequence[Cell]]:
    known = sorted({graded.stem for graded, _ in scored if graded.stem})
    most = {stem: max(s.points for graded, s in scored if graded.stem == stem) for stem in known}
    exercises = [f"{stem} (of {most[stem]:g})" for stem in known]
    yield ["learner", "user", *exercises, "total", "late", "to be read", "not graded"]
    for person in sorted({graded.submission.person for graded, _ in scored}):
        own = [pair for pair in scored if pair[0].submission.person == person]
        earned: dict[str, float] = {}
        for graded, score in own:
            if not graded.problem:  # of two notebooks for one exercise the better one counts
                earned[graded.stem] = max(score.earned, earned.get(graded.stem, 0.0))
        unread = (f"{graded.stem}: {name}" for graded, score in own for name in score.to_be_read)
        problems = (f"{g.submission.path.name}: {g.problem}" for g, _ in own if g.problem)
        yield [
            *person,
            *(earned.get(stem, "") for stem in known),
            round(sum(earned.values()), 2),
            sum(graded.submission.is_late for graded, _ in own),
            "; ".join(unread),
            "; ".join(problems),
        ]


def _details(scored: Scored) -> Iterable[Sequence[Cell]]:
    yield [
        *("learner", "user", "exercise", "check", "earned", "points", "status", "mistake"),
        *("late", "comment"),
    ]
    for graded, score in scored:
        start: list[Cell] = [*graded.submission.person, graded.stem]
        late = "late" if graded.submission.is_late else ""
        for report in graded.reports:
            name, comment = report.name, score.comments.get(report.name, "")
            yield [
                *(*start, name, score.by_check[name], report.points),
                *(report.status, report.mistake, late, comment),
            ]
        for reading in score.readings:
            is_unread = reading.status is ReadingStatus.TO_BE_READ
            comments = [f"{row.name}: {own.comment}" for row, own in reading.rows if own.comment]
            earned: Cell = "" if is_unread else reading.earned
            yield [
                *(*start, reading.report.name, earned, reading.report.points),
                *(reading.status, "", late, "; ".join(comments)),
            ]


def _review(scored: Scored, left_out: Sequence[Problem]) -> Iterable[Sequence[Cell]]:
    yield ["learner", "user", "file", "why"]
    for problem in left_out:
        yield ["", "", str(problem.path), f"left out: {problem.says}"]
    for graded, _ in scored:
        handed = graded.submission
        start = [*handed.person, handed.path.name]
        if graded.problem:
            yield [*start, f"not graded: {graded.problem}"]
        if graded.stem and handed.name in stems() and handed.name != graded.stem:
            yield [*start, f"named {handed.name}, and the tasks are those of {graded.stem}"]
        for note in graded.notes:
            yield [*start, note]
        for report in graded.reports:
            if report.message.startswith(COULD_NOT_JUDGE):
                yield [*start, f"`{report.name}` could not be judged, so it has no points"]
            if report.ending is Ending.TIMED_OUT:
                yield [*start, f"`{report.name}` ran out of time twice, the second time alone"]
            if report.corrected:
                ours = " and ".join(f"`{function}`" for function in report.corrected)
                yield [*start, f"`{report.name}` passes with our version of {ours}"]
