"""A check of lesson 11: save so that a kill does no harm."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_equal, expect_true
from distlab.grading.processes import call_in_process

_BYTES, _KILLED_AT = 900, 500
_WHOLE, _TORN = "whole", "other bytes"
_PATTERN = "step-*.ckpt"


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

        def save_in_process(numbers: list[int], most_bytes: int | None = None) -> Any:
            saves = [[steps[n], inputs["data"][n]] for n in numbers]
            order = (str(folder), saves, keep)
            return call_in_process(save, *order, job=_save_all, most_bytes=most_bytes)

        *before, last = range(len(steps))
        seen = save_in_process(list(before)).result
        found = {"before": _look(folder, inputs)}
        killed = save_in_process([last], _KILLED_AT).code < 0
        found |= {"killed": _look(folder, inputs)}
        save_in_process([last])
        return {**found, "again": _look(folder, inputs), "was killed": killed, "seen": seen}


def _save_all(save: Callable[..., Any], folder: str, saves: list[Any], keep: int) -> Plain:
    """Saves, and returns what a kill between two lines would have found: see `_Watch`."""
    watch = _Watch(Path(folder), keep)
    sys.addaudithook(watch.hear)
    for step, data in saves:
        save(Path(folder), step, data.tobytes(), keep)
    return watch.seen


class _Watch:
    """Notes what no single kill would show: there are too many places to be killed at."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.seen = {"wrote under the name": False, "removed too early": False}
        self._folder, self._keep = folder, keep

    def hear(self, event: str, given: tuple[Any, ...]) -> None:
        """As `sys.addaudithook` calls it, before each thing is done."""
        if event not in ("open", "os.remove") or isinstance(given[0], int):
            return
        path = Path(os.fsdecode(given[0]))
        if not fnmatch(path.name, _PATTERN):
            return
        if event == "open":
            self.seen["wrote under the name"] |= bool(given[2] & os.O_CREAT)
        elif path.exists():
            others = len(list(self._folder.glob(_PATTERN))) - 1
            self.seen["removed too early"] |= others < self._keep


def _look(folder: Path, inputs: Inputs) -> dict[str, Plain]:
    """By name, what is in a file: the data of the step in its name, or of another, or torn."""
    by_data = {
        data.tobytes(): step for step, data in zip(inputs["steps"], inputs["data"], strict=True)
    }

    def content(file: Path) -> str:
        step = by_data.get(file.read_bytes())
        if step is None:
            return _TORN
        return _WHOLE if file.name == _name(step) else f"data of step {step}"

    files = [file for file in folder.rglob("*") if file.is_file()]
    return {str(file.relative_to(folder)): content(file) for file in sorted(files)}


def _expected(steps: list[int]) -> dict[str, str]:
    return {_name(step): _WHOLE for step in sorted(steps, key=_name)}


def _older(inputs: Inputs) -> dict[str, str]:
    """What is there before the last save."""
    return _expected(inputs["steps"][:-1][-inputs["keep"] :])


def _checkpoints(found: Plain) -> dict[str, str]:
    return {name: content for name, content in found.items() if fnmatch(name, _PATTERN)}


def _torn(outputs: Plain) -> list[str]:
    """Names of checkpoints that a kill has left with a part of the data."""
    return [name for name, content in _checkpoints(outputs["killed"]).items() if content == _TORN]


def _in_place(outputs: Plain) -> bool:
    return bool(outputs["seen"] and outputs["seen"]["wrote under the name"])


def _too_early(outputs: Plain) -> bool:
    return bool(outputs["seen"] and outputs["seen"]["removed too early"])


def _save_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    older, killed = _older(inputs), outputs["killed"]
    often = expect_equal(
        "saved often: the newest are there, whole, and nothing else",
        yours=outputs["before"],
        expected=older,
    )
    if _WHOLE not in outputs["before"].values():
        return Verdict.of(often)  # where nothing is saved, a kill does no harm
    gone = f"there were {list(older)}; after the kill there are {list(killed)}"
    if not outputs["was killed"]:
        gone = f"no file got longer than {_KILLED_AT} bytes: were all {_BYTES} written?"
    elif older.items() <= killed.items():
        gone = "a checkpoint is removed before the new one has its name"
    torn = "a checkpoint is opened under its own name and then written, not moved there whole"
    if _torn(outputs):
        torn = f"{', '.join(_torn(outputs))} is there, and holds a part of the data"
    return Verdict.of(
        often,
        expect_true(
            "killed in the middle of a save: what was there is still there",
            outputs["was killed"] and older.items() <= killed.items() and not _too_early(outputs),
            message=gone,
        ),
        expect_true(
            "killed in the middle of a save: nothing unfinished bears a checkpoint's name",
            not _torn(outputs) and not _in_place(outputs),
            message=torn,
            weight=2,
        ),
        expect_equal(
            "saved again: the newest are there, whole, and nothing else",
            yours=outputs["again"],
            expected=_expected(inputs["steps"][-inputs["keep"] :]),
        ),
    )


def _other_bytes(inputs: Inputs, outputs: Plain) -> bool:
    before = _checkpoints(outputs["before"])
    return bool(before) and set(before.values()) == {_TORN}


def _other_names(inputs: Inputs, outputs: Plain) -> bool:
    contents = list(outputs["before"].values())
    is_there = any(content.startswith("data of") for content in contents)
    return is_there and _WHOLE not in contents


def _lacks_older(inputs: Inputs, outputs: Plain) -> bool:
    """Before the kill all was well, and after it, or in between, a whole one is missing."""
    older = _older(inputs)
    is_lost = _too_early(outputs) or not older.items() <= outputs["killed"].items()
    return bool(outputs["before"] == older) and is_lost


def _keeps(more: bool) -> Callable[[Inputs, Plain], bool]:
    """Whether too many checkpoints are left, or too few, as often as it was saved."""

    def when(inputs: Inputs, outputs: Plain) -> bool:
        counts = [len(_checkpoints(outputs[name])) for name in ("before", "again")]
        return bool(max(counts) > inputs["keep"] if more else max(counts) < inputs["keep"])

    return when


def _others_left(outputs: Plain, when: str) -> bool:
    return any(not fnmatch(name, _PATTERN) for name in outputs[when])


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
                "nothing_saved",
                "There is no file in `folder`. It is a Path: folder / name is one in it.",
                when=lambda _, out: not out["before"],
            ),
            Mistake(
                "other_bytes",
                "The names are right, and the files do not hold what was given. `data` are bytes: "
                "write them as they are.",
                when=_other_bytes,
            ),
            Mistake(
                "other_names",
                "The data is there, under other names. That of step 12 is step-12.ckpt.",
                when=_other_names,
            ),
            Mistake(
                "unfinished_looks_finished",
                "What is unfinished has a name that matches step-*.ckpt too, and whoever looks for "
                "checkpoints takes it. Give it another ending.",
                when=lambda inputs, out: (
                    bool(_torn(out)) and not set(_torn(out)) & set(map(_name, inputs["steps"]))
                ),
            ),
            Mistake(
                "overwrites_in_place",
                "Killed in the middle of a write, your save leaves a part of a checkpoint under "
                "the name of a whole one. Write beside it, and give the name last: `replace` moves "
                "a whole file, and a copy is one more write.",
                when=lambda _, out: bool(_torn(out)) or _in_place(out),
            ),
            Mistake(
                "removes_first",
                "An older checkpoint is gone before the new one is there. Killed in between, you "
                "have one less, or none. Remove last.",
                when=_lacks_older,
            ),
            Mistake(
                "keeps_too_many",
                "More than `keep` checkpoints are left: a long training fills the disk. Steps are "
                "not equally far apart, and a new process remembers nothing: look into the folder.",
                when=_keeps(more=True),
            ),
            Mistake(
                "keeps_too_few",
                "Fewer than `keep` checkpoints are left. [:-keep] is all but the last `keep` of "
                "them, and nothing where there are not so many.",
                when=_keeps(more=False),
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
                when=lambda _, out: _others_left(out, "before"),
            ),
            Mistake(
                "leaves_what_a_kill_left",
                "A killed save has left its unfinished file, and the next save leaves it there: "
                "each kill, one more. Give it a name that the next one writes over, or remove it.",
                when=lambda _, out: _others_left(out, "again"),
            ),
        ),
    ),
)
