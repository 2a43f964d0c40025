"""Removes pages of feedback that the last run wrote and this run did not.

    take_away_stale(out, written)        # after the pages of this run are there

If a teacher gives points for a notebook that could not be graded, its page has a different name. A
notebook that was removed from the folder has no page. Files that the grader did not write stay.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection
from pathlib import Path

_LIST = Path("records", "pages.json")


def take_away_stale(out: Path, written: Collection[Path]) -> None:
    """Removes the pages of the last run that are not among those of this one, and notes these."""
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
