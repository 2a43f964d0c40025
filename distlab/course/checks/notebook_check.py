"""`dl.check("name")` checks an answer in a notebook at once.

import distlab as dl

def combine_gradients(sums, counts):
    ...

dl.check("combine_gradients")
dl.check()                       # where you are in the whole course
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, overload

from distlab import cell_runs
from distlab.course.checks.check import Check
from distlab.course.checks.handed_out import is_untouched
from distlab.course.checks.help_steps import as_handed_out, with_help
from distlab.course.checks.progress import Progress, note_result, progress
from distlab.course.checks.registry import find_check
from distlab.course.checks.report import OLDER, UNDEFINED, Ending, Report
from distlab.course.checks.run_check import code_of, run_check
from distlab.course.checks.status_line import StatusLine
from distlab.course.checks.time_limit import TimeLimit
from distlab.course.markup import TASK_LINE
from distlab.course.results.stops import ANSWER_SECS

_failed_tries: Counter[str] = Counter()  # of each check, in this kernel


@overload
def check() -> Progress: ...


@overload
def check(
    name: str | Check,
    function: Callable[..., Any] | None = None,
    *,
    seed: int | None = None,
    secs: float = ANSWER_SECS,
) -> Report: ...


def check(
    name: str | Check | None = None,
    function: Callable[..., Any] | None = None,
    *,
    seed: int | None = None,
    secs: float = ANSWER_SECS,
) -> Report | Progress:
    """Checks your answer to an exercise; without a name, shows where you are in the course.

    The first failed try of a task gets a question, the second a direction, and the third the way to
    the answer and the section to read again. If nbgrader runs the notebook, the text of the report
    is the points that were earned, because nbgrader reads those.

    Args:
        name: The check's name, as the exercise gives it; or a `Check` of your own.
        function: Your answer; without it, the function of the notebook that the check names.
        seed: One draw of inputs to look at; without it, several fixed draws must all pass.
        secs: Seconds that your answer may run, in all draws together. The time that it waits for a
            core of a busy machine doesn't count.

    Returns:
        A `Report`: what is right, your values beside the expected ones, and help. Without a name a
        `Progress`: a line for each exercise of the folder.

    Raises:
        InvalidArgument: There's no check of that name, or `secs` isn't above 0.

    Example:
        >>> def split(examples, replicas):  # the first task of exercise 00, not right yet
        ...     return [examples // replicas] * replicas
        >>> report = dl.check("slices", split)
        >>> report.passed, report.points
        (False, 2.0)
    """
    cell_runs.install()  # for a shell that began after distlab was imported
    if name is None:
        return progress()
    if is_autograded():
        with without_stderr(_shell()):
            report = _report_on(name, function, seed, secs)
        return autograded(report)
    report = _report_on(name, function, seed, secs)
    return end_cell(report) if report.ending is Ending.INTERRUPTED else report


def _report_on(
    name: str | Check, function: Callable[..., Any] | None, seed: int | None, secs: float
) -> Report:
    chosen = find_check(name) if isinstance(name, str) else name
    error = ""
    if function is None:
        names = _notebook_names()
        if chosen.function not in names:
            return _not_started(chosen, UNDEFINED.format(function=chosen.function))
        function = names[chosen.function]
        error = _error_since(chosen, function)
    if not callable(function):
        return _not_started(
            chosen, f"`{chosen.function}` is a {type(function).__name__}, not a function."
        )
    seeds = None if seed is None else (seed,)
    skip = code_of(chosen.call)
    older = OLDER.format(function=chosen.function, error=error) if error else ""
    with TimeLimit(function, secs=secs, skip=skip, status=StatusLine(older)) as limit:
        report = run_check(chosen, function, seeds=seeds, limit=limit)
    if not report.passed and is_untouched(chosen, function):
        report = as_handed_out(report)
    if older:  # no try: it has been judged before
        return report.after(older)
    if not report.ending.is_answered:
        return report
    note_result(chosen.name, report.earned)
    return _with_help(chosen, report)


def _error_since(check: Check, function: Any) -> str:
    """Returns the error by which the cell of a task ended since it made this function; else ""."""
    defines = re.compile(rf"^\s*(?:async\s+)?def\s+{check.function}\b", re.MULTILINE)
    run = cell_runs.last_run(
        lambda source: check.name in TASK_LINE.findall(source) or bool(defines.search(source))
    )
    return run.error if run is not None and run.has_kept(check.function, function) else ""


def _with_help(check: Check, report: Report) -> Report:
    if report.passed:
        del _failed_tries[check.name]
        return report
    _failed_tries[check.name] += 1
    return with_help(check, report, tries=_failed_tries[check.name])


def _not_started(check: Check, message: str) -> Report:
    return Report(
        check.name,
        check.function,
        check.title,
        Ending.NOT_STARTED,
        0.0,
        check.points,
        message=message,
    )


def _notebook_names() -> dict[str, Any]:
    shell = _shell()
    return shell.user_ns if shell is not None else vars(sys.modules["__main__"])


def _shell() -> Any:
    # Asked for only where it is loaded: a plain script need not have IPython.
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


class Interrupted(KeyboardInterrupt):
    """Ends the cell of a check, whose report is shown already."""


def end_cell(report: Report) -> Report:
    """Ends the cell, or the script, that a learner interrupted: its report replaces a traceback.

    A front end then runs none of the cells that wait. At Python's own prompt there is no cell.
    """
    shell = _shell()
    if shell is not None:
        from IPython.display import display

        display(report)
        _hush(shell, Interrupted)
        raise Interrupted
    if hasattr(sys, "ps1"):
        return report
    print(report)  # noqa: T201
    sys.exit(_EXIT_INTERRUPTED)


def _hush(shell: Any, error: type[BaseException]) -> None:
    """Lets a shell show nothing of an error that ends this cell."""
    kept = shell.custom_exceptions, shell.CustomTB

    def put_back(_: Any) -> None:
        shell.events.unregister("post_run_cell", put_back)
        shell.custom_exceptions, shell.CustomTB = kept

    shell.set_custom_exc((error,), lambda *_, **__: None)
    shell.events.register("post_run_cell", put_back)


_EXIT_INTERRUPTED = 128 + signal.SIGINT  # as a shell says it
_VARIABLE = "NBGRADER_EXECUTION"  # nbgrader sets it for "autograde" and for "validate"
_STDERR_FD = 2


class AutogradedReport(Report):
    """A report whose text is the points that it earned.

    nbgrader gives the cell of a check the number that it shows, nothing where the cell raised or
    wrote to stderr, and all points where it shows anything else.
    """

    def __repr__(self) -> str:
        return f"{self.earned:g}"


def is_autograded() -> bool:
    """Returns whether nbgrader runs this notebook."""
    return bool(os.environ.get(_VARIABLE))


def autograded(report: Report) -> Report:
    """Returns the report as nbgrader reads it."""
    return AutogradedReport(**vars(report))


@contextlib.contextmanager
def without_stderr(shell: Any) -> Iterator[None]:
    """Keeps stderr out of a cell, where a remark of TensorFlow would cost a right answer points."""
    sys.stderr.flush()
    saved_fd, null_fd = os.dup(_STDERR_FD), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_fd, _STDERR_FD)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        os.dup2(saved_fd, _STDERR_FD)
        os.close(saved_fd)
        os.close(null_fd)
        if shell is not None:  # a logger that was made before writes past the redirection
            shell.display_pub.clear_output()
