"""Runs one answer of a submission in separate processes, within limits.

    question = Question(check="split", cells=(("split", source),), seeds=(11, 12, 13))
    outcome = ask(question, limits=Limits(secs=20))
    outcome.called                    # to be judged; never empty
    outcome.stopped, outcome.review   # why it was ended, and what a person should look at

Nothing of the submission runs in this process. It is no sandbox: see the page for teachers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from distlab.autograder.intake.private_checks import check_named
from distlab.autograder.isolation.limits import Limits
from distlab.autograder.isolation.messages import Records, called_of
from distlab.autograder.isolation.process_tree import kill_below
from distlab.autograder.isolation.stops import Stop, StopReason, stop_of
from distlab.course.checks.run_check import DEFAULT_SEEDS, Called
from distlab.errors import InvalidArgument, UnsupportedEnvironment
from distlab.warm.process import ForkedProcess, shared_server, task_environment

# For the start of the processes and for the end of all that an answer has started.
_GRACE_SECS = 120.0
_LOOK_SECS = 0.2


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a submission is asked."""

    check: str
    cells: tuple[tuple[str, str], ...]
    seeds: tuple[int, ...] = DEFAULT_SEEDS
    extra_checks: Path | None = None

    def __post_init__(self) -> None:
        if not self.seeds:
            raise InvalidArgument(
                asked=f"Question(check={self.check!r}, seeds=())",
                found="no draw of inputs, so anything would pass",
                do="give at least one seed",
            )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a question.

    Attributes:
        called: One call for each seed; where one failed, it is the last.
        stop: Why the answer was ended; None if it ended as it should.
        review: What a person should look at.
        secs: How long the answer took.
    """

    called: tuple[Called, ...]
    stop: Stop | None
    review: tuple[str, ...]
    secs: float

    @property
    def stopped(self) -> str:
        """Why the answer was ended, as a sentence for a person; "" if it ended as it should."""
        return "" if self.stop is None else str(self.stop)


def ask(
    question: Question,
    *,
    limits: Limits | None = None,
    folder: Path | None = None,
    allow_root: bool = False,
    give_up: threading.Event | None = None,
) -> Outcome:
    """Runs a submission's answer to a question and returns what came of it."""
    if os.geteuid() == 0 and not allow_root:
        raise UnsupportedEnvironment(
            asked="run submissions as root",
            found="user root: limits do not hold for root",
            do="run it as a different user, or add --allow-root in a container of its own",
        )
    check_named(question.check, question.extra_checks)
    if folder is not None and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidArgument(
            asked=f"ask(..., folder={str(folder)!r})",
            found="a folder with files" if folder.is_dir() else "no such folder",
            do="make an empty one",
        )
    made = Path(tempfile.mkdtemp(prefix="distlab-"))
    work, tasks = folder or made / "work", made / "tasks"
    try:
        for one in (work, tasks):
            one.mkdir(exist_ok=True)
        return _ask(question, limits or Limits(), (work, tasks), give_up or threading.Event())
    finally:
        _remove(made)


def _ask(
    question: Question, limits: Limits, folders: tuple[Path, Path], give_up: threading.Event
) -> Outcome:
    job = dataclasses.asdict(question) | {"limits": dataclasses.asdict(limits)}
    keeper = shared_server()
    with tempfile.TemporaryFile() as asks, tempfile.TemporaryFile() as tells:
        asks.write(json.dumps(job, default=_full_path).encode())
        asks.seek(0)
        task = keeper.spawn(
            call="distlab.autograder.isolation.supervisor:main",
            args=[str(folder.resolve()) for folder in folders],
            env=task_environment({}),
            cwd=keeper.folder,
            stdin=asks,
            stdout=tells,
            stderr=subprocess.DEVNULL,
        )
        _wait(task, limits, give_up)
        return _told(tells, question)


def _full_path(value: Any) -> str:
    return str(Path(value).resolve())


def _wait(task: ForkedProcess, limits: Limits, give_up: threading.Event) -> None:
    deadline = time.monotonic() + limits.secs + _GRACE_SECS
    while time.monotonic() < deadline and not give_up.is_set():
        with contextlib.suppress(TimeoutError):
            task.wait(timeout_secs=_LOOK_SECS)
            return
    kill_below(task.pid)  # whatever has become of the one that watches over them
    task.kill()
    task.wait(timeout_secs=_GRACE_SECS)


def _remove(folder: Path) -> None:
    """Removes a folder, even if an answer has made it very deep or locked a part of it."""
    with contextlib.suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        for command in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
            subprocess.run([*command, str(folder)], stderr=subprocess.DEVNULL, check=False)


def _told(tells: IO[bytes], question: Question) -> Outcome:
    records, called = Records(), []
    tells.seek(0)
    records.feed(tells.read())
    try:
        if (first := records.pop()) is not None:
            told = first[0]["told"]
            while (record := records.pop()) is not None:
                called.append(called_of(*record))
            return Outcome(
                called=tuple(called),
                stop=stop_of(told["stopped"]),
                review=tuple(map(str, told["review"])),
                secs=float(told["secs"]),
            )
    except (ValueError, KeyError, TypeError):  # BadRecord too
        pass
    stop = Stop(StopReason.UNWATCHED)
    called = [Called(question.seeds[0], failure=stop.failure())]
    return Outcome(called=tuple(called), stop=stop, review=(str(stop),), secs=0)
