"""Two checks of lesson 11: save so that a kill does no harm, and find the newest checkpoint."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_equal, expect_true
from distlab.grading.processes import call_in_process

# --- save_atomically ------------------------------------------------------------------------

_BYTES, _KILLED_AT = 900, 500
_TORN = -1  # a file that holds what nobody gave


def _name(step: int) -> str:
    return f"step-{step}.ckpt"


def _save_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    first = int(draw.integers(6, 9))  # names of one digit, then of two
    steps = first + np.cumsum([0, *draw.integers(1, 3, size=4)])
    return {
        "steps": [int(step) for step in steps],
        "data": draw.integers(0, 256, size=(len(steps), _BYTES)).astype("uint8"),
        "keep": 2 + seed % 2,
    }


def _save_call(save: Callable[..., Any], inputs: Inputs) -> Plain:
    steps, keep = inputs["steps"], inputs["keep"]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)

        def save_in_process(numbers: list[int], most_bytes: int | None = None) -> int:
            saves = [[steps[n], inputs["data"][n]] for n in numbers]
            order = (str(folder), saves, keep)
            return call_in_process(save, *order, job=_save_all, most_bytes=most_bytes).code

        *before, last = range(len(steps))
        save_in_process(list(before))
        found = {"before": _look(folder, inputs)}
        killed = save_in_process([last], _KILLED_AT) < 0
        found |= {"killed": _look(folder, inputs)}
        save_in_process([last])
        return {**found, "again": _look(folder, inputs), "was killed": killed}


def _save_all(save: Callable[..., Any], folder: str, saves: list[Any], keep: int) -> None:
    for step, data in saves:
        save(Path(folder), step, data.tobytes(), keep)


def _look(folder: Path, inputs: Inputs) -> dict[str, Plain]:
    """By name, of which step the data in a file is."""
    by_data = {
        data.tobytes(): step for step, data in zip(inputs["steps"], inputs["data"], strict=True)
    }
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {
        str(file.relative_to(folder)): by_data.get(file.read_bytes(), _TORN)
        for file in sorted(files)
    }


def _expected(steps: list[int]) -> dict[str, int]:
    return {_name(step): step for step in sorted(steps, key=_name)}


def _save_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    steps, keep = inputs["steps"], inputs["keep"]
    older = _expected(steps[:-1][-keep:])
    killed = outputs["killed"]
    return Verdict.of(
        expect_equal(
            "saved often: the newest are there, whole, and nothing else",
            yours=outputs["before"],
            expected=older,
        ),
        expect_true(
            "killed in the middle of a write: what was there is still there",
            outputs["was killed"] and older.items() <= killed.items(),
            message=f"there were {list(older)}; after the kill there are {list(killed)}"
            if outputs["was killed"]
            else f"no file got longer than {_KILLED_AT} bytes: were all {_BYTES} written?",
        ),
        expect_true(
            "killed in the middle of a write: nothing unfinished bears a checkpoint's name",
            _has_no_torn(inputs, killed),
            message=f"{_name(steps[-1])} is there, and holds a part of the data",
            weight=2,
        ),
        expect_equal(
            "saved again: the newest are there, whole, and nothing else",
            yours=outputs["again"],
            expected=_expected(steps[-keep:]),
        ),
    )


def _has_no_torn(inputs: Inputs, found: Plain) -> bool:
    names = {_name(step) for step in inputs["steps"]}
    return bool(names & found.keys()) and all(found[n] != _TORN for n in names & found.keys())


def _lacks_older(inputs: Inputs, outputs: Plain) -> bool:
    """Before the kill all was well, and after it a whole one is missing."""
    older = _expected(inputs["steps"][:-1][-inputs["keep"] :])
    was_well = bool(outputs["before"] == older)
    return was_well and not older.items() <= outputs["killed"].items()


# --- newest_checkpoint ----------------------------------------------------------------------


_COPIED = _name(10)  # as text the last is step-9


def _newest_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    names = [_name(step) for step in range(9, int(draw.integers(11, 14)) + 1)]
    others = [f"{_name(20)}.unfinished", "notes.txt"]
    # Somebody has copied them: an old one is the last that was written.
    order = [*draw.permutation([name for name in names if name != _COPIED]), *others, _COPIED]
    return {"names": [str(name) for name in order], "newest": names[-1]}


def _newest_call(newest: Callable[..., Any], inputs: Inputs) -> Plain:
    with tempfile.TemporaryDirectory() as place:
        folder, empty = Path(place, "checkpoints"), Path(place, "empty")
        folder.mkdir()
        empty.mkdir()
        for seconds, name in enumerate(inputs["names"]):
            (folder / name).write_bytes(b"data")
            os.utime(folder / name, (1e9 + seconds, 1e9 + seconds))
        found, nothing = newest(folder), newest(empty)
    return {
        "found": None if found is None else Path(found).name,
        "in an empty folder": None if nothing is None else str(nothing),
    }


def _newest_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    return Verdict.of(
        expect_equal(
            "the newest checkpoint", yours=outputs["found"], expected=inputs["newest"], weight=2
        ),
        expect_equal("in an empty folder", yours=outputs["in an empty folder"], expected=None),
    )


FILE_CHECKS = (
    Check(
        name="save_atomically",
        function="save",
        title="Save, and be killed meanwhile",
        points=4,
        inputs=_save_inputs,
        call=_save_call,
        judge=_save_judge,
        hint="Write to another name in the same folder, then `replace` it, and only then remove: "
        "all but the `keep` newest, by their number and not by their text.",
        revisit="Killed while it saves",
        mistakes=(
            Mistake(
                "overwrites_in_place",
                "Killed in the middle of a write, your save leaves a part of a checkpoint under "
                "the name of a whole one. Write beside it, and give the name last.",
                when=lambda inputs, out: not _has_no_torn(inputs, out["killed"]),
            ),
            Mistake(
                "removes_first",
                "An older checkpoint is gone before the new one is there. Killed in between, you "
                "have one less, or none. Remove last.",
                when=_lacks_older,
            ),
            Mistake(
                "keeps_all",
                "Nothing is ever removed: a long training fills the disk.",
                when=lambda inputs, out: len(out["before"]) == len(inputs["steps"]) - 1,
            ),
            Mistake(
                "sorts_as_text",
                "The wrong ones are removed: as text, step-9 comes after step-10.",
                when=lambda inputs, out: (
                    set(out["before"])
                    == set(sorted(map(_name, inputs["steps"][:-1]))[-inputs["keep"] :])
                ),
            ),
            Mistake(
                "leaves_unfinished",
                "Files are left that are no checkpoints. `replace` moves a file: nothing stays "
                "behind.",
                when=lambda inputs, out: (
                    _expected(inputs["steps"][-inputs["keep"] :]).items() < out["again"].items()
                ),
            ),
        ),
    ),
    Check(
        name="newest_checkpoint",
        function="newest",
        title="Find the newest",
        points=2,
        inputs=_newest_inputs,
        call=_newest_call,
        judge=_newest_judge,
        hint="folder.glob('step-*.ckpt'), and max with key=: the number in the name. Without any, "
        "max(..., default=None).",
        revisit="Killed while it saves",
        mistakes=(
            Mistake(
                "picks_unfinished",
                "That is no whole checkpoint: a save was killed while it wrote it. Its name says "
                "so, as long as you look at the end of the name.",
                when=lambda _, out: bool(out["found"]) and not out["found"].endswith(".ckpt"),
            ),
            Mistake(
                "by_time",
                "That is the file that was written last, and an old checkpoint: files are copied, "
                "and clocks are set. The step is in the name.",
                when=lambda _, out: out["found"] == _COPIED,
            ),
            Mistake(
                "sorts_as_text",
                "As text, step-9 comes after step-10. Compare the numbers.",
                when=lambda _, out: out["found"] == _name(9),
            ),
        ),
    ),
)
