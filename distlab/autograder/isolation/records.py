"""Packs what an answer sends to the process that judges it: two lengths, JSON, raw bytes.

    os.write(fd, pack(*record_of(called)))
    records = Records(); records.feed(os.read(fd, 65536)); records.pop()      # (head, payload)

Nothing is unpickled, and `called_of` takes no more from a record than a `Called` may hold.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from typing import Any

from distlab.checks.run_check import Called
from distlab.results.failures import Failure, FailureKind

Head = dict[str, Any]

_LARGEST_BYTES, _LARGEST_HEAD_BYTES = 64 * 2**20, 2**20
_LENGTHS = struct.Struct("!IQ")
_MOST_LINES, _LONGEST, _MOST_PRINTED = 4, 600, 1000


class BadRecord(ValueError):
    """Bytes that are no record."""


class TooLarge(BadRecord):
    """A record that is larger than what is taken."""


def pack(head: Head, payload: bytes = b"") -> bytes:
    """Returns a record as bytes."""
    text = json.dumps(head).encode()
    return _LENGTHS.pack(len(text), len(payload)) + text + payload


class Records:
    """What has arrived, whole records or not."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        """Adds bytes that have arrived."""
        self._bytes += data

    def pop(self) -> tuple[Head, bytes] | None:
        """Returns the next record, or None while there is no whole one."""
        if len(self._bytes) < _LENGTHS.size:
            return None
        head, payload = _LENGTHS.unpack_from(self._bytes)
        if head > _LARGEST_HEAD_BYTES or payload > _LARGEST_BYTES:
            raise TooLarge("too large")
        middle = _LENGTHS.size + head
        end = middle + payload
        if len(self._bytes) < end:
            return None
        text, held = bytes(self._bytes[_LENGTHS.size : middle]), bytes(self._bytes[middle:end])
        del self._bytes[:end]
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadRecord("no JSON") from error
        if not isinstance(content, dict):
            raise BadRecord("no object")
        return content, held


def record_of(called: Called) -> tuple[Head, bytes]:
    """Returns a call as the two parts of a record."""
    failure = None if called.failure is None else dataclasses.asdict(called.failure)
    head = {"seed": called.seed, "failure": failure, "printed": called.printed[:_MOST_PRINTED]}
    return head, called.payload


def called_of(head: Head, payload: bytes) -> Called:
    """Returns the call that a record describes."""
    try:
        seed, printed, failure = head["seed"], head["printed"], head["failure"]
        if failure is not None:
            failure = _failure(failure["kind"], failure["error"], failure["lines"])
        if type(seed) is not int or not isinstance(printed, str):
            raise TypeError("no call")
    except (TypeError, KeyError, ValueError) as error:
        raise BadRecord("no call") from error
    return Called(seed, b"" if failure else payload, failure, printed[:_MOST_PRINTED])


def _failure(kind: str, error: str, lines: list[str]) -> Failure:
    if not all(isinstance(text, str) for text in (error, *lines)):
        raise TypeError("no failure")
    shown = tuple(line[:_LONGEST] for line in lines[-_MOST_LINES:])
    return Failure(FailureKind(kind), error[:_LONGEST], shown)
