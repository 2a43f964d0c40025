"""A check of lesson 10 without a cluster: staleness from a log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Cost, Equal, Fault, Inputs, Plain

_Log = list[list[Any]]  # of an event and the number of its step


def _inputs(seed: int) -> Inputs:
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


def _call(staleness: Callable[..., Any], inputs: Inputs) -> Plain:
    answer = staleness([tuple(entry) for entry in inputs["log"]])
    if isinstance(answer, dict):
        raise TypeError("return a list in the order of the steps; yours is a dict")
    return {"staleness": answer}


def _reference(
    given: Inputs,
    *,
    since: str = "read",
    reading: int = -1,
    own: int = 0,
    in_order_of_writing: bool = False,
) -> Plain:
    """For each step, the updates from one of its readings to its own, which may count, too."""
    log: _Log = given["log"]
    written = [step for event, step in log if event == "written"]
    staleness = []
    for step in written if in_order_of_writing else sorted(written):
        end = log.index(["written", step])
        begin = [at for at, entry in enumerate(log[:end]) if entry == [since, step]][reading]
        staleness.append(own + sum(event == "written" for event, _ in log[begin:end]))
    return {"staleness": staleness}


STALENESS = Check(
    name="staleness",
    title="Staleness from a log",
    question="How many updates lie between a step's read and its write?",
    direction=(
        "Follow one worker through the log: note the count of updates when it reads, and again when"
        " it writes."
    ),
    cost=Cost.PURE,
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=(Equal("staleness", "the staleness of each step", points=3),),
    hint="Go through the log once and count the updates. If a step reads, note the count for it, "
    "again if it reads again. If it writes, its staleness is the count less the noted one.",
    revisit="Which weights?",
    mistakes=(
        Fault("counted_at_send", since="sent").feedback(
            "You counted from when the step was sent. It then waited in the queue and had read "
            "nothing, so its weights were younger than you counted. From which event on are a "
            "step's weights fixed?"
        ),
        Fault("first_reading", reading=0).feedback(
            "For the step that was done again, you counted from its first reading. That worker "
            "died, and its gradient was never written. Which reading does the written gradient "
            "come from?"
        ),
        Fault("counts_itself", own=1).feedback(
            "You counted each step's own update, too. Then a worker that trains alone would be "
            "stale. What is its staleness by definition?"
        ),
        Fault("in_order_of_writing", in_order_of_writing=True).feedback(
            "You listed the numbers in the order in which the steps were written. A slow step is "
            "then at the wrong place. At which place of the list does step 0 belong?"
        ),
    ),
)
