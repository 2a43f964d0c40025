"""Asks a submission for the answer to one task, and returns the report on it.

    question = Question(check="split", cells=(("split", source),), seeds=(11, 12, 13))
    report = grade_answer(question, limits=Limits(secs=20))

Nothing of the submission runs in this process: see `distlab.autograder.isolation.warden`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distlab.autograder.intake.exercises import check_named
from distlab.autograder.isolation.limits import Limits
from distlab.autograder.isolation.walls import missing_walls
from distlab.cluster.warm.process import shared_server, task_environment
from distlab.course.checks.report import Ending, Report
from distlab.course.checks.run_check import DEFAULT_SEEDS
from distlab.course.checks.verdict import Criterion
from distlab.course.results.failures import Failure, FailureKind
from distlab.errors import InvalidArgument, ProcessError, UnsupportedEnvironment

JOB, REPORT = "job.json", "report.json"
COULD_NOT_JUDGE = "The check could not judge this answer."
_LOOK_SECS = 0.2
# What Python and TensorFlow read; nothing else of the teacher's environment gets into a process.
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD")
_KEPT_PREFIXES = ("PYTHON", "TF_", "TF2_", "KERAS_", "OMP_", "MKL_", "OPENBLAS_")
_SECRET = re.compile("TOKEN|SECRET|PASSWORD|CREDENTIAL|_KEY|TF_VAR_|TF_CLI_")  # TF_: Terraform's


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question to a submission: a check, the cells to run before, and the draws of inputs.

    Cells of a whole notebook run as in a kernel: an error ends one cell, and the next one runs. One
    that takes long or asks for input is left out, and the report says so.
    """

    check: str
    cells: tuple[tuple[str, str], ...]
    is_whole_notebook: bool = False
    seeds: tuple[int, ...] = DEFAULT_SEEDS
    extra_checks: Path | None = None

    def __post_init__(self) -> None:
        if not self.seeds:
            raise InvalidArgument(
                asked=f"Question(check={self.check!r}, seeds=())",
                found="no draw of inputs, so anything would pass",
                do="draw at least once: seeds=(1,)",
            )


def require_safe_user(*, allow_root: bool) -> None:
    """Raises where submissions would run as root without walls around them."""
    if os.geteuid() == 0 and not allow_root and (why := missing_walls()):
        raise UnsupportedEnvironment(
            asked="run submissions as root",
            found=f"user root, for whom limits do not hold, and no walls of the kernel ({why})",
            do="run it as a different user, or add --allow-root in a container of its own",
        )


def grade_answer(
    question: Question, *, limits: Limits | None = None, give_up: threading.Event | None = None
) -> Report:
    """Returns the report on a submission's answer to a question."""
    check = check_named(question.check, question.extra_checks)
    limits = limits or Limits()
    job = dataclasses.asdict(question)
    job |= {"limits": dataclasses.asdict(limits), "is_walled": not missing_walls()}
    with tempfile.TemporaryDirectory(prefix="distlab-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        (folder / "work").mkdir()
        (folder / JOB).write_text(json.dumps(job, default=_absolute), encoding="utf-8")
        task = shared_server().spawn(
            call="distlab.autograder.isolation.warden:main",
            args=[str(folder)],
            env=_environment(),
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _wait(task, give_up or threading.Event())
        try:
            reply = json.loads((folder / REPORT).read_text(encoding="utf-8"))
        except OSError:  # it was judged for too long, or judging ended the process
            reply = {"unjudged": ""}
    if "problem" in reply:
        raise ProcessError(
            asked=f"run an answer to {question.check!r}",
            found=f"its processes could not be started: {reply['problem']!r}",
            do="free memory and processes, then run the command again",
        )
    if "report" in reply:
        return report_of(reply["report"])
    nothing = Report(check.name, check.function, check.title, Ending.NOT_YET, 0.0, check.points)
    return dataclasses.replace(nothing, message=COULD_NOT_JUDGE + reply["unjudged"])


def report_of(reply: dict[str, Any]) -> Report:
    """Returns a report from what `dataclasses.asdict` makes of it."""
    parts = dict(reply)
    parts["ending"] = Ending(parts["ending"])
    if (failure := parts["failure"]) is not None:
        kind = FailureKind(failure["kind"])
        parts["failure"] = Failure(kind, failure["error"], tuple(failure["lines"]))
    parts |= {name: tuple(parts[name]) for name in ("corrected", "left_out")}
    parts["criteria"] = tuple(Criterion(**criterion) for criterion in parts["criteria"])
    return Report(**parts)


def _absolute(value: Any) -> str:
    return str(Path(value).resolve())


def _environment() -> dict[str, str]:
    return {
        name: value
        for name, value in task_environment({}).items()
        if name in _KEPT or (name.startswith(_KEPT_PREFIXES) and not _SECRET.search(name.upper()))
    }


def _wait(task: Any, give_up: threading.Event) -> None:
    """Waits for the warden, which limits the answer and its own judging."""
    while not give_up.is_set():
        with contextlib.suppress(TimeoutError):
            task.wait(timeout_secs=_LOOK_SECS)
            return
    task.kill()  # and with it, by the kernel, all that it has started
    task.wait()
