"""Packs the messages between the autograder's processes: two lengths, JSON, raw bytes.

    os.write(fd, pack({"done": True}))
    records = Records(); records.feed(os.read(fd, 65536)); records.pop()      # (head, payload)

Nothing is unpickled, and nothing of what is read is believed: `called_of` takes no more from a
record than a `Called` may hold.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from typing import Any

from distlab.course.checks.check import Criterion
from distlab.course.checks.report import Ending, Report
from distlab.course.checks.run_check import Called
from distlab.course.results.failures import Failure, FailureKind

Head = dict[str, Any]

LARGEST_BYTES = 64 * 2**20
_LARGEST_HEAD_BYTES = 2**20
_LENGTHS = struct.Struct("!IQ")
_MOST_LINES, _LONGEST, _MOST_PRINTED = 4, 600, 1000


class BadRecord(ValueError):
    """Bytes that are no record, or too large a one."""


class TooLarge(BadRecord):
    """A record that is larger than what is taken."""


def pack(head: Head, payload: bytes = b"") -> bytes:
    """Returns a record as bytes."""
    text = json.dumps(head, default=_plain_number).encode()
    return _LENGTHS.pack(len(text), len(payload)) + text + payload


def _plain_number(value: Any) -> Any:
    return value.item()  # a number of numpy's


class Records:
    """What has arrived, whole records or not."""

    def __init__(self, *, largest_bytes: int = LARGEST_BYTES) -> None:
        self._bytes = bytearray()
        self._largest = largest_bytes

    def feed(self, data: bytes) -> None:
        """Adds bytes that have arrived."""
        self._bytes += data

    def pop(self) -> tuple[Head, bytes] | None:
        """Returns the next record, or None while there is no whole one."""
        if len(self._bytes) < _LENGTHS.size:
            return None
        head, payload = _LENGTHS.unpack_from(self._bytes)
        if head > _LARGEST_HEAD_BYTES or payload > self._largest:
            raise TooLarge("too large")
        middle = _LENGTHS.size + head
        end = middle + payload
        if len(self._bytes) < end:
            return None
        text, held = bytes(self._bytes[_LENGTHS.size : middle]), bytes(self._bytes[middle:end])
        del self._bytes[:end]
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadRecord("no JSON") from error
        if not isinstance(found, dict):
            raise BadRecord("no object")
        return found, held


def head_of(called: Called) -> Head:
    """Returns what a record says of a call, its payload left out."""
    failure = None if called.failure is None else dataclasses.asdict(called.failure)
    return {"seed": called.seed, "failure": failure, "printed": called.printed}


def called_of(head: Any, payload: bytes) -> Called:
    """Returns the call that a record describes."""
    try:
        failure = None if head["failure"] is None else _failure(head["failure"])
        seed, printed = head["seed"], head["printed"]
    except (TypeError, KeyError) as error:
        raise BadRecord("no call") from error
    if type(seed) is not int or not isinstance(printed, str):
        raise BadRecord("no call")
    return Called(seed, b"" if failure else payload, failure, printed[:_MOST_PRINTED])


def _failure(told: Any) -> Failure:
    error, lines = told["error"], told["lines"]
    try:
        kind = FailureKind(told["kind"])
    except ValueError as problem:
        raise BadRecord("no failure") from problem
    if not all(isinstance(text, str) for text in (error, *lines)):
        raise BadRecord("no failure")
    return Failure(kind, error[:_LONGEST], tuple(line[:_LONGEST] for line in lines[-_MOST_LINES:]))


def report_of(told: dict[str, Any]) -> Report:
    """Returns a report as `dataclasses.asdict` told it."""
    parts = dict(told)
    parts["ending"] = Ending(parts["ending"])
    if (failure := parts["failure"]) is not None:
        kind = FailureKind(failure["kind"])
        parts["failure"] = Failure(kind, failure["error"], tuple(failure["lines"]))
    parts["criteria"] = tuple(Criterion(**criterion) for criterion in parts["criteria"])
    return Report(**parts)
