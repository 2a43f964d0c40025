"""Packs what an answer sends to the process that judges it: two lengths, JSON, raw bytes.

    os.write(fd, pack(*record_of(called)))
    for head, payload in unpack(data):
        called_of(head, payload)

Nothing is unpickled, and `called_of` takes no more from a record than a `Called` may hold.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Iterator
from typing import Any

from distlab.course.checks.run_check import Called
from distlab.course.results.failures import Failure, FailureKind

Head = dict[str, Any]

_LENGTHS = struct.Struct("!IQ")
_MOST_LINES, _LONGEST, _MOST_PRINTED, _MOST_CELLS = 4, 600, 1000, 50


class BadRecord(ValueError):
    """Bytes that are no record."""


def pack(head: Head, payload: bytes = b"") -> bytes:
    """Returns a record as bytes."""
    text = json.dumps(head).encode()
    return _LENGTHS.pack(len(text), len(payload)) + text + payload


def unpack(data: bytes) -> Iterator[tuple[Head, bytes]]:
    """Yields the records in some bytes, and raises where the next one is none."""
    while data:
        if len(data) < _LENGTHS.size:
            raise BadRecord("cut short")
        head, payload = _LENGTHS.unpack_from(data)
        middle, end = _LENGTHS.size + head, _LENGTHS.size + head + payload
        if len(data) < end:
            raise BadRecord("cut short")
        try:
            content = json.loads(data[_LENGTHS.size : middle])
        except (ValueError, RecursionError) as error:
            raise BadRecord("no JSON") from error
        if not isinstance(content, dict):
            raise BadRecord("no object")
        yield content, data[middle:end]
        data = data[end:]


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


def left_out_of(head: Head) -> tuple[str, ...]:
    """Returns the cells that a record says were left out."""
    texts = head["left_out"]
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise BadRecord("no texts")
    return tuple(text[:_LONGEST] for text in texts[:_MOST_CELLS])


def _failure(kind: str, error: str, lines: list[str]) -> Failure:
    if not all(isinstance(text, str) for text in (error, *lines)):
        raise TypeError("no failure")
    shown = tuple(line[:_LONGEST] for line in lines[-_MOST_LINES:])
    return Failure(FailureKind(kind), error[:_LONGEST], shown)
