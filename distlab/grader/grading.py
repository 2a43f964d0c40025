"""Grades a folder of submissions: what `distlab grade` does.

    graded = grade("handed-in", "out", GradingOptions(jobs=2))

Each answer runs in processes of its own, within limits; what came of it is judged where no
submission ever is. In `out` there are then the gradebook, a page of feedback for each notebook,
and what a person should look at. Run again, it goes on where it was, and grades what is new.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from distlab import __version__
from distlab.errors import InvalidArgument, did_you_mean
from distlab.grader.feedback import write_feedback
from distlab.grader.marking import GradingOptions, Marker
from distlab.grader.saved import Saved
from distlab.grader.scoring import Graded, check_overrides
from distlab.grader.submissions import Submission, find_submissions
from distlab.grader.tables import write_gradebook

_SEED = "seed.json"


def grade(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: GradingOptions | None = None,
    *,
    say: Callable[[str], None] = lambda text: None,
) -> list[Graded]:
    """Grades the notebooks of a folder, and returns what became of each.

    Args:
        folder: The submissions, as they were downloaded. Nothing is written there.
        out: Where gradebook and feedback go: a new folder, or that of an earlier run.
        options: How to grade.
        say: Takes a line after each notebook.

    Raises:
        InvalidArgument: There are no submissions, `out` holds something else, or an override meets
            nothing.
        UnsupportedEnvironment: This is root, for whom limits do not hold.
    """
    options = options or GradingOptions()
    found = find_submissions(folder)
    chosen = _chosen(found.submissions, options.only)
    place = _place(Path(folder), Path(out))
    seed = _seed(place, options.seed)
    saved = Saved(place / "records", key=_key(options, seed))
    graded: list[Graded] = []
    todo: list[Submission] = []
    for one in found.submissions:
        known = saved.find(one) if one not in chosen or not options.again else None
        if known is not None:
            graded.append(known)
        elif one in chosen:
            todo.append(one)
    say(f"{len(todo)} notebooks to grade, {len(graded)} graded before; seed {seed}")
    for problem in found.problems:
        say(f"left out: {problem.path}: {problem.says}")
    with Marker(options, seed=seed) as marker:
        began = time.monotonic()
        for number, new in enumerate(marker.mark_all(todo), 1):
            saved.keep(new)
            graded.append(new)
            left = (time.monotonic() - began) / number * (len(todo) - number)
            say(f"{number}/{len(todo)}  {_in_words(new)}  {_left(left)}".rstrip())
    graded.sort(key=lambda one: (one.submission.learner, one.submission.user, one.stem))
    check_overrides(options.policy, graded)
    for each in graded:
        write_feedback(each, options.policy, place / "feedback")
    write_gradebook(graded, options.policy, place)
    return graded


def _chosen(submissions: Sequence[Submission], only: Sequence[str]) -> set[Submission]:
    known = {one.learner for one in submissions}
    if unknown := [name for name in only if name not in known]:
        raise InvalidArgument(
            asked=f"grade {unknown[0]!r} only",
            found="no submission of that learner",
            do=did_you_mean(unknown[0], sorted(known)),
        )
    return {one for one in submissions if not only or one.learner in only}


def _place(folder: Path, out: Path) -> Path:
    """Makes `out`, if it is a place where nothing of others can be lost."""
    if out.resolve().is_relative_to(folder.resolve()):
        raise InvalidArgument(
            asked=f"write to {out}",
            found="a place among the submissions",
            do="give a folder outside of them",
        )
    if out.exists() and not out.is_dir():
        raise InvalidArgument(asked=f"write to {out}", found="a file", do="give a folder")
    if out.is_dir() and any(out.iterdir()) and not (out / _SEED).exists():
        raise InvalidArgument(
            asked=f"write to {out}",
            found="a folder with other files",
            do="give a new folder, or that of an earlier run",
        )
    out.mkdir(parents=True, exist_ok=True)
    return out


def _seed(out: Path, asked: int | None) -> int:
    path = out / _SEED
    kept = None
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = int(json.loads(path.read_text())["seed"])
    if kept is not None and asked not in (None, kept):
        raise InvalidArgument(
            asked=f"seed={asked} in {out}",
            found=f"an earlier run with the seed {kept}",
            do="leave the seed out, or give a new folder",
        )
    if kept is not None:
        return kept
    seed = secrets.randbelow(2**31) if asked is None else asked
    path.write_text(json.dumps({"seed": seed}))
    return seed


def _key(options: GradingOptions, seed: int) -> str:
    extra = options.extra_checks.read_bytes() if options.extra_checks is not None else b""
    return json.dumps(
        {
            "seed": seed,
            "distlab": __version__,
            "limits": repr(options.limits),
            "extra checks": hashlib.sha256(extra).hexdigest(),
        }
    )


def _in_words(graded: Graded) -> str:
    handed = graded.submission
    if graded.problem:
        return f"{handed.learner}  {handed.path.name}  not graded: {graded.problem}"
    earned = sum(report.earned for report in graded.reports)
    points = sum(report.points for report in graded.reports)
    held = f", {len(graded.held)} held for review" if graded.held else ""
    return f"{handed.learner}  {graded.stem}  {earned:g} of {points:g}{held}"


def _left(secs: float) -> str:
    if secs < 1:
        return ""
    return f"about {secs:.0f} s left" if secs < 100 else f"about {secs / 60:.0f} min left"
