"""On which of the reader's lines tasks wait, read from the error of a time limit.

    try:
        cluster.run(train, timeout_secs=5)
    except TimeoutError as late:
        for wait in cluster.waits(late):
            print(wait)      # worker:0 waits in train, line 7, inside reduce: loss = strategy.re...

The error itself tells every frame. This leaves out what differs from one version of TensorFlow to
the next.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable
from dataclasses import dataclass

from distlab.cluster.local.installed import is_installed
from distlab.errors import TaskTimeout

_FRAME = re.compile(r'File "(.+?)", line (\d+) in (\S+)')


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Where a task is when time is over.

    Attributes:
        task: Its name.
        is_over: Whether it has finished, and waits for nothing.
        function: The reader's function that it is in; "" where that cannot be told.
        file: The function's file, or what stands for it in a notebook.
        line: The line there.
        code: That line's text, where it is known.
        inside: The function of a library that it called there; "" for none.
    """

    task: str
    is_over: bool = False
    function: str = ""
    file: str = ""
    line: int = 0
    code: str = ""
    inside: str = ""

    def __str__(self) -> str:
        if self.is_over:
            return f"{self.task} has finished"
        if not self.function:
            return f"{self.task} waits"
        inside = f", inside {self.inside}" if self.inside else ""
        code = f": {self.code}" if self.code else ""
        return f"{self.task} waits in {self.function}, line {self.line}{inside}{code}"


def read_waits(error: TaskTimeout, tasks: Iterable[str]) -> tuple[Wait, ...]:
    """Returns where each task is."""
    names = list(tasks)
    parts = re.split(rf"^({'|'.join(map(re.escape, names))})$", error.traceback, flags=re.MULTILINE)
    stacks = dict(zip(parts[1::2], parts[2::2], strict=True))
    return tuple(
        _wait(name, stacks[name]) if name in stacks else Wait(task=name, is_over=True)
        for name in names
    )


def _wait(task: str, stack: str) -> Wait:
    inside = ""
    main_thread = stack.rpartition("(most recent call first):")[2]  # the last that is told
    for file, number, function in _FRAME.findall(main_thread):
        if not is_installed(file):
            line = int(number)
            code = linecache.getline(file, line).strip()
            return Wait(
                task=task, function=function, file=file, line=line, code=code, inside=inside
            )
        inside = function
    return Wait(task=task)
