"""A line below a cell, or in a terminal, that says what a check is still running.

    status = StatusLine()
    status.show_running("line 3 in split: while True:", 60.0)
    status.clear()

There is one only where a person can read it: no build and no test stores it.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from distlab.course.checks.report import with_code
from distlab.course.predictions.frontend import can_answer

_RUNNING = "Still running{where} (it's stopped after {secs:g} seconds; to stop it now, {interrupt})"
_STUCK = (
    "Still running{where} (it can't be stopped, because it waits for code that never returns to "
    "Python: {restart})"
)
_IN_NOTEBOOK = {"interrupt": "choose Kernel, Interrupt", "restart": "choose Kernel, Restart"}
_IN_TERMINAL = {"interrupt": "press Ctrl+C", "restart": "end this process"}
_STYLE = "border-left:4px solid #808080;padding:0.2em 0.8em"


class StatusLine:
    """One line, which is replaced in its place; `note` stands before it while code runs."""

    def __init__(self, note: str = "") -> None:
        self._note = note and f"{note} "
        self._is_notebook = can_answer()
        self._terminal = sys.stderr if not self._is_notebook and sys.stderr.isatty() else None
        self._words = _IN_NOTEBOOK if self._is_notebook else _IN_TERMINAL
        self._shown = ""
        self._handle: Any = None

    def show_running(self, line: str, secs: float) -> None:
        """Says which line runs, and when it will be stopped."""
        self._show(self._note + _RUNNING.format(where=_where(line), secs=secs, **self._words))

    def show_stuck(self, line: str) -> None:
        """Says that nothing stops this line."""
        self._show(_STUCK.format(where=_where(line), **self._words))

    def clear(self) -> None:
        """Leaves nothing of it."""
        if self._shown:
            self._show("")

    def _show(self, text: str) -> None:
        if text == self._shown:
            return
        # Where output goes may be closed for a moment: the next look tries again.
        with contextlib.suppress(Exception):
            if self._is_notebook:
                self._display(text)
            elif self._terminal is not None:
                self._terminal.write(f"\r\x1b[K{text}")
                self._terminal.flush()
            self._shown = text

    def _display(self, text: str) -> None:
        from IPython.display import display

        bundle = {"text/plain": text, "text/html": f'<div style="{_STYLE}">{with_code(text)}</div>'}
        bundle = bundle if text else {}  # of an output without data nothing is shown
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


def _where(line: str) -> str:
    """Returns where it is: "line 3 in split: while True:" is at line 3."""
    place, _, source = line.partition(": ")
    return f", at {place.partition(' in ')[0]}: `{source}`" if source else ""
