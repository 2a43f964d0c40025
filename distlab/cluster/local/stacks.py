"""Where the threads of a task are: asked from outside, also of a task that hangs.

    text = read_stacks(file, ask=lambda: group.send_signal([task], SIGUSR1, to_group=False))
    main_stack(text)                     # of the thread that runs the reader's code

The task has `faulthandler` answer the signal, which needs neither the GIL nor its help.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

_THREAD = re.compile(r"^(?:Current thread|Thread) 0x", re.MULTILINE)
# Below these frames is what runs the cell, not what the cell runs.
_MACHINERY = re.compile(
    r"/(?:IPython|ipykernel|asyncio|tornado)/|distlab/cluster/local/remote_calls\.py"
)
_LONGEST = 6
_FOLDER = re.compile(r'"/.*/site-packages/')
_QUIET_SECS = 0.05


def read_stacks(file: Path, *, ask: Callable[[], object], timeout_secs: float = 1.0) -> str:
    """Returns the stacks of a task's threads, each with the most recent call first."""
    before = file.stat().st_size if file.exists() else 0
    ask()
    deadline = time.monotonic() + timeout_secs
    size, grown_at = before, time.monotonic()
    while time.monotonic() < deadline:
        now = file.stat().st_size if file.exists() else 0
        if now != size:
            size, grown_at = now, time.monotonic()
        elif size > before and time.monotonic() - grown_at > _QUIET_SECS:
            break  # it says no end, and a dump takes a millisecond
        time.sleep(0.01)
    if size == before:
        return ""
    with file.open(errors="replace") as stacks:
        stacks.seek(before)
        return stacks.read()


def main_stack(text: str) -> str:
    """Returns the frames of a task's main thread, from the most recent to the reader's own."""
    starts = [match.start() for match in _THREAD.finditer(text)]
    if not starts:
        return ""
    frames = text[starts[-1] :].splitlines()[1:]  # threads are listed from the newest on
    for number, frame in enumerate(frames):
        if number and _MACHINERY.search(frame):
            frames = frames[:number]
            break
    if len(frames) > _LONGEST:
        left_out = f"  ... {len(frames) - _LONGEST} more"
        frames = [*frames[: _LONGEST - 3], left_out, *frames[-3:]]
    return _FOLDER.sub('"', "\n".join(frames))
