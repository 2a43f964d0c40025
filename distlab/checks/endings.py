"""How the check of an answer ended: a code for programs, and the words that a person reads.

    report.ending                        # Ending.NOT_YET, which is stored as "not_yet"
    WORDINGS[report.ending].label        # "not yet"

Codes are stored and compared. The words appear in `WORDINGS` and `FAILURE_OPENINGS` only, and you
can change them: nothing depends on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from distlab.results.failures import FailureKind


class Ending(StrEnum):
    """How the check of an answer ended. The codes are stored, so a code never changes."""

    PASSED = "passed"
    NOT_YET = "not_yet"
    NOT_STARTED = "not_started"
    ERROR = "error"
    TIMED_OUT = "timed_out"


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
}

# The first sentence of a report on code that failed; {opening} is the sentence of its ending.
FAILURE_OPENINGS: dict[FailureKind, str] = {
    FailureKind.NOT_STARTED: "{opening} Write `{function}`, then check again.",
    FailureKind.ERROR: "{opening}",
    FailureKind.TIMED_OUT: "{opening} {error}{where}",
    FailureKind.UNUSABLE: "The check cannot use what `{function}` takes or returns.",
}
AT_THIS_LINE = " It was at this line:"
# The first sentence of a report on code that the learner has not changed: on a page, in a notebook.
UNCHANGED = "This is still the code that you were given."
AS_HANDED_OUT = f"{UNCHANGED} Change it, then check again."

ENDING_OF_FAILURE: dict[FailureKind, Ending] = {
    FailureKind.NOT_STARTED: Ending.NOT_STARTED,
    FailureKind.ERROR: Ending.ERROR,
    FailureKind.TIMED_OUT: Ending.TIMED_OUT,
    FailureKind.UNUSABLE: Ending.NOT_YET,
}
