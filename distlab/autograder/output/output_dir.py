"""Prepares the folder for results, and refuses a folder with other people's files.

seed = take_place(out, folder, submissions, seed=None)
# run.json there says which seed, and whose submissions these results are of
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distlab.autograder.intake.submissions import Submission
from distlab.errors import InvalidArgument

_RUN = "run.json"


def take_place(
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
    keys = sorted({(one.learner, one.user, one.name) for one in submissions})
    here, where = [list(key) for key in keys], str(folder.resolve())
    gone = [one for one in before.get("submissions", []) if one not in here]
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
