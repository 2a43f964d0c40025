"""Checks of lesson 11: a training's whole state, saves that a kill leaves whole, and the newest."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from distlab.course.checks import (
    Check,
    Close,
    Cost,
    Criterion,
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
from distlab.course.checks.matchers import same_plain, shown
from distlab.course.runs.process_calls import call_in_process

# --- whole_state: every part of a training, restored in a new one

_STEPS, _BATCH = 10, 4


@dataclass(frozen=True)
class AsUndisturbed(Close):
    """Equal to the bit to an undisturbed training, whose dropout masks no reference draws."""

    of: Callable[[Inputs, Plain], Plain] = field(kw_only=True)
    atol: float = field(default=0, kw_only=True)

    def judge(self, inputs: Inputs, outputs: Plain, expected: Plain) -> Criterion:
        """Compares with the undisturbed training instead of the reference."""
        return super().judge(inputs, outputs, self.of(inputs, outputs))


def _state_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    return {
        "draw": seed,
        "x": draw.normal(size=(_STEPS * _BATCH, 5)).astype("float32"),
        "y": draw.integers(0, 3, size=_STEPS * _BATCH).astype("int32"),
        "kernel": draw.normal(size=(5, 3)).astype("float32"),
        "stopped_at": int(draw.integers(3, _STEPS - 2)),
        "dropouts": 1 + seed % 2,
        "seed": int(draw.integers(1000)),
    }


class _Training:
    """Softmax regression behind dropout, by Adam; eager, so that a check is quick."""

    def __init__(self, inputs: Inputs, *, new: bool) -> None:
        import keras
        import tensorflow as tf

        # A new process: what is not restored begins elsewhere.
        seeds = [inputs["seed"] + 10 * number + int(new) for number in range(inputs["dropouts"])]
        # Named as they are in every process: what goes by names must find them again.
        layers = [
            keras.layers.Dropout(0.4, seed=seed, name=f"dropout_{number}")
            for number, seed in enumerate(seeds)
        ]
        # Some of its weights are not trained: no optimizer holds them.
        norm, dense = keras.layers.BatchNormalization(name="norm"), keras.layers.Dense(3)
        self.model = keras.Sequential([keras.Input((5,)), *layers, norm, dense])
        dense.set_weights([inputs["kernel"] * (0.5 if new else 1), np.zeros(3)])
        self.optimizer = keras.optimizers.Adam(0.1)
        self.optimizer.build(self.model.trainable_variables)
        self.step = tf.Variable(0, dtype=tf.int64)
        self._states = [layer.seed_generator.state for layer in layers]
        self._inputs = inputs

    def run(self, until: int) -> None:
        import keras
        import tensorflow as tf

        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        while (step := int(self.step.numpy())) < until:
            x, y = (self._inputs[name][step * _BATCH :][:_BATCH] for name in ("x", "y"))
            with tf.GradientTape() as tape:
                loss = loss_of(y, self.model(x, training=True))
            self.optimizer.apply(tape.gradient(loss, self.model.trainable_variables))
            self.step.assign_add(1)

    def weights(self) -> Any:
        return np.concatenate([weight.ravel() for weight in self.model.get_weights()])

    def state(self) -> dict[str, Plain]:
        iterations = self.optimizer.iterations
        others = [v for v in self.optimizer.variables if v is not iterations]
        return {
            "weights": self.weights(),
            "optimizer": np.concatenate([np.ravel(variable.numpy()) for variable in others]),
            "iterations": int(iterations.numpy()),
            "step": int(self.step.numpy()),
            "seeds": np.concatenate([np.ravel(state.numpy()) for state in self._states]),
        }


def _state_call(whole_state: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    def checkpoint_of(training: _Training) -> Any:
        checkpoint = whole_state(training.model, training.optimizer, training.step)
        if not isinstance(checkpoint, tf.train.Checkpoint):
            raise TypeError(f"a tf.train.Checkpoint was asked for; yours is {checkpoint!r}"[:200])
        return checkpoint

    stopped, fresh = _Training(inputs, new=False), _Training(inputs, new=True)
    stopped.run(inputs["stopped_at"])
    with tempfile.TemporaryDirectory() as folder:
        path = checkpoint_of(stopped).write(str(Path(folder, "all")))
        checkpoint_of(fresh).read(path).expect_partial()
    restored = fresh.state()
    # A place that is lost sends the loop elsewhere; the steps to do are as many.
    fresh.run(restored["step"] + _STEPS - inputs["stopped_at"])
    return {**restored, "at the end": fresh.weights()}


@functools.lru_cache(maxsize=4)
def _undisturbed(draw: int) -> dict[str, Plain]:
    """All of a training that was not stopped, by the seed of its draw."""
    inputs = _state_inputs(draw)
    training = _Training(inputs, new=False)
    training.run(inputs["stopped_at"])
    state = training.state()
    training.run(_STEPS)
    return {**state, "at the end": training.weights()}


def _restored(key: str, label: str) -> AsUndisturbed:
    return AsUndisturbed(key, label, points=0.5, of=lambda given, _: _undisturbed(given["draw"]))


def _state_is_lost(*names: str) -> Callable[[Inputs, Plain], bool]:
    def when(given: Inputs, out: Plain) -> bool:
        right = _undisturbed(given["draw"])
        return any(not same_plain(out[name], right[name]) for name in names)

    return when


STATE = Check(
    name="whole_state",
    title="All that a training consists of",
    question="What does a resumed run need that is not in the weights?",
    direction=(
        "List everything that changes in a step: in the model, in the optimizer, in the random "
        "numbers, and in your loop."
    ),
    cost=Cost.TENSORFLOW,
    inputs=_state_inputs,
    call=_state_call,
    criteria=(
        _restored("weights", "the weights, restored"),
        _restored("optimizer", "what Adam remembers, restored"),
        _restored("iterations", "the steps that Adam has counted"),
        _restored("step", "the place in the data"),
        _restored("seeds", "the state of the seeds"),
        _restored("at the end", "the weights at the end, bit for bit"),
    ),
    hint="tf.train.Checkpoint takes any number of parts by name. Save four: model, "
    "optimizer, step, and a list of the `seed_generator.state` of each layer that has "
    "a seed generator.",
    revisit="What a training run consists of",
    mistakes=(
        Observed("no_model", _state_is_lost("weights")).feedback(
            "You did not save all weights of the model. The optimizer holds only those that it "
            "trains, and BatchNormalization has others. Which object holds all of them?"
        ),
        Observed("weights_only", _state_is_lost("optimizer", "iterations")).feedback(
            "You did not save what Adam remembers. So after a restart it takes steps of the "
            "full rate, and the loss jumps. Which of your three arguments holds it?"
        ),
        Observed("no_data_position", _state_is_lost("step")).feedback(
            "You did not save the place in the data. So the restarted training does not know "
            "which batch comes next. Which of your three arguments says it?"
        ),
        Observed("seed_state_lost", _state_is_lost("seeds")).feedback(
            "You did not save the seed state of every dropout layer. So dropout draws its "
            "first masks again. It is not saved with the model: where does each layer keep it?"
        ),
    ),
)


# --- save_atomically: checkpoints that a kill leaves whole

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
    """Returns the folder's contents after some saves, after a killed save, and after one more."""
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


def _saved(given: Inputs) -> Plain:
    """The `keep` newest by the number in their names."""

    def newest(steps: list[int]) -> dict[str, str]:
        kept = sorted(steps)[-given["keep"] :]
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


def _save_is_lost(given: Inputs, out: Plain) -> bool:
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
            lambda given, out: out["was killed"] and not _save_is_lost(given, out),
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
            lambda given, out: (
                out["before"] == _saved(given)["before"] and _save_is_lost(given, out)
            ),
        ).feedback(
            "You removed an older checkpoint before the new one was complete. A kill between "
            "the two leaves one checkpoint less, or none. In which order are you safe at every "
            "moment?"
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

# --- newest_checkpoint: the newest by its number, among other files

_COPIED = "step-10.ckpt"  # neither the last as text nor the highest nor the lowest number
_UNFINISHED, _NOTES = "step-20.ckpt.unfinished", "notes.txt"


def _folder_names(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    names = [f"step-{step}.ckpt" for step in range(8, int(draw.integers(11, 14)) + 1)]
    # They have been copied: an old one is the last that was written.
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
