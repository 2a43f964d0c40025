"""Adds to a report the help of one step: a question, then a direction, then the way to the answer.

with_help(check, report, tries=2)        # the report, with the direction in `hint`
as_handed_out(report)                    # the report on code that the learner has not changed
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from urllib.parse import quote

from distlab.course.checks.check import Check
from distlab.course.checks.criteria import Compared, Form, Holds
from distlab.course.checks.registry import stem_of, stems
from distlab.course.checks.report import AS_HANDED_OUT, Ending, Report
from distlab.course.checks.run_check import UNREADABLE

_DIRECTION_AT, _ALL_FROM = 2, 3


def with_help(check: Check, report: Report, *, tries: int) -> Report:
    """Returns a report with the help that a failed try gets."""
    if tries >= _ALL_FROM:
        return with_section(check, replace(report, hint=check.hint))
    # The feedback on a mistake asks a question of its own; an error or a wrong form comes first.
    says_enough = report.mistake or report.failure or has_wrong_form(check, report)
    question = "" if says_enough else check.question
    direction = check.direction or check.hint
    return replace(report, question=question, hint=direction if tries >= _DIRECTION_AT else "")


def has_wrong_form(check: Check, report: Report) -> bool:
    """Returns whether an answer's form is wrong, so that nothing of its content was judged."""
    forms = {UNREADABLE}
    for requirement in check.criteria:
        if isinstance(requirement, Form) and isinstance(requirement.criterion, Compared | Holds):
            forms.add(requirement.criterion.label)
    return any(not each.passed and each.label in forms for each in report.criteria)


def with_section(check: Check, report: Report) -> Report:
    """Returns a report that names the section to read again."""
    section = section_to_revisit(check)
    if section is None:
        return replace(report, revisit=check.revisit)
    return replace(report, revisit=section.in_words, revisit_link=section.link)


def as_handed_out(report: Report) -> Report:
    """Returns the report on code that the learner has not changed: it is no answer yet."""
    if report.ending is Ending.NOT_STARTED:
        return report
    return replace(
        report,
        ending=Ending.NOT_STARTED,
        earned=0.0,
        mistake="",
        mistake_says="",
        message=AS_HANDED_OUT,
    )


_WITH_LESSON = re.compile(r'"(?P<heading>.+)" in lesson (?P<number>\d\d)')
# These need no escape in the part of an address behind the #, and stay readable.
_PLAIN = "-_.:,;!?'()*/+=@$&"


@dataclass(frozen=True)
class Section:
    """A section of a lesson.

    Attributes:
        stem: The lesson's, as "01_mirrored_strategy".
        heading: As it is written in the lesson, without its number signs and backticks.
    """

    stem: str
    heading: str

    @property
    def in_words(self) -> str:
        """The section as learners read it."""
        return f'"{self.heading}" in lesson {self.stem[:2]}'

    @property
    def link(self) -> str:
        """A link from an exercise's notebook; JupyterLab names a heading by its text and dashes.

        With "heading=", JupyterLab finds a heading that it has not rendered yet. If the lesson is
        not open, the first click opens it at its top, and the second goes to the section.
        """
        anchor = quote(self.heading.replace(" ", "-"), safe=_PLAIN)
        return f"../notebooks/{self.stem}.ipynb#heading={anchor}"


def section_to_revisit(check: Check) -> Section | None:
    """Returns the section that a check names; None if it is in no lesson of distlab."""
    match = _WITH_LESSON.fullmatch(check.revisit)
    if match is None:
        stem, heading = stem_of(check), check.revisit
    else:
        number = match["number"] + "_"
        stem = next((candidate for candidate in stems() if candidate.startswith(number)), "")
        heading = match["heading"]
    return Section(stem, heading.replace("`", "")) if stem else None
