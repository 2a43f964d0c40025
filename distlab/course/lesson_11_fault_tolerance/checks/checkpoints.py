"""Checks of lesson 11: checkpoints that a kill leaves whole, and the newest of them."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from distlab.course.checks import (
    Check,
    Cost,
    Equal,
    Fault,
    Gate,
    Holds,
    Inputs,
    Observed,
    Plain,
    Raises,
    Then,
)
from distlab.course.checks.matchers import shown
from distlab.course.runs.process_calls import call_in_process

# --- save_atomically

_BYTES, _KILLED_AT = 900, 500
_WHOLE, _TORN = "whole", "other bytes"
_PATTERN = "step-*.ckpt"


def _name(step: int) -> str:
    return f"step-{step}.ckpt"


def _saves(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    first = int(draw.integers(6, 9))  # names of one digit, then of two
    steps = [int(step) for step in first + np.cumsum([0, *draw.integers(1, 3, size=4)])]
    steps.insert(-1, steps[-1] + 1)  # killed; the save after it is of an earlier step
    return {
        "steps": steps,
        "data": draw.integers(0, 256, size=(len(steps), _BYTES)).astype("uint8"),
        "keep": 2 + seed % 2,
    }


def _save_often(save: Callable[..., Any], inputs: Inputs) -> Plain:
    """What is in the folder after some saves, after a killed save, and after the save behind it."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)

        def save_in_process(numbers: list[int], most_bytes: int | None = None) -> Any:
            saves = [[inputs["steps"][n], inputs["data"][n]] for n in numbers]
            order = (str(folder), saves, inputs["keep"])
            return call_in_process(save, *order, job=_save_all, most_bytes=most_bytes)

        *before, last, other = range(len(inputs["steps"]))
        seen = save_in_process(list(before)).result or {"in place": False, "too early": False}
        result = {"before": _contents(folder, inputs), **seen}
        result["was killed"] = save_in_process([last], _KILLED_AT).code < 0
        result["killed"] = _contents(folder, inputs)
        save_in_process([other])
        return {**result, "again": _contents(folder, inputs)}


def _save_all(save: Callable[..., Any], folder: str, saves: list[Any], keep: int) -> Plain:
    """Saves, and returns what a kill between two lines would have shown: see `_Watch`."""
    watch = _Watch(Path(folder), keep)
    sys.addaudithook(watch.hear)
    for step, data in saves:
        save(Path(folder), step, data.tobytes(), keep)
    return watch.seen


class _Watch:
    """Notes what no single kill would show: there are too many places to be killed at."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.seen = {"in place": False, "too early": False}
        self._folder, self._keep = folder, keep

    def hear(self, event: str, given: tuple[Any, ...]) -> None:
        """As `sys.addaudithook` calls it, before each thing is done."""
        if event not in ("open", "os.remove") or isinstance(given[0], int):
            return
        path = Path(os.fsdecode(given[0]))
        if not fnmatch(path.name, _PATTERN):
            return
        if event == "open":
            self.seen["in place"] |= bool(given[2] & os.O_CREAT)
        elif path.exists():
            others = len(list(self._folder.glob(_PATTERN))) - 1
            self.seen["too early"] |= others < self._keep


def _contents(folder: Path, inputs: Inputs) -> dict[str, Plain]:
    """By name, what is in a file: the data of its step, of a different step, or torn data."""
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


def _saved(given: Inputs, *, order: Callable[[int], Any] = int) -> Plain:
    """The `keep` newest by the number in their names."""

    def newest(steps: list[int]) -> dict[str, str]:
        kept = sorted(steps, key=order)[-given["keep"] :]
        return dict.fromkeys(sorted(map(_name, kept)), _WHOLE)

    *before, _, other = given["steps"]
    older = newest(before)
    seen = {"in place": False, "too early": False, "was killed": True}
    return {"before": older, "killed": older, "again": newest([*before, other]), **seen}


def _torn(out: Plain) -> list[str]:
    """Names of checkpoints that a kill has left with a part of the data."""
    return [
        name
        for name, content in out["killed"].items()
        if fnmatch(name, _PATTERN) and content == _TORN and name not in out["before"]
    ]


def _is_lost(given: Inputs, out: Plain) -> bool:
    """Whether a checkpoint was removed that a kill would have needed."""
    older = _saved(given)["before"]
    return bool(out["too early"] or not older.items() <= out["killed"].items())


def _loss(given: Inputs, out: Plain) -> str:
    older = _saved(given)["before"]
    if not out["was killed"]:
        return f"no file got longer than {_KILLED_AT} bytes: were all {_BYTES} written?"
    if older.items() <= out["killed"].items():
        return "a checkpoint is removed before the new one has its name"
    return f"there were {list(older)}; after the kill there are {list(out['killed'])}"


def _others_left(out: Plain, when: str) -> bool:
    return any(not fnmatch(name, _PATTERN) for name in out[when])


_OFTEN = "saved often: the newest are there, whole, and nothing else"

SAVE = Check(
    name="save_atomically",
    function="save",
    title="Save so that a kill does no harm",
    question=(
        "What does a reader of the folder find if the process dies in the middle of your function?"
    ),
    direction=(
        "Go through your lines and stop after each one: is there a complete checkpoint under its "
        "final name at every moment?"
    ),
    cost=Cost.TENSORFLOW,  # it needs none, and takes as long: each save is a process
    inputs=_saves,
    call=_save_often,
    reference=_saved,
    criteria=(
        Gate(  # where nothing is saved, a kill does no harm
            Holds(
                _OFTEN,
                lambda given, out: _WHOLE in out["before"].values(),
                lambda given, out: (
                    f"no file holds its step's data; there is {shown(out['before'])}"
                ),
            )
        ),
        Equal("before", _OFTEN),
        Holds(
            "killed in the middle of a save: the older checkpoints are still there",
            lambda given, out: out["was killed"] and not _is_lost(given, out),
            _loss,
            points=1,
        ),
        Holds(
            "killed in the middle of a save: no unfinished file has a checkpoint's name",
            lambda given, out: not _torn(out) and not out["in place"],
            lambda given, out: (
                f"{', '.join(_torn(out))} is there, and holds a part of the data"
                if _torn(out)
                else "a checkpoint is opened under its own name and then written, not moved there "
                "whole"
            ),
            points=1.5,
        ),
        Equal("again", "saved again: the newest are there, whole, and nothing else", points=0.5),
    ),
    hint="Write to a different name in the same folder, then `replace`. Only then remove "
    "all but the `keep` newest, sorted by their number.",
    revisit="Killed while it saves",
    mistakes=(
        Observed(
            "unfinished_looks_finished",
            lambda given, out: _torn(out) and not set(_torn(out)) & {*map(_name, given["steps"])},
        ).feedback(
            "Your unfinished file has a name that matches step-*.ckpt. After a kill a script "
            "would restore from that half file. Which ending would keep it out of that "
            "pattern?"
        ),
        Observed("overwrites_in_place", lambda given, out: _torn(out) or out["in place"]).feedback(
            "You wrote a checkpoint under its final name, byte by byte. A kill in the middle "
            "leaves half a checkpoint that looks whole. Which call gives a finished file its "
            "name in one move? (A copy writes byte by byte, too.)"
        ),
        Observed(
            "removes_first",
            lambda given, out: out["before"] == _saved(given)["before"] and _is_lost(given, out),
        ).feedback(
            "You removed an older checkpoint before the new one was complete. A kill between "
            "the two leaves one checkpoint less, or none. In which order are you safe at every "
            "moment?"
        ),
        Fault("sorts_as_text", order=str).feedback(
            "You sorted the names as text, where step-9 comes after step-10. So you removed "
            "the wrong checkpoints. By what should they be sorted?"
        ),
        Observed(
            "leaves_what_a_kill_left",
            lambda given, out: _others_left(out, "again") and not _others_left(out, "before"),
        ).feedback(
            "A killed save left its unfinished file, and your next save did not remove it. So "
            "each kill leaves one file more. Which name would the next save overwrite by "
            "itself?"
        ),
    ),
)

# --- newest_checkpoint

_COPIED = "step-10.ckpt"  # neither the last as text nor the highest nor the lowest number
_UNFINISHED, _NOTES = "step-20.ckpt.unfinished", "notes.txt"


def _folder_names(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    names = [f"step-{step}.ckpt" for step in range(8, int(draw.integers(11, 14)) + 1)]
    # Somebody has copied them: an old one is the last that was written.
    others = [*draw.permutation([name for name in names if name != _COPIED]), _UNFINISHED, _NOTES]
    return {"names": [str(name) for name in (*others, _COPIED)], "newest": names[-1]}


def _look_for_newest(newest: Callable[..., Any], inputs: Inputs) -> Plain:
    with tempfile.TemporaryDirectory() as place:
        folder, empty = Path(place, "checkpoints"), Path(place, "empty")
        folder.mkdir()
        empty.mkdir()
        for seconds, name in enumerate(inputs["names"]):
            (folder / name).write_bytes(b"data")
            os.utime(folder / name, (1e9 + seconds, 1e9 + seconds))
        return {"found": _name_of(newest(folder)), "none": _name_of(newest(empty))}


def _name_of(answer: Any) -> Plain:
    """A file's name, of a path or a text; anything else as it is."""
    if isinstance(answer, list | tuple):
        return [_name_of(path) for path in answer]
    return Path(answer).name if answer and isinstance(answer, str | os.PathLike) else answer


NEWEST = Check(
    name="newest_checkpoint",
    function="newest",
    title="Find the newest",
    question="Which of two names does your function call newer, `step-9.ckpt` or `step-10.ckpt`?",
    direction=(
        "Look at which files your function considers, and at what it compares: texts or numbers."
    ),
    cost=Cost.PURE,
    inputs=_folder_names,
    call=_look_for_newest,
    reference=lambda given, *, found="": {"found": found or given["newest"], "none": None},
    criteria=(
        Equal("found", "the newest checkpoint", points=1.5),
        Then(Equal("none", "in an empty folder", points=0.5)),
    ),
    hint="Take max over folder.glob('step-*.ckpt'), with the number in the name as key, and "
    "default=None.",
    revisit="Killed while it saves",
    mistakes=(
        Raises(
            "reads_every_name",
            r"invalid literal for int|could not convert string|'NoneType' object has no "
            r"attribute 'group'",
        ).feedback(
            "You looked for a number in the name of every file. The folder also has files "
            "without one, such as what a killed save left. Which files match step-*.ckpt?"
        ),
        Raises(
            "none_there", r"IndexError|is an empty sequence|iterable argument is empty"
        ).feedback(
            "Your function raised an error in an empty folder. At the first start of every "
            "training there is no checkpoint yet. What should it return then, and which "
            "argument of `max` gives it?"
        ),
        Fault("picks_unfinished", found=_UNFINISHED)
        .or_with(found=_NOTES)
        .feedback(
            "You returned a file that is no whole checkpoint: a save was killed while it wrote "
            "it. A restore would fail, or read half of the data. How does the end of its name "
            "tell?"
        ),
        Fault("by_time", found=_COPIED).feedback(
            "You returned the file that was written last. It is an old checkpoint that was "
            "copied later, and clocks can be wrong, too. Where else does a checkpoint say its "
            "step?"
        ),
        Fault("sorts_as_text", found="step-9.ckpt").feedback(
            "You compared the names as text, where step-9 comes after step-10. So you would "
            "resume from an older step. What do you have to compare?"
        ),
    ),
)
