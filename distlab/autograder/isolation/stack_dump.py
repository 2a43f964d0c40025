"""Finds the line of a learner's code at which a process hangs.

    show_lines_on_demand()             # in the asked process, before the learner's code
    ask_for_lines(pid)                 # elsewhere; the process prints where it is
    lines_in(printed, cells)           # ("line 2 in split: while True:",)

Python's faulthandler prints it, whatever the process is busy with, and whatever it catches.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
from collections.abc import Sequence

_LINE = re.compile(rb'^  File "<(.+)>", line (\d+) in (.+)\n', re.MULTILINE)
_LONGEST = 200


def show_lines_on_demand() -> None:
    """Makes this process print where it is whenever it is asked to."""
    faulthandler.register(signal.SIGUSR1, file=2)


def ask_for_lines(pid: int) -> None:
    """Asks a process to print where it is; nothing if it has ended."""
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGUSR1)


def lines_in(printed: bytes, cells: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Returns the innermost line of the learner's in what a process printed, if there is one."""
    sources = {name: source.splitlines() for name, source in cells}
    for file, number, function in _LINE.findall(printed):
        lines = sources.get(file.decode(errors="replace"), [])
        if 0 < int(number) <= len(lines):
            where = f"line {int(number)} in {function.decode(errors='replace')}"
            return (f"{where}: {lines[int(number) - 1].strip()}"[:_LONGEST],)
    return ()
