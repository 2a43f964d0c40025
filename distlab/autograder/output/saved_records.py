"""Saves what was graded, so that an interrupted run resumes where it stopped.

    saved = Saved(out / "records", key="seed 7, distlab 0.1.0")
    saved.find(submission)               # Graded(...), or None: not graded yet, or changed since
    saved.keep(graded)

A record counts for the very bytes of the notebook, and for the seed, the checks and the version of
distlab that it was made with.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from distlab.atomic_write import write_atomically
from distlab.autograder.gradebook.scores import Graded, Held
from distlab.autograder.intake.report_submission import Written
from distlab.autograder.intake.submissions import Submission
from distlab.autograder.isolation.messages import report_of


class Saved:
    """The records of a folder."""

    def __init__(self, folder: Path, *, key: str) -> None:
        self._folder, self._key = folder, key
        folder.mkdir(parents=True, exist_ok=True)

    def find(self, submission: Submission, *, of_any_key: bool = False) -> Graded | None:
        """Returns what became of a submission; None if it must be graded."""
        try:
            told = json.loads(self._path(submission).read_text(encoding="utf-8"))
            if told["key"] != self._key and not of_any_key:
                return None
            return Graded(
                submission=submission,
                stem=told["stem"],
                reports=tuple(report_of(one) for one in told["reports"]),
                written=tuple(_written_of(one) for one in told["written"]),
                code=dict(told["code"]),
                held=tuple(Held(**one) for one in told["held"]),
                notes=tuple(told["notes"]),
                problem=told["problem"],
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, graded: Graded) -> None:
        """Writes a record, whole or not at all."""
        told = dataclasses.asdict(graded) | {"key": self._key}
        del told["submission"]
        path = self._path(graded.submission)
        write_atomically(path, json.dumps(told))

    def _path(self, submission: Submission) -> Path:
        names = f"{submission.learner}\0{submission.user}\0{submission.path.name}\0"
        digest = hashlib.sha256(names.encode(errors="surrogateescape"))
        with contextlib.suppress(OSError):  # a file that cannot be read is reported, not kept
            digest.update(submission.path.read_bytes())
        return self._folder / f"{digest.hexdigest()}.json"


def _written_of(told: dict[str, Any]) -> Written:
    return Written(**{**told, "pictures": tuple(told["pictures"]), "notes": tuple(told["notes"])})
