"""Why an answer was stopped, by the grader or in a notebook, and after how many seconds.

Stop(StopReason.TIME, f"{ANSWER_SECS:g}").failure(lines)      # for a report
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from distlab.course.results.failures import Failure, FailureKind

ANSWER_SECS = 60.0  # for all calls of one answer together


class StopReason(StrEnum):
    """Why an answer was ended. Codes are compared; the sentences are in `SENTENCES` only."""

    TIME = "time"
    INTERRUPT = "interrupt"
    MEMORY = "memory"
    PROCESSES = "processes"
    PRINTED = "printed"
    NO_RECORD = "no_record"
    EXITED = "exited"
    SIGNALLED = "signalled"


# {} is the detail of the stop, such as the limit.
SENTENCES: dict[StopReason, str] = {
    StopReason.TIME: "It was stopped after {} seconds.",
    StopReason.INTERRUPT: "You stopped it.",
    StopReason.MEMORY: "Stopped: it used more than {} MiB of memory",
    StopReason.PROCESSES: "Stopped: it started more than {} processes",
    StopReason.PRINTED: "Stopped: it printed more than {} characters",
    StopReason.NO_RECORD: "Stopped: it sent something that is not an answer",
    StopReason.EXITED: "Stopped: its process ended by itself, with exit code {}",
    StopReason.SIGNALLED: "Stopped: its process was ended by {}",
}
# Stops that say nothing of an error in the code.
_KINDS = {
    StopReason.TIME: FailureKind.TIMED_OUT,
    StopReason.INTERRUPT: FailureKind.INTERRUPTED,
}


@dataclass(frozen=True)
class Stop:
    """Why an answer was ended."""

    reason: StopReason
    detail: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", StopReason(self.reason))  # as JSON has it

    def failure(self, lines: tuple[str, ...] = ()) -> Failure:
        """Returns the failure of the call that was ended."""
        kind = _KINDS.get(self.reason, FailureKind.ERROR)
        return Failure(kind, SENTENCES[self.reason].format(self.detail), lines)
