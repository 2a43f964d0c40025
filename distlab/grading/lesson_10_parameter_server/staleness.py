"""A check of lesson 10 without a cluster: staleness from a log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_equal

_Log = list[list[Any]]  # of an event and the number of its step


def _log_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    steps, workers = int(draw.integers(8, 12)), 3
    log: _Log = []
    queue: list[int] = []
    at_work: list[int] = []
    gone: list[int] = []
    sent, done = 0, 0
    while done < steps:
        if done == 2 and workers == 3:  # one dies
            gone.append(at_work.pop(0))
            workers = 2
        elif done == 4 and gone:  # that is noticed, and its step goes back
            queue.insert(0, gone.pop())
        elif sent < steps and len(queue) < 3:  # the coordinator sends ahead
            queue.append(sent)
            log.append(["sent", sent])
            sent += 1
        elif queue and len(at_work) < workers:
            at_work.append(queue.pop(0))
            log.append(["read", at_work[-1]])
        else:  # the first of them is slow
            index = int(draw.integers(1 if done % 4 else 0, len(at_work))) if at_work[1:] else 0
            log.append(["written", at_work.pop(index)])
            done += 1
    return {"log": log}


def _log_call(staleness: Callable[..., Any], inputs: Inputs) -> Plain:
    found = staleness([tuple(entry) for entry in inputs["log"]])
    if isinstance(found, dict):
        raise TypeError("a list was asked for, in the order of the steps; yours is a dict")
    return found


def _staleness(
    log: _Log, *, since: str = "read", first: bool = False, counted: str = "written"
) -> Plain:
    """Of each step, how often something was `counted` since another: "any", or what happened."""
    steps = sorted({step for _, step in log})
    found = []
    for step in steps:
        end = log.index(["written", step])
        begins = [at for at, entry in enumerate(log[:end]) if entry == [since, step]]
        between = log[begins[0] if first else begins[-1] : end]
        found.append(sum(counted in ("any", event) for event, _ in between))
    return found


def _in_order_of_writing(log: _Log) -> Plain:
    found = _staleness(log)
    return [found[step] for event, step in log if event == "written"]


def _log_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    return Verdict.of(
        expect_equal(
            "the staleness of each step", yours=outputs, expected=_staleness(inputs["log"])
        )
    )


def _of_log(**how: Any) -> Callable[[Inputs], Plain]:
    return lambda inputs: _staleness(inputs["log"], **how)


STALENESS_CHECKS = (
    Check(
        name="staleness",
        function="staleness",
        title="Staleness from a log",
        points=3,
        inputs=_log_inputs,
        call=_log_call,
        judge=_log_judge,
        hint="Go through the log once and count the updates. When a step reads, note the count; "
        "when it writes, the staleness is the count now less the one it noted.",
        revisit="Stale gradients",
        mistakes=(
            Mistake(
                "counted_at_send",
                "You count from when the step was sent. It waited in the queue then, and had read "
                "nothing yet: count from when it reads.",
                yields=_of_log(since="sent"),
            ),
            Mistake(
                "first_reading",
                "One step reads twice: the worker that read first has died. Its gradient is from "
                "the last reading.",
                yields=_of_log(first=True),
            ),
            Mistake(
                "counts_itself",
                "A step's own update is no staleness: alone, it has 0.",
                yields=lambda inputs: [each + 1 for each in _staleness(inputs["log"])],
            ),
            Mistake(
                "counts_readings",
                "What others read changes nothing. Count what they write.",
                yields=lambda inputs: [
                    each - 1 for each in _staleness(inputs["log"], counted="read")
                ],
            ),
            Mistake(
                "counts_lines",
                "These are lines of the log, whatever they say. Only what is written changes the "
                "weights.",
                when=lambda inputs, out: any(
                    np.array_equal(np.add(out, less), _staleness(inputs["log"], counted="any"))
                    for less in (0, 1)
                ),
            ),
            Mistake(
                "in_order_of_writing",
                "These are the right numbers, in the order in which steps were written. Give them "
                "in the order of the steps' numbers.",
                yields=lambda inputs: _in_order_of_writing(inputs["log"]),
            ),
        ),
    ),
)
