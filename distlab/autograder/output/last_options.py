"""Reports options that a teacher gave in the last run but not in this run.

    before = LastRun(out)
    before.forgotten({"--late": "0.8", "--overrides": ""})      # lines, said once
    before.keep({"--late": "0.8", "--overrides": ""})

Nothing is taken from the last run silently: points that come back unasked, or are gone unasked,
are both wrong.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

_FILE = ".last_run.json"


class LastRun:
    """The options of the last run into a folder."""

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
