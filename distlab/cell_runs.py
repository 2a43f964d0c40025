"""How the cells of a notebook ended that were run since distlab was imported.

    run = last_run(lambda source: "def split" in source)
    run.error                            # "SyntaxError"
    run.has_kept("split", split)         # True: this function is from before that run

Only IPython has cells; elsewhere there are none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class CellRun:
    """One run of a cell.

    Attributes:
        source: The cell's text.
        error: The name of the error that ended it; "" if none did.
        kept: The names that a run that failed did not bind again, with the values' identities.
    """

    source: str
    error: str
    kept: dict[str, int]

    def has_kept(self, name: str, value: object) -> bool:
        """Whether the run failed, and a name has a value from before it."""
        return self.kept.get(name) == id(value)


_runs: list[CellRun] = []
_before: dict[str, int] = {}  # the identity of each value, as the cell began


def last_run(is_meant: Callable[[str], bool]) -> CellRun | None:
    """Returns the last run of a cell, which is known by its text."""
    return next((run for run in reversed(_runs) if is_meant(run.source)), None)


def install() -> None:
    """Notes each run from here on, if this is IPython and they are not noted yet."""
    ipython = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    if shell is not None and _note not in shell.events.callbacks["post_run_cell"]:
        shell.events.register("pre_run_cell", _begin)
        shell.events.register("post_run_cell", _note)


def _names() -> dict[str, int]:
    return {name: id(value) for name, value in sys.modules["IPython"].get_ipython().user_ns.items()}


def _begin(_: Any) -> None:
    _before.clear()
    _before.update(_names())


def _note(result: Any) -> None:
    if result is None or result.info is None:  # it was cancelled
        return
    error = result.error_before_exec or result.error_in_exec
    name = type(error).__name__ if error is not None else ""
    kept = dict(_names().items() & _before.items()) if name else {}
    _runs.append(CellRun(result.info.raw_cell, name, kept))
