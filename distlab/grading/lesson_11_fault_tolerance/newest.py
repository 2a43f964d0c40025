"""A check of lesson 11: find the newest checkpoint."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_equal

_COPIED = "step-10.ckpt"  # neither the last as text nor the highest nor the lowest number


def _newest_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    names = [f"step-{step}.ckpt" for step in range(8, int(draw.integers(11, 14)) + 1)]
    others = ["step-20.ckpt.unfinished", "notes.txt"]
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
        return {
            "found": _name_of(newest(folder)),
            "in an empty folder": _name_of(newest(empty)),
        }


def _name_of(found: Any) -> Plain:
    """A file's name, of a path or a text; anything else as it is."""
    if isinstance(found, list | tuple):
        return [_name_of(one) for one in found]
    return Path(found).name if found and isinstance(found, str | os.PathLike) else found


def _newest_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    found = expect_equal(
        "the newest checkpoint", yours=outputs["found"], expected=inputs["newest"], weight=2
    )
    if outputs["found"] is None:  # who never finds one is not right about an empty folder
        return Verdict.of(found)
    nothing = outputs["in an empty folder"]
    return Verdict.of(found, expect_equal("in an empty folder", yours=nothing, expected=None))


NEWEST_CHECKS = (
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
                "reads_every_name",
                "There are other files in the folder, also what a killed save has left, and their "
                "names hold no number where you look for one. Take only what matches step-*.ckpt.",
                error=r"invalid literal for int|could not convert string|'NoneType' object has no "
                r"attribute 'group'",
            ),
            Mistake(
                "none_there",
                "In the empty folder there is nothing to take the newest of. Then the answer is "
                "None: max(..., default=None) says so.",
                error=r"IndexError|is an empty sequence|iterable argument is empty",
            ),
            Mistake(
                "number_for_path",
                "That is the right step, and the file was asked for: its `Path`.",
                when=lambda inputs, out: f"step-{out['found']}.ckpt" == inputs["newest"],
            ),
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
                when=lambda _, out: out["found"] == "step-9.ckpt",
            ),
            Mistake(
                "oldest",
                "That is the oldest: the newest is that of the highest step.",
                when=lambda _, out: out["found"] == "step-8.ckpt",
            ),
        ),
    ),
)
