"""Prints what a cluster's tasks print, in whole lines that start with the task's name.

    output = TaskOutput(["worker:0", "worker:1"], log_dir=None)
    stdout, stderr = output.streams("worker:0")      # start the task with these two descriptors
    output.started("worker:0")
    output.finish("worker:0")                        # it has ended: what it said last is out

    worker:0 | epoch 1
    worker:1 | epoch 1

What a task writes to stdout goes to stdout, its stderr to stderr; a thread for each reads it, so
a task that writes megabytes is held up by the reader of this process and by nothing else.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from distlab.errors import InvalidArgument

# A line is cut where it is longer, so that one without an end takes no memory.
LONGEST_LINE = 1 << 16
# How often a line that is written over and over, a progress bar, is shown while it is.
PROGRESS_SECS = 5.0
# How much of what a task said last is kept, to look for a cause in it.
_TAIL = 1 << 14
# How long a stream is waited for that a process which the task left behind still holds.
_LEFT_BEHIND_SECS = 1.0
_LOOK_SECS = 0.05

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
# Moves of the cursor and the like: the terminal is all tasks', only colours pass.
_MOVES = re.compile(rb"\x1b\[[0-9;?]*[@-ln-~]|\x08")


class Lines:
    """Cuts what one stream says into whole lines, as a terminal would show them in the end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open, self._shown_at = b"", clock()

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the lines that these bytes end; of a progress bar now and then what it shows."""
        *whole, rest = (self._open + data).split(b"\n")
        lines = [_shown(line) for line in whole]
        # What is behind the last return is all that counts; the return may be part of an end.
        returns = len(rest) - len(rest.rstrip(b"\r"))
        overwritten = b"\r" in rest[: len(rest) - returns]
        self._open = rest if not overwritten else b"\r" + _shown(rest) + b"\r" * bool(returns)
        if lines:
            self._shown_at = self._clock()
        if len(self._open) > LONGEST_LINE:
            lines += self.rest()
        elif overwritten and self._clock() - self._shown_at >= PROGRESS_SECS:
            lines.append(_shown(self._open))
            self._shown_at = self._clock()
        return lines

    def rest(self) -> list[bytes]:
        """Returns the line that was begun, and takes it as ended."""
        left, self._open = _shown(self._open), b""
        return [left] if left else []


def _shown(line: bytes) -> bytes:
    return _MOVES.sub(b"", line.rstrip(b"\r").rpartition(b"\r")[2])


class TaskOutput:
    """Passes on what tasks say, to this process's stdout and stderr."""

    def __init__(self, names: Sequence[str], *, log_dir: Path | None) -> None:
        width = max(map(len, names))
        self._prefixes = {
            name: (f"{name:{width}} | ", _COLOURS[place % len(_COLOURS)])
            for place, name in enumerate(names)
        }
        self._threads: dict[str, list[threading.Thread]] = {name: [] for name in names}
        self._writers: dict[str, list[int]] = {}
        self._tails = dict.fromkeys(names, b"")
        self._logs = _open_logs(names, log_dir)
        self._lock, self._tails_lock = threading.Lock(), threading.Lock()
        self._writing: set[threading.Thread] = set()
        self.broken = False  # whether nobody reads stdout or stderr any more
        self.hurry = False  # whether a reader that has stopped to read is not waited for

    def streams(self, name: str) -> tuple[int, int]:
        """Returns the descriptors that a task gets as stdout and stderr."""
        self.finish(name)
        self._tails[name] = b""
        writers = []
        for target in (sys.stdout, sys.stderr):
            reader, writer = os.pipe()
            writers.append(writer)
            thread = threading.Thread(target=self._read, args=(name, reader, target), daemon=True)
            thread.start()
            self._threads[name].append(thread)
        self._writers[name] = writers
        return writers[0], writers[1]

    def started(self, name: str) -> None:
        """Leaves a task's streams to the task; call it once it has them."""
        for writer in self._writers.pop(name, []):
            os.close(writer)

    def said(self, name: str) -> str:
        """Returns what a task said last, a few thousand letters."""
        return self._tails[name].decode(errors="replace")

    def say(self, text: str) -> None:
        """Writes a line of the launcher's own to stderr."""
        # Also while a task's line waits for a reader that has stopped.
        held = self._lock.acquire(timeout=1)
        self._write(sys.stderr, f"{text}\n".encode())
        if held:
            self._lock.release()

    def finish(self, name: str) -> None:
        """Waits until all that a task said is out; call it when the task has ended."""
        for thread in self._threads[name]:
            deadline = time.monotonic() + _LEFT_BEHIND_SECS
            while thread.is_alive() and time.monotonic() < deadline:
                thread.join(_LOOK_SECS)
                if thread in self._writing and not self.hurry:
                    deadline = time.monotonic() + _LEFT_BEHIND_SECS
        self._threads[name] = []

    def _read(self, name: str, reader: int, target: IO[str]) -> None:
        text, colour = self._prefixes[name]
        prefix = (f"\x1b[0;{colour}m{text}\x1b[0m" if _in_colour(target) else text).encode()
        lines = Lines()
        with open(reader, "rb", buffering=0) as stream:
            while data := stream.read(1 << 16):
                with self._tails_lock:
                    self._tails[name] = (self._tails[name] + data)[-_TAIL:]
                self._put(name, target, prefix, lines.feed(data))
        self._put(name, target, prefix, lines.rest())

    def _put(self, name: str, target: IO[str], prefix: bytes, lines: list[bytes]) -> None:
        if not lines:
            return
        self._writing.add(threading.current_thread())
        with self._lock:
            self._write(target, b"".join(b"%b%b\n" % (prefix, line) for line in lines))
            if name in self._logs:
                self._log(name, b"".join(b"%b\n" % line for line in lines))
        self._writing.discard(threading.current_thread())

    def _write(self, target: IO[str], data: bytes) -> None:
        try:
            # Past Python's buffer, whose lock a waiting thread would hold while Python ends.
            _write_all(target.fileno(), data)
        except OSError:
            self.broken = True

    def _log(self, name: str, data: bytes) -> None:
        try:
            _write_all(self._logs[name], data)
        except OSError as problem:
            del self._logs[name]
            self._write(sys.stderr, f"the log of {name} ends here: {problem}\n".encode())


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _in_colour(target: IO[str]) -> bool:
    return target.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _open_logs(names: Sequence[str], log_dir: Path | None) -> dict[str, int]:
    """Opens a file for each task; what is there from before stays."""
    if log_dir is None:
        return {}
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
        paths = {name: log_dir / f"{name.replace(':', '-')}.log" for name in names}
        return {name: os.open(path, flags, 0o666) for name, path in paths.items()}
    except OSError as problem:
        raise InvalidArgument(
            asked=f"--log-dir {log_dir}",
            found=str(problem),
            do="give a folder that you may write to, or one that can be made",
        ) from problem
