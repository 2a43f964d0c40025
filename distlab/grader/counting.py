"""Counts over a class: how each task went, and in which mistakes learners were caught.

for task in tasks_in(graded):
    print(task.name, task.counts["passed"], task.held)
for mistake in mistakes_in(graded):
    print(mistake.learners, mistake.says)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from distlab.grader.scoring import Graded
from distlab.grading.report import Report, Status

PARTIAL = "partial"
OUTCOMES: tuple[str, ...] = ("passed", PARTIAL, *(s for s in get_args(Status) if s != "passed"))


@dataclass(frozen=True, kw_only=True)
class Task:
    """How the answers to one check went.

    Attributes:
        name: The check's.
        title: What it asks.
        counts: How many answers there are of each outcome.
        held: How many of them a person should look at.
    """

    name: str
    title: str
    counts: Mapping[str, int]
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


def outcome_of(report: Report) -> str:
    """Returns the outcome of an answer: its status, or "partial" where that left some points."""
    return PARTIAL if report.status == "not yet" and report.earned else report.status


def tasks_in(graded: Iterable[Graded]) -> list[Task]:
    """Returns the tasks of one exercise, in their order.

    Args:
        graded: Notebooks of that exercise.
    """
    counts: dict[str, Counter[str]] = {}
    titles: dict[str, str] = {}
    held: Counter[str] = Counter()
    for one in graded:
        for report in one.reports:
            counts.setdefault(report.name, Counter())[outcome_of(report)] += 1
            titles[report.name] = report.title
        held.update({reason.check for reason in one.held})
    return [
        Task(name=name, title=titles[name], counts=counted, held=held[name])
        for name, counted in counts.items()
    ]


def mistakes_in(graded: Sequence[Graded]) -> list[CommonMistake]:
    """Returns the mistakes that learners were caught in, the most common first.

    Args:
        graded: All submissions.
    """
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
