"""Prints what a cluster's tasks print, in whole lines that start with the task's name.

    output = TaskOutput(spec.tasks_in_order())
    stdout, stderr = output.streams(task)      # start the task with these two descriptors
    output.started(task)
    output.finish(task)                        # it has ended: what it wrote last is out

    worker:0 | epoch 1
    worker:1 | epoch 1

A traceback comes out in one piece, and only once if several tasks have the same; of one that is
cut off where its task was ended, a line is left. What TensorFlow logs on every machine is left out,
and so is gRPC's word of a peer that was lost: the error that follows says which.
What a task writes to stdout goes to stdout, its stderr to stderr; a thread for each reads it, so
a task that writes megabytes is held up by the reader of this process and by nothing else.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

from distlab.cluster.deadline import Deadline
from distlab.cluster.exit_status import has_lost_a_peer
from distlab.cluster.spec import TaskName
from distlab.environment import NOISE

# A line is cut where it is longer, so that one without an end takes no memory.
LONGEST_LINE = 1 << 16
# How much of what a task said last is kept, to look for a cause in it; a traceback has no more.
_TAIL = 1 << 14
_TRACEBACK = b"Traceback (most recent call last):"
_CUT_OFF = b"(a traceback that was cut off, since the task was ended meanwhile)"
# A line of TensorFlow's C++, in both of its forms, and what follows it if it quotes gRPC.
_LOGGED = re.compile(rb"[IWE]\d{4} \d\d:|\d{4}-\d\d-\d\d [\d:.]+: [IWE] ")
_MORE_OF_IT = (b"Additional GRPC error information", b":UNKNOWN:", b':{"created"')
# How long a stream is waited for that a process which the task left behind still holds.
_LEFT_BEHIND_SECS = 1.0
_LOOK_SECS = 0.05

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
# Moves of the cursor and the like: the terminal is all tasks', only colours pass.
_MOVES = re.compile(rb"\x1b\[[0-9;?]*[@-ln-~]|\x08")


def shown(line: bytes) -> bytes:
    """Returns a line as a terminal shows it in the end, as after a progress bar's updates."""
    return _MOVES.sub(b"", line.rstrip(b"\r\n").rpartition(b"\r")[2])


class TaskOutput:
    """Passes on what tasks say, to this process's stdout and stderr."""

    def __init__(self, tasks: Sequence[TaskName]) -> None:
        width = max(len(str(task)) for task in tasks)
        self._prefixes = {
            task: (f"{task!s:{width}} | ", _COLOURS[place % len(_COLOURS)])
            for place, task in enumerate(tasks)
        }
        self._threads: dict[TaskName, list[threading.Thread]] = {task: [] for task in tasks}
        self._writers: dict[TaskName, list[int]] = {}
        self._tails = dict.fromkeys(tasks, b"")
        self._last_errors: dict[TaskName, bytes] = {}
        self._tracebacks: dict[TaskName, bytes] = {}  # the last that each showed
        self._lock, self._tails_lock = threading.Lock(), threading.Lock()
        self._writing: set[threading.Thread] = set()
        self.broken = False  # whether nobody reads stdout or stderr any more
        self.hurry = False  # whether a reader that has stopped to read is not waited for

    def streams(self, task: TaskName) -> tuple[int, int]:
        """Returns the descriptors that a task gets as stdout and stderr."""
        self.finish(task)
        self._tails[task] = b""
        self._last_errors.pop(task, None)
        self._tracebacks.pop(task, None)
        writers = []
        for target in (sys.stdout, sys.stderr):
            reader, writer = os.pipe()
            writers.append(writer)
            thread = threading.Thread(target=self._read, args=(task, reader, target), daemon=True)
            thread.start()
            self._threads[task].append(thread)
        self._writers[task] = writers
        return writers[0], writers[1]

    def started(self, task: TaskName) -> None:
        """Leaves a task's streams to the task; call it once it has them."""
        for writer in self._writers.pop(task, []):
            os.close(writer)

    def tail(self, task: TaskName) -> str:
        """Returns what a task wrote last, a few thousand letters."""
        return self._tails[task].decode(errors="replace")

    def last_error(self, task: TaskName) -> str:
        """Returns the last line that a task wrote to stderr; "" if it wrote none."""
        return self._last_errors.get(task, b"").decode(errors="replace")

    def say(self, text: str) -> None:
        """Writes a line of the launcher's own to stderr."""
        # Also while a task's line waits for a reader that has stopped.
        held = self._lock.acquire(timeout=1)
        self._write(sys.stderr, f"{text}\n".encode())
        if held:
            self._lock.release()

    def finish(self, task: TaskName) -> None:
        """Waits until all that a task said is out; call it when the task has ended."""
        for thread in self._threads[task]:
            deadline = _left_behind()
            while thread.is_alive() and not deadline.has_passed():
                thread.join(_LOOK_SECS)
                if thread in self._writing and not self.hurry:
                    deadline = _left_behind()
        self._threads[task] = []

    def _read(self, task: TaskName, reader: int, target: IO[str]) -> None:
        text, colour = self._prefixes[task]
        prefix = (f"\x1b[0;{colour}m{text}\x1b[0m" if _in_colour(target) else text).encode()
        with open(reader, "rb") as stream:
            for lines in _pieces(_without_noise(self._lines(task, stream))):
                if target is sys.stderr and (last := shown(lines[-1]).strip()):
                    self._last_errors[task] = last
                self._writing.add(threading.current_thread())
                with self._lock:
                    for line in self._without_repetition(task, lines):
                        self._write(target, b"%b%b\n" % (prefix, shown(line)))
                self._writing.discard(threading.current_thread())

    def _lines(self, task: TaskName, stream: IO[bytes]) -> Iterator[bytes]:
        while line := stream.readline(LONGEST_LINE):
            with self._tails_lock:
                self._tails[task] = (self._tails[task] + line)[-_TAIL:]
            yield line

    def _without_repetition(self, task: TaskName, lines: list[bytes]) -> list[bytes]:
        """Returns lines, or for another task's traceback one that names this task."""
        if len(lines) == 1:
            return lines
        text = b"".join(lines)
        for other, shown_there in self._tracebacks.items():
            if other != task and shown_there == text:
                return [b"as %b: %b" % (str(other).encode(), lines[-1])]
        self._tracebacks[task] = text
        return lines

    def _write(self, target: IO[str], data: bytes) -> None:
        try:
            # Past Python's buffer, whose lock a waiting thread would hold while Python ends.
            while data:
                data = data[os.write(target.fileno(), data) :]
        except OSError:
            self.broken = True


def _left_behind() -> Deadline:
    return Deadline(_LEFT_BEHIND_SECS, lambda: [os.getpid()])  # whose threads read the streams


def _pieces(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yields each line as it comes, but the lines of a traceback together."""
    held: list[bytes] = []
    for line in lines:
        if held and line.startswith(_TRACEBACK):
            yield held
            held = []
        if not held and not line.startswith(_TRACEBACK):
            yield [line]
            continue
        held.append(line)
        is_last = not line.startswith((b" ", _TRACEBACK))
        if is_last or sum(map(len, held)) > _TAIL:
            yield held
            held = []
    if held:
        yield [_CUT_OFF]


def _without_noise(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yields lines as they come, but not those that tell a reader nothing."""
    after_lost_peer = False
    for line in lines:
        is_more = after_lost_peer and line.startswith(_MORE_OF_IT)
        is_logged = bool(_LOGGED.match(line))
        after_lost_peer = is_more or (is_logged and has_lost_a_peer(line.decode(errors="replace")))
        if not after_lost_peer and not any(noise in line for noise in NOISE):
            yield line


def _in_colour(target: IO[str]) -> bool:
    return target.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
