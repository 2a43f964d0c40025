"""Why the supervisor ended an answer: a code for programs, and the sentence that a person reads.

    stop = Stop(StopReason.MEMORY, "900")
    str(stop)                                       # "it used more than 900 MiB of memory"

Codes are compared and sent between processes. The sentences appear in `SENTENCES` only, and you can
change them: nothing depends on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from distlab.course.results.failures import Failure, FailureKind


class StopReason(StrEnum):
    """Why an answer was ended."""

    TIME = "time"
    MEMORY = "memory"
    PROCESSES = "processes"
    PRINTED = "printed"
    FILES = "files"
    WRITTEN = "written"
    TOO_LARGE = "too_large"
    NO_RECORD = "no_record"
    EXITED = "exited"
    SIGNALLED = "signalled"
    NOTHING_SENT = "nothing_sent"
    UNWATCHED = "unwatched"


# {} is the detail of the stop, such as the limit.
SENTENCES: dict[StopReason, str] = {
    StopReason.TIME: "it was still running after {} seconds",
    StopReason.MEMORY: "it used more than {} MiB of memory",
    StopReason.PROCESSES: "it started more than {} processes",
    StopReason.PRINTED: "it printed more than {} characters",
    StopReason.FILES: "it wrote more than {} files",
    StopReason.WRITTEN: "it wrote more than {} MB",
    StopReason.TOO_LARGE: "its answer is too large to be sent",
    StopReason.NO_RECORD: "it sent something that is not an answer",
    StopReason.EXITED: "its process ended by itself, with exit code {}",
    StopReason.SIGNALLED: "its process was ended by {}",
    StopReason.NOTHING_SENT: "it sent no answer",
    StopReason.UNWATCHED: "the process that watches over it was ended",
}
STOPPED = "Stopped: {}"
TIMED_OUT = "It was stopped after {} seconds."


@dataclass(frozen=True)
class Stop:
    """Why an answer was ended."""

    reason: StopReason
    detail: str = ""

    def __str__(self) -> str:
        return SENTENCES[self.reason].format(self.detail)

    def failure(self, lines: tuple[str, ...] = ()) -> Failure:
        """Returns the failure of the call that was ended."""
        if self.reason is StopReason.TIME:
            return Failure(FailureKind.TIMED_OUT, TIMED_OUT.format(self.detail), lines)
        return Failure(FailureKind.ERROR, STOPPED.format(self))

    def told(self) -> dict[str, str]:
        """Returns what a message between processes holds."""
        return {"reason": self.reason.value, "detail": self.detail}


def stop_of(told: Any) -> Stop | None:
    """Returns the stop that a message holds; None if the answer was not ended."""
    return None if told is None else Stop(StopReason(told["reason"]), str(told["detail"]))
