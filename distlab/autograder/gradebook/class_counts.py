"""Counts how a class did in each check, and which mistakes were common.

for task in tasks_in(graded):
    print(task.name, task.counts[AnswerOutcome.PASSED], task.held)
for mistake in mistakes_in(graded):
    print(mistake.learners, mistake.says)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from distlab.autograder.gradebook.scores import Graded
from distlab.course.checks.report import WORDINGS, Ending, Report


class AnswerOutcome(StrEnum):
    """What the class page counts: the endings, and those answers that earned some points."""

    PASSED = Ending.PASSED
    PARTIAL = "partial"
    NOT_YET = Ending.NOT_YET
    NOT_STARTED = Ending.NOT_STARTED
    ERROR = Ending.ERROR
    TIMED_OUT = Ending.TIMED_OUT

    @property
    def label(self) -> str:
        """What a person reads."""
        return PARTIAL_LABEL if self is self.PARTIAL else WORDINGS[Ending(self)].label


PARTIAL_LABEL = "partial"


@dataclass(frozen=True, kw_only=True)
class CheckCounts:
    """How the answers to one check went.

    Attributes:
        name: The check's.
        title: What it asks.
        counts: How many answers there are of each outcome.
        held: How many of them a person should look at.
    """

    name: str
    title: str
    counts: Mapping[AnswerOutcome, int]
    held: int


@dataclass(frozen=True, kw_only=True)
class CommonMistake:
    """A mistake, and how many were caught in it.

    Attributes:
        stem: Of the lesson.
        check: The check's name.
        name: The mistake's.
        learners: How many learners.
        says: What to think about again.
    """

    stem: str
    check: str
    name: str
    learners: int
    says: str


def outcome_of(report: Report) -> AnswerOutcome:
    """Returns the outcome of an answer: its ending, or `PARTIAL` if it earned some points."""
    is_partial = report.ending is Ending.NOT_YET and report.earned
    return AnswerOutcome.PARTIAL if is_partial else AnswerOutcome(report.ending)


def tasks_in(graded: Iterable[Graded]) -> list[CheckCounts]:
    """Returns the tasks of one exercise, in their order."""
    counts: dict[str, Counter[AnswerOutcome]] = {}
    titles: dict[str, str] = {}
    held: Counter[str] = Counter()
    for one in graded:
        for report in one.reports:
            counts.setdefault(report.name, Counter())[outcome_of(report)] += 1
            titles[report.name] = report.title
        held.update({reason.check for reason in one.held})
    return [
        CheckCounts(name=name, title=titles[name], counts=counted, held=held[name])
        for name, counted in counts.items()
    ]


def mistakes_in(graded: Sequence[Graded]) -> list[CommonMistake]:
    """Returns the mistakes that learners were caught in, the most common first."""
    caught: dict[tuple[str, str, str], set[tuple[str, str]]] = {}
    says: dict[tuple[str, str, str], str] = {}
    for one in graded:
        for report in one.reports:
            if report.mistake:
                key = (one.stem, report.name, report.mistake)
                person = (one.submission.learner, one.submission.user)
                caught.setdefault(key, set()).add(person)
                says[key] = report.mistake_says
    return [
        CommonMistake(
            stem=key[0], check=key[1], name=key[2], learners=len(caught[key]), says=says[key]
        )
        for key in sorted(caught, key=lambda key: (-len(caught[key]), key))
    ]
