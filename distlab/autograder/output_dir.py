"""The folder of results: whose it is, what the last run into it was asked and what it wrote.

seed = claim_output_dir(out, folder, submissions, seed=None)
# run.json there says which seed, and whose submissions these results are of
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from distlab.atomic_write import write_atomically
from distlab.autograder.gradebook.scores import Graded
from distlab.autograder.intake.submissions import Submission
from distlab.autograder.intake.written_reports import Written
from distlab.autograder.isolation.question import report_of
from distlab.errors import InvalidArgument

_RUN = "run.json"


def claim_output_dir(
    out: Path, folder: Path, submissions: Sequence[Submission], *, seed: int | None
) -> int:
    """Makes a folder the place of the results, and returns the seed to grade with."""
    before = _earlier(out, folder)
    known = before.get("seed")
    if known is not None and seed not in (None, known):
        raise InvalidArgument(
            asked=f"seed={seed} in {out}",
            found=f"an earlier run with the seed {known}",
            do="leave the seed out, or give a new folder",
        )
    keys = sorted({(*handed.person, handed.name) for handed in submissions})
    here, where = [list(key) for key in keys], str(folder.resolve())
    gone = [key for key in before.get("submissions", []) if key not in here]
    if gone and before.get("folder") != where:
        learner, _, name = gone[0]
        raise InvalidArgument(
            asked=f"write to {out}",
            found=f"the results of {before.get('folder')}; {len(gone)} of its notebooks are not "
            f"in {folder}, such as {name} of {learner}",
            do="give a different folder for these results",
        )
    if known is None:
        known = secrets.randbelow(2**31) if seed is None else seed
    try:
        out.mkdir(parents=True, exist_ok=True)
        part = out / f".{_RUN}.part"
        part.write_text(json.dumps({"seed": known, "folder": where, "submissions": here}))
        part.replace(out / _RUN)
    except OSError as problem:
        raise InvalidArgument(
            asked=f"write to {out}",
            found=f"a folder that cannot be written ({problem.strerror})",
            do="give a folder of your own",
        ) from problem
    return int(known)


def _earlier(out: Path, folder: Path) -> dict[str, Any]:
    """Returns what is known of an earlier run; {} where there was none."""
    asked = f"write to {out}"
    if out.resolve().is_relative_to(folder.resolve()):
        raise InvalidArgument(
            asked=asked,
            found="a folder inside the submissions",
            do="give a folder outside of them",
        )
    if out.exists() and not out.is_dir():
        raise InvalidArgument(asked=asked, found="a file", do="give a folder")
    try:
        told = json.loads((out / _RUN).read_text(encoding="utf-8"))
        if isinstance(told, dict) and isinstance(told["seed"], int):
            return told
    except (OSError, ValueError, KeyError):
        pass
    if out.is_dir() and any(out.iterdir()):
        raise InvalidArgument(
            asked=asked,
            found="a folder with other files",
            do="give a new folder, or that of an earlier run",
        )
    return {}


_FILE = ".last_run.json"


class LastRun:
    """The options of the last run into a folder.

    Nothing is taken from them silently: points that come back unasked, or are gone unasked, are
    both wrong.
    """

    def __init__(self, out: Path) -> None:
        self._path = out / _FILE
        try:
            told = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            told = {}
        self._given = {k: v for k, v in told.items() if v} if isinstance(told, dict) else {}

    def forgotten(self, options: Mapping[str, str]) -> list[str]:
        """Returns a line for each option that the last run had and this one has not."""
        return [
            f"the last run had {name} {value}, and this one has not: its effect is gone from "
            "every table and page; if you want it, give it each time"
            for name, value in self._given.items()
            if name in options and not options[name]
        ]

    def keep(self, options: Mapping[str, str]) -> None:
        """Notes the options of this run."""
        self._path.write_text(json.dumps(dict(options)), encoding="utf-8")


class SavedRecords:
    """The records of a folder, by which a run resumes where one stopped.

    A record counts for the very bytes of the notebook, and for the seed, the checks and the version
    of distlab that it was made with.
    """

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
                reports=tuple(report_of(report) for report in told["reports"]),
                written=tuple(_written_of(report) for report in told["written"]),
                code=dict(told["code"]),
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


_LIST = Path("records", "pages.json")


def delete_stale_pages(out: Path, written: Collection[Path]) -> None:
    """Removes the pages of the last run that are not among those of this one, and notes these.

    Files that the grader did not write stay.
    """
    now = sorted(path.relative_to(out).as_posix() for path in written)
    try:
        before = json.loads((out / _LIST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        before = []
    for name in before if isinstance(before, list) else []:
        path = Path(str(name))
        if name not in now and path.parts[:1] == ("feedback",) and ".." not in path.parts:
            with contextlib.suppress(OSError):
                (out / path).unlink()
                (out / path).parent.rmdir()  # where nothing else is in it
    (out / _LIST).write_text(json.dumps(now), encoding="utf-8")
