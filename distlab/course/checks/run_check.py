"""Runs a check in three steps, each of which can run in a different process.

    called = call_check(check, function, seed)      # where the learner's code is
    draw = judge_called(check, called)              # where it never is
    report = report_on(check, [draw, ...])          # one report over all draws

`run_check` does the three in one process, as the notebook does.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from distlab.course.checks.check import Check, Cost
from distlab.course.checks.matchers import shown
from distlab.course.checks.report import ENDING_OF_FAILURE, Ending, Report
from distlab.course.checks.time_limit import Stopped, TimeLimit
from distlab.course.checks.verdict import Criterion, Inputs, Plain, Verdict
from distlab.course.results.failures import Failure, FailureKind, failure_of
from distlab.course.results.plain_values import decode, encode, to_plain
from distlab.course.results.tracebacks import Frames, frames_below, noted_stops
from distlab.course.runs.outcomes import quiet_tensorflow
from distlab.errors import DistlabError, InvalidArgument
from distlab.process_state import kept_state

# Shares of points are sums of fractions: 1.4999999 is meant to be 1.5.
_ROUNDING = 1e-6
DEFAULT_SEEDS = Cost.TENSORFLOW.seeds
_MOST_PRINTED = 1000
UNREADABLE = "the form of the answer"  # the criterion of an answer that a judge fails on


@dataclass(frozen=True)
class Called:
    """The result of one call of a learner's function: bytes to judge, or a failure."""

    seed: int
    payload: bytes = b""
    failure: Failure | None = None
    printed: str = ""


@dataclass(frozen=True)
class Draw:
    """One judged call: a verdict or a failure, and the mistakes that it looks like."""

    seed: int
    verdict: Verdict | None
    failure: Failure | None
    mistakes: tuple[str, ...]
    printed: str


def call_check(
    check: Check,
    function: Callable[..., Any],
    seed: int,
    *,
    printed: io.StringIO | None = None,
    limit: TimeLimit | None = None,
) -> Called:
    """Calls the learner's function on its own copy of the inputs of one seed.

    What it prints is kept, what it raises becomes a `Failure`, and what it seeds or sets is put
    back. Without a limit of time, an interrupt by the learner passes through.

    Raises:
        DistlabError: The check itself cannot run here, such as for want of devices.
    """
    inputs = _fresh_inputs(check, seed)
    printed = io.StringIO() if printed is None else printed
    payload, failure, stops = b"", None, list[Frames]()

    def failed(error: BaseException) -> Failure:
        below = frames_below(error, stops)
        return failure_of(error, function, skip=code_of(check.call), below=below)

    def call() -> bytes:
        outputs = check.call(function, inputs)
        return encode(to_plain(outputs, at=f"the answer of `{check.function}`"))

    try:
        with (
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
            quiet_tensorflow(),
            kept_state(),
            noted_stops() as stops,
        ):
            payload = call() if limit is None else limit.run(call)
    except Stopped:
        assert limit is not None
        failure = limit.failure
    except KeyboardInterrupt:
        raise
    except DistlabError as error:
        failure = failed(error)
        if not failure.lines:
            if not isinstance(error, InvalidArgument):
                raise  # this machine's fault, such as devices split too late: no answer's
            place = error.asked.removeprefix("a plain value for ")
            failure = Failure(FailureKind.UNUSABLE, f"{place}: found {error.found}; {error.do}")
    except BaseException as error:  # SystemExit too: exit() must not end the kernel
        failure = failed(error)
    return Called(seed, payload, failure, printed.getvalue()[:_MOST_PRINTED])


def judge_called(check: Check, called: Called) -> Draw:
    """Judges the bytes of one call; needs nothing of the learner's."""
    if called.failure is not None:
        text = called.failure.error
        names = [m.name for m in check.mistakes if m.error and re.search(m.error, text)]
        return Draw(called.seed, None, called.failure, tuple(names), called.printed)
    outputs = decode(called.payload)
    verdict = _judge(check, called.seed, outputs)
    named: tuple[str, ...] = ()
    if not verdict.passed:
        named = tuple(
            mistake.name
            for mistake in check.mistakes
            if check.looks_like(mistake, _fresh_inputs(check, called.seed), decode(called.payload))
        )
    return Draw(called.seed, verdict, None, named, called.printed)


def report_on(check: Check, draws: Sequence[Draw]) -> Report:
    """Sums up draws: a criterion passes when it passes in all of them."""
    failed = [d for d in draws if d.verdict is None or not d.verdict.passed]
    report = Report(check.name, check.function, check.title, Ending.PASSED, 0.0, check.points)
    verdicts = [draw.verdict for draw in draws if draw.verdict is not None]
    broken = next((draw.failure for draw in draws if draw.failure is not None), None)
    criteria = _merged(verdicts)
    if not failed:
        return replace(report, earned=check.points, criteria=criteria)
    first = failed[0]
    # A mistake is named when it explains every draw that failed.
    explains = [m for m in check.mistakes if all(m.name in draw.mistakes for draw in failed)]
    report = replace(
        report,
        ending=Ending.NOT_YET,
        criteria=criteria,
        mistake=explains[0].name if explains else "",
        mistake_says=explains[0].says if explains else "",
        printed=first.printed,
        seed=first.seed,
    )
    if broken is None:
        merged = Verdict(criteria, out_of=verdicts[0].out_of)
        share = min(merged.share, *(verdict.share for verdict in verdicts))
        return replace(report, earned=to_half_points(check.points * share))
    ending = ENDING_OF_FAILURE[broken.kind]
    return replace(report, ending=ending, criteria=(), failure=broken)


def to_half_points(points: float) -> float:
    """Returns points as they count: whole or half, rounded down."""
    return math.floor(2 * points + _ROUNDING) / 2


def run_check(
    check: Check,
    function: Callable[..., Any],
    *,
    seeds: Iterable[int] | None = None,
    limit: TimeLimit | None = None,
) -> Report:
    """Calls, judges and reports in this process."""
    draws: list[Draw] = []
    for seed in check.cost.seeds if seeds is None else seeds:
        draws.append(judge_called(check, call_check(check, function, seed, limit=limit)))
        if draws[-1].failure is not None:
            break
    return report_on(check, draws)


def _fresh_inputs(check: Check, seed: int) -> Inputs:
    inputs: Inputs = decode(encode(to_plain(check.inputs(seed), at=f"inputs of {check.name}")))
    return inputs


def _judge(check: Check, seed: int, outputs: Plain) -> Verdict:
    try:
        return check.verdict(_fresh_inputs(check, seed), outputs)
    except Exception as error:  # a judge may fail on an answer of a different form
        unread = f"the check cannot read it ({type(error).__name__}: {error})"
        return Verdict.of(Criterion(UNREADABLE, False, unread, shown(outputs)))


def _merged(verdicts: Sequence[Verdict]) -> tuple[Criterion, ...]:
    merged: dict[str, Criterion] = {}
    for criterion in (c for verdict in verdicts for c in verdict.criteria):
        previous = merged.get(criterion.label)
        if previous is None or (previous.passed and not criterion.passed):
            merged[criterion.label] = criterion
    return tuple(merged.values())


def code_of(call: Callable[..., Any]) -> Any:
    """Returns the code around the learner's function, which is not theirs."""
    return getattr(call, "__code__", None)
