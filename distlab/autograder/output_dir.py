"""The folder of results: whose it is, what the last run left there, and what was graded before.

    out = claim_output_dir(path, folder, submissions, seed=None)
    out.seed                                   # of the first run into it
    out.find(submission, key=key)              # what became of it; None if it must be graded
    out.keep(graded, key=key)
    out.delete_stale_pages(written)

`run.json` there says which seed, whose submissions, which options and which pages are of the last
run. Nothing is taken from its options silently: points that come back unasked, or are gone
unasked, are both wrong.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import secrets
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from distlab.atomic_write import write_atomically
from distlab.autograder.gradebook.scores import Graded
from distlab.autograder.intake.submissions import Submission
from distlab.autograder.intake.written_reports import Written
from distlab.autograder.isolation.question import report_of
from distlab.errors import InvalidArgument

_RUN, _UNDER_WAY = "run.json", "under_way.json"


class OutputDir:
    """A folder that holds the results of one folder of submissions."""

    def __init__(self, path: Path, last_run: Mapping[str, Any]) -> None:
        self._path, self._run = path, dict(last_run)
        self._under_way, self._lock = list[str](), threading.Lock()

    @property
    def seed(self) -> int:
        """The seed that all runs into this folder grade with."""
        return int(self._run["seed"])

    def note_options(self, options: Mapping[str, str]) -> list[str]:
        """Notes the options of this run; returns a line for each that only the last run had."""
        lines = [
            f"the last run had {name} {value}, and this one has not: its effect is gone from "
            "every table and page; if you want it, give it each time"
            for name, value in self._run.get("options", {}).items()
            if value and not options.get(name)
        ]
        self._write(options=dict(options))
        return lines

    def delete_stale_pages(self, written: Collection[Path]) -> None:
        """Removes the pages of the last run that are not among those of this one.

        Files that the grader did not write stay.
        """
        now = sorted(path.relative_to(self._path).as_posix() for path in written)
        for name in self._run.get("pages", []):
            path = Path(str(name))
            if name not in now and path.parts[:1] == ("feedback",) and ".." not in path.parts:
                with contextlib.suppress(OSError):
                    (self._path / path).unlink()
                    (self._path / path).parent.rmdir()  # where nothing else is in it
        self._write(pages=now)

    def left_under_way(self) -> list[str]:
        """Returns the notebooks that the last run had begun and not ended: it was killed there."""
        try:
            return [str(name) for name in json.loads((self._path / _UNDER_WAY).read_bytes())]
        except (OSError, ValueError, TypeError):
            return []

    def begin(self, submission: Submission) -> None:
        """Notes that a notebook is graded now."""
        with self._lock:
            self._under_way.append(_name_of(submission))
            write_atomically(self._path / _UNDER_WAY, json.dumps(self._under_way))

    def find(self, submission: Submission, *, key: str | None) -> Graded | None:
        """Returns what became of a submission; None if it must be graded.

        A record counts for the very bytes of the notebook, and for one key of what it was made
        with; None takes any.
        """
        try:
            record = json.loads(self._record(submission).read_text(encoding="utf-8"))
            if key not in (None, record.pop("key")):
                return None
            record["reports"] = tuple(map(report_of, record["reports"]))
            record["written"] = tuple(map(_written_of, record["written"]))
            return Graded(submission=submission, **record | {"notes": tuple(record["notes"])})
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, graded: Graded, *, key: str) -> None:
        """Writes a record, whole or not at all; none of what is to be graded again."""
        if graded.is_final:
            record = dataclasses.asdict(graded) | {"key": key}
            del record["submission"]
            write_atomically(self._record(graded.submission), json.dumps(record))
        with self._lock:
            name = _name_of(graded.submission)
            self._under_way = [other for other in self._under_way if other != name]
            write_atomically(self._path / _UNDER_WAY, json.dumps(self._under_way))

    def _record(self, submission: Submission) -> Path:
        names = "\0".join((*submission.person, submission.path.name, ""))
        digest = hashlib.sha256(names.encode(errors="surrogateescape"))
        with contextlib.suppress(OSError):  # a file that cannot be read is reported, not kept
            digest.update(submission.path.read_bytes())
        return self._path / "records" / f"{digest.hexdigest()}.json"

    def _write(self, **more: Any) -> None:
        self._run |= more
        write_atomically(self._path / _RUN, json.dumps(self._run))


def claim_output_dir(
    out: Path, folder: Path, submissions: Sequence[Submission], *, seed: int | None
) -> OutputDir:
    """Makes a folder the place of the results."""

    def refuse(asked: str, found: str, do: str) -> InvalidArgument:
        return InvalidArgument(asked=asked, found=found, do=do)

    asked, last_run = f"write to {out}", _last_run(out, folder)
    known = last_run.get("seed")
    if known is not None and seed not in (None, known):
        raise refuse(
            f"seed={seed} in {out}",
            f"an earlier run with the seed {known}",
            "leave the seed out, or give a new folder",
        )
    keys = sorted({(*handed.person, handed.name) for handed in submissions})
    own_keys, source = [list(key) for key in keys], str(folder.resolve())
    gone = [key for key in last_run.get("submissions", []) if key not in own_keys]
    if gone and last_run.get("folder") != source:
        learner, _, name = gone[0]
        raise refuse(
            asked,
            f"the results of {last_run.get('folder')}; {len(gone)} of its notebooks are not in "
            f"{folder}, such as {name} of {learner}",
            "give a different folder for these results",
        )
    if known is None:
        known = secrets.randbelow(2**31) if seed is None else seed
    claimed = OutputDir(out, last_run)
    try:
        (out / "records").mkdir(parents=True, exist_ok=True)
        claimed._write(seed=known, folder=source, submissions=own_keys)
    except OSError as problem:
        found = f"a folder that cannot be written ({problem.strerror})"
        raise refuse(asked, found, "give a folder of your own") from problem
    return claimed


def _last_run(out: Path, folder: Path) -> dict[str, Any]:
    """Returns what is known of an earlier run; {} where there was none."""
    refusals = {
        "a folder inside the submissions": (
            out.resolve().is_relative_to(folder.resolve()),
            "choose a folder outside of them",
        ),
        "a file": (out.exists() and not out.is_dir(), "give a folder"),
    }
    for found, (is_so, do) in refusals.items():
        if is_so:
            raise InvalidArgument(asked=f"write to {out}", found=found, do=do)
    try:
        last_run = json.loads((out / _RUN).read_text(encoding="utf-8"))
        if isinstance(last_run, dict) and isinstance(last_run["seed"], int):
            return last_run
    except (OSError, ValueError, KeyError):
        pass
    if out.is_dir() and any(out.iterdir()):
        raise InvalidArgument(
            asked=f"write to {out}",
            found="a folder with other files",
            do="choose a new folder, or that of an earlier run",
        )
    return {}


def _name_of(submission: Submission) -> str:
    return f"{submission.path.name} of {submission.learner}"


def _written_of(record: dict[str, Any]) -> Written:
    return Written(
        **{**record, "pictures": tuple(record["pictures"]), "notes": tuple(record["notes"])}
    )
