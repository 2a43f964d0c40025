"""A check of lesson 11: a loop that leaves when it is told to."""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_equal, expect_true
from distlab.grading.processes import call_in_process


def _leave_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    steps = int(draw.integers(6, 12))
    # Sometimes in the last step: nobody comes by once more to look.
    return {"steps": steps, "told in": int(draw.integers(1, steps - 2)) if seed % 3 else steps - 1}


def _leave_call(run: Callable[..., Any], inputs: Inputs) -> Plain:
    return {
        "told": _run(run, inputs["steps"], inputs["told in"]),
        "never told": _run(run, inputs["steps"], -1),
    }


def _run(run: Callable[..., Any], steps: int, told_in: int) -> Plain:
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder, "note")
        ended = call_in_process(run, steps, told_in, str(note), job=_tell)
        return {"code": ended.code, **json.loads(note.read_text())}


def _tell(run: Callable[..., Any], steps: int, told_in: int, note: str) -> None:
    """In a process of its own: each step adds to both halves, the signal comes in between."""
    halves, saved = [0, 0], list[list[int]]()

    def write() -> None:
        Path(note).write_text(json.dumps({"halves": halves, "saved": saved}))

    def do_step(step: int) -> None:
        halves[0] += 1
        if step == told_in:
            signal.raise_signal(signal.SIGTERM)
        halves[1] += 1
        write()

    def save() -> None:
        saved.append(list(halves))
        write()

    write()
    run(steps, do_step, save)


def _leave_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    done = inputs["told in"] + 1
    told, never = outputs["told"], outputs["never told"]
    when_told = (
        expect_equal(
            "told in the middle of a step: that step is done, and no other",
            yours=told["halves"],
            expected=[done, done],
        ),
        expect_equal(
            "saved once, and a whole step", yours=told["saved"], expected=[[done, done]], weight=2
        ),
        expect_equal("the exit code", yours=_exit_code(told), expected=143),
    )
    if not any(criterion.passed for criterion in when_told):
        return Verdict.of(*when_told)  # a loop that cannot leave earns nothing for its steps
    return Verdict.of(
        *when_told,
        expect_equal(
            "never told: all steps are done, and exit code 0",
            yours=[*never["halves"], never["code"]],
            expected=[inputs["steps"], inputs["steps"], 0],
        ),
        expect_true(
            "never told: nothing is saved",
            not never["saved"],
            message="`save` was called although nobody told the process to leave",
        ),
    )


def _exit_code(told: Plain) -> int:
    """As a shell says it: who saves, and then ends by the signal itself, has 143 there too."""
    is_by_signal = told["code"] == -signal.SIGTERM and told["saved"]
    return 128 + signal.SIGTERM if is_by_signal else int(told["code"])


LEAVE_CHECKS = (
    Check(
        name="leave_when_told",
        function="run_until_told",
        title="Leave when told",
        points=3,
        inputs=_leave_inputs,
        call=_leave_call,
        judge=_leave_judge,
        hint="Let the handler append to a list, and nothing else. After each step look at it. "
        "If there is something in it: save, then sys.exit(143).",
        revisit="Asked to leave: SIGTERM",
        mistakes=(
            Mistake(
                "saves_inside_handler",
                "What you save is half of a step: the handler, and an error that it raises, come "
                "in the middle of one. Only take a note there, and save where a step is whole.",
                when=lambda _, out: any(one != two for one, two in out["told"]["saved"]),
            ),
            Mistake(
                "not_heard",
                "Nobody listens to the signal, so the system ends the process, without a save.",
                when=lambda _, out: (
                    out["told"]["code"] == -signal.SIGTERM and not out["told"]["saved"]
                ),
            ),
            Mistake(
                "looks_too_late",
                "Told in the last step, your loop never looks again: it ends as if it had not been "
                "told. Look after each step, not before the next one.",
                when=lambda inputs, out: (
                    out["told"]["halves"] == [inputs["steps"]] * 2
                    and inputs["told in"] == inputs["steps"] - 1
                    and not out["told"]["saved"]
                ),
            ),
            Mistake(
                "goes_on",
                "After the signal training goes on, to its end: after some seconds comes SIGKILL. "
                "Is the note read, and is it the same one that the handler takes?",
                when=lambda inputs, out: (
                    out["told"]["halves"] == [inputs["steps"]] * 2 and not out["told"]["saved"]
                ),
            ),
            Mistake(
                "leaves_in_mid_step",
                "The process leaves in the middle of a step, without a save.",
                when=lambda inputs, out: out["told"]["halves"][1] <= inputs["told in"],
            ),
            Mistake(
                "leaves_without_saving",
                "The process leaves where a step is whole, and saves nothing.",
                when=lambda _, out: not out["told"]["saved"],
            ),
            Mistake(
                "saves_more_than_once",
                "A save costs time: one is enough, when the process was told to leave.",
                when=lambda _, out: len(out["told"]["saved"]) > 1,
            ),
            Mistake(
                "exit_zero",
                "It is saved, but the exit code says that the training is done, or that it failed. "
                "143 says: start me again.",
                when=lambda _, out: _exit_code(out["told"]) != 143,
            ),
        ),
    ),
)
