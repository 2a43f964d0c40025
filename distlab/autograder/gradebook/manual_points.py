"""Lets a teacher give points for a notebook that the autograder cannot grade.

    graded = given_by_hand(graded, overrides, lessons)

It is not known which exercise such a notebook is. If the teacher gives points for one check, the
notebook counts as that check's exercise with no task answered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from distlab.autograder.gradebook.scores import Graded, OverrideKey
from distlab.autograder.intake.gradable_exercises import Lessons
from distlab.autograder.intake.report_submission import Written
from distlab.course.checks.check import Check
from distlab.course.checks.report import Ending, Report


def given_by_hand(
    graded: Sequence[Graded], overrides: Collection[OverrideKey], lessons: Lessons
) -> list[Graded]:
    """Returns what became of each notebook, those for which a teacher gives points graded too."""
    found = list(graded)
    for learner, user, check in overrides:
        theirs = [
            at
            for at, one in enumerate(found)
            if (one.submission.learner, one.submission.user) == (learner, user)
        ]
        stem = lessons.stem_of(check)
        if not stem or any(found[at].stem == stem for at in theirs):
            continue
        broken = [at for at in theirs if found[at].problem]
        named = [at for at in broken if found[at].submission.name == stem]
        for at in (named or broken)[:1]:
            found[at] = _unanswered(found[at], stem, lessons)
    return found


def _unanswered(one: Graded, stem: str, lessons: Lessons) -> Graded:
    return replace(
        one,
        stem=stem,
        reports=tuple(_reports(check for check, _ in lessons.questions(stem))),
        written=tuple(Written(report=report.name) for report in lessons.reports_of(stem)),
        notes=(f"not graded: {one.problem}; the points are those that the teacher gives",),
        problem="",
    )


def _reports(checks: Iterable[Check]) -> Iterable[Report]:
    for check in checks:
        nothing = Report(
            check.name, check.function, check.title, Ending.NOT_STARTED, 0, check.points
        )
        yield replace(nothing, message="The notebook could not be graded.")
