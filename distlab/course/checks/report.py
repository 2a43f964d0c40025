"""A check's `Report` on an answer, shown as text or in a notebook.

Its text has no times, addresses or colours, because notebooks store it and the regression compares
it byte for byte. The names of mistakes are codes for programs, and are not shown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from html import escape

from distlab.course.checks.difference import mark_difference
from distlab.course.checks.verdict import Criterion
from distlab.course.results.failures import Failure, FailureKind


class Ending(StrEnum):
    """How the check of an answer ended. Gradebooks store the codes, so a code never changes."""

    PASSED = "passed"
    NOT_YET = "not_yet"
    NOT_STARTED = "not_started"
    ERROR = "error"
    TIMED_OUT = "timed_out"
    INTERRUPTED = "interrupted"

    @property
    def is_answered(self) -> bool:
        """Whether the check has judged an answer of the learner's: a try, that has its points."""
        return self not in (Ending.NOT_STARTED, Ending.INTERRUPTED)


Status = str  # the label of an ending, as `Report.status` gives it

# What stands before each part of a report.
TITLES = {
    "mistake": "What this looks like",
    "printed": "Your code printed",
    "question": "A question",
    "hint": "Hint",
    "revisit": "Read again",
}
NOT_MET = "not yet:"  # before a criterion that is not met
# Mid-tones that can be seen on a light and on a dark page; the text keeps the page's colour.
_COLOURS: dict[Ending, str] = {
    Ending.PASSED: "#2e9e4f",
    Ending.NOT_YET: "#c77700",
    Ending.NOT_STARTED: "#808080",
    Ending.ERROR: "#d1495b",
    Ending.TIMED_OUT: "#d1495b",
    Ending.INTERRUPTED: "#808080",
}


@dataclass(frozen=True, repr=False)
class Report:
    """The feedback on one answer.

    Args:
        name: The check's name.
        function: The learner's function.
        title: What was asked.
        ending: How the check of the answer ended.
        earned: Points earned, partial credit included.
        points: Points that can be earned.
        criteria: What was looked at.
        mistake: The code of the mistake that the answer looks like, or "".
        mistake_says: What that mistake's feedback says.
        failure: Why there was nothing to judge, if so.
        message: What to do first, if anything.
        question: What to think about, if no mistake is named.
        hint: A direction, or the way to the answer.
        revisit: The section of the lesson to read again.
        revisit_link: Where that section is, from an exercise's notebook.
        printed: What the function printed in the draw that failed.
        seed: The draw that failed first, for `check(name, seed=...)`.
        corrected: Functions of earlier tasks that were wrong, so that ours replaced them.
        left_out: Cells that a grader ran before, but not to their end, and why.
    """

    name: str
    function: str
    title: str
    ending: Ending
    earned: float
    points: float
    criteria: tuple[Criterion, ...] = ()
    mistake: str = ""
    mistake_says: str = ""
    failure: Failure | None = None
    message: str = ""
    question: str = ""
    hint: str = ""
    revisit: str = ""
    revisit_link: str = ""
    printed: str = ""
    seed: int | None = None
    corrected: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether all points are earned."""
        return self.ending is Ending.PASSED

    @property
    def status(self) -> Status:
        """The words for the ending, such as "not yet"; programs compare `ending`."""
        ours = f" with our {' and '.join(self.corrected)}" if self.corrected else ""
        return WORDINGS[self.ending].label + ours

    def after(self, sentence: str) -> Report:
        """Returns the same report with a sentence before its first one."""
        return replace(self, message=f"{sentence} {self._opening()}")

    def __repr__(self) -> str:
        lines = [self._heading(), "  " + self._opening()]
        lines += [f"    {line}" for line in self._failure_lines()]
        for criterion in self.criteria:
            mark = "[x]" if criterion.passed else f"[ ] {NOT_MET}"
            lines.append(f"  {mark} {criterion.label}")
            lines += [f"        {line}" for line in _details(criterion)]
        for part, text in self._notes():
            first, *rest = text.splitlines()
            lines.append(f"  {TITLES[part]}: {first}")
            lines += [f"    {line}" for line in rest]
        return _writable("\n".join(lines))

    def _repr_html_(self) -> str:
        return self.as_html()

    def as_html(self, *, revisit_link: str | None = None) -> str:
        """Returns the report as HTML in which every text is escaped.

        Args:
            revisit_link: Where the section to read again is, if not where `revisit_link` says.
        """
        colour = _COLOURS[self.ending]
        parts = [f"<b>{escape(self._heading())}</b><br>{with_code(self._opening())}"]
        if self.failure is not None:
            parts.append(_block(self._failure_lines()))
        parts += [mark_difference(_row(criterion)) for criterion in self.criteria]
        for part, text in self._notes():
            shown = _block(text.splitlines()) if part == "printed" else with_code(text)
            link = self.revisit_link if revisit_link is None else revisit_link
            if part == "revisit" and link:
                shown = f'<a href="{escape(link)}">{escape(text)}</a>'
            parts.append(f"<div><b>{escape(TITLES[part])}:</b> {shown}</div>")
        style = f"border-left:4px solid {colour};padding:0.2em 0.8em"
        return _writable(f'<div style="{style}">' + "\n".join(parts) + "</div>")

    def _heading(self) -> str:
        counted = f"{self.earned:g} of {self.points:g} point{'' if self.points == 1 else 's'}"
        return f"{self.name}: {self.status} ({counted})"

    def _opening(self) -> str:
        if self.message:
            return self.message
        opening = WORDINGS[self.ending].opening
        if self.corrected:
            ours = " and ".join(f"`{function}`" for function in self.corrected)
            return CORRECTED.format(ours=ours)
        if self.failure is None:
            return opening
        return FAILURE_OPENINGS[self.failure.kind].format(
            opening=opening,
            function=self.function,
            error=self.failure.error,
            where=AT_THIS_LINE if self.failure.lines else "",
        )

    def _failure_lines(self) -> list[str]:
        if self.failure is None or self.failure.kind is FailureKind.NOT_STARTED:
            return []
        if self.failure.kind in (FailureKind.TIMED_OUT, FailureKind.INTERRUPTED):
            return list(self.failure.lines)
        return [*self.failure.lines, *self.failure.error.splitlines()]

    def _notes(self) -> list[tuple[str, str]]:
        notes = {
            "mistake": self.mistake_says,
            "printed": self.printed.strip(),
            "question": self.question,
            "hint": self.hint,
            "revisit": self.revisit,
        }
        return [(part, text) for part, text in notes.items() if text]


def _row(criterion: Criterion) -> str:
    mark = "&#10003;" if criterion.passed else f"<b>{NOT_MET}</b>"
    details = _details(criterion)
    shown = f"<div>{mark} {with_code(criterion.label)}</div>"
    return shown + (_block(details) if details else "")


def _details(criterion: Criterion) -> list[str]:
    if criterion.passed:
        return []
    lines = [criterion.message] if criterion.message else []
    if criterion.yours or criterion.expected:
        lines.append(f"yours:    {criterion.yours}")
    if criterion.expected:
        lines.append(f"expected: {criterion.expected}")
    return lines


def with_code(text: str) -> str:
    """Returns the HTML of a text; what is between backticks is code."""
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", escape(text))


def _block(lines: list[str]) -> str:
    text = escape("\n".join(lines))
    return (
        '<pre style="background:transparent;color:inherit;font-family:monospace;margin:0.2em 1.5em;'
        f'white-space:pre-wrap">{text}</pre>'
    )


def _writable(text: str) -> str:
    """Text that every notebook file can hold: a lone surrogate is no UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True)
class Wording:
    """The words for one ending.

    Attributes:
        label: In the heading of a report, in tables and on pages.
        opening: The first sentence of a report.
    """

    label: str
    opening: str


WORDINGS: dict[Ending, Wording] = {
    Ending.PASSED: Wording("passed", "Well done."),
    Ending.NOT_YET: Wording("not yet", "Each row says what is right, and what is not yet."),
    Ending.NOT_STARTED: Wording("not started", "Ready when you are."),
    Ending.ERROR: Wording("error in your code", "Your code stopped with an error."),
    Ending.TIMED_OUT: Wording("ran out of time", "Your code was still running at the time limit."),
    Ending.INTERRUPTED: Wording("interrupted", "Your code was still running."),
}

# The first sentence of a report on code that failed; {opening} is the sentence of its ending.
FAILURE_OPENINGS: dict[FailureKind, str] = {
    FailureKind.NOT_STARTED: "{opening} Write `{function}`, then check again.",
    FailureKind.ERROR: "{opening}",
    FailureKind.TIMED_OUT: "{opening} {error}{where}",
    FailureKind.INTERRUPTED: "{opening} {error}{where}",
    FailureKind.UNUSABLE: "The check cannot use what `{function}` takes or returns.",
}
AT_THIS_LINE = " It was at this line:"
# The first sentence of a report on code that the learner has not changed: on a page, in a notebook.
UNCHANGED = "This is still the code that you were given."
# The first sentence of a report on code that is right, and calls a function that is not yet.
CORRECTED = "Well done: this is right with our version of {ours} in place of yours."
# If there is no function to check, or only one from before the last run of its cell.
UNDEFINED = (
    "There is no function `{function}` here yet: run the cell that defines it, then check again."
)
OLDER = (
    "Your last run of the cell with `{function}` ended in {error}, so this judges the `{function}` "
    "from before it."
)
AS_HANDED_OUT = f"{UNCHANGED} Change it, then check again."

ENDING_OF_FAILURE: dict[FailureKind, Ending] = {
    FailureKind.NOT_STARTED: Ending.NOT_STARTED,
    FailureKind.ERROR: Ending.ERROR,
    FailureKind.TIMED_OUT: Ending.TIMED_OUT,
    FailureKind.INTERRUPTED: Ending.INTERRUPTED,
    FailureKind.UNUSABLE: Ending.NOT_YET,
}
