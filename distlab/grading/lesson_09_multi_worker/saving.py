"""A check of lesson 09: save from many workers."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.clusters import WORKERS, call_on_workers
from distlab.grading.comparing import expect_close, expect_true

# A worker that has nothing to train takes milliseconds; the rest is for a busy machine.
SHORT_SECS = 2.5
ONE_HAS_FINISHED = r"worker:0 still waits here; worker:1 has finished"


def _save_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    return {
        "kernel": draw.normal(size=3).astype("float32"),
        "seen": draw.integers(1, 50, size=WORKERS).astype("float32"),
    }


def _save_call(save: Callable[..., Any], inputs: Inputs) -> Plain:
    with tempfile.TemporaryDirectory() as folder:
        workers = call_on_workers(_save_on_worker, save, inputs, folder, timeout_secs=SHORT_SECS)
        return {"places": [worker["place"] for worker in workers], **workers[0]["after"]}


def _save_on_worker(strategy: Any, save: Callable[..., Any], inputs: Inputs, folder: str) -> Plain:
    import tensorflow as tf

    index = strategy.cluster_resolver.task_id
    with strategy.scope():
        kernel = tf.Variable(inputs["kernel"])
        # As Keras makes its metrics: each worker counts, and to read it all add up.
        seen = tf.Variable(
            0.0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
    strategy.run(lambda: seen.assign_add(inputs["seen"][index]))
    path, written = str(Path(folder, "saved", "model")), []

    class Watched(tf.train.Checkpoint):  # type: ignore[misc]
        def write(self, file_prefix: Any, options: Any = None) -> Any:
            place = str(Path(file_prefix).absolute())
            written.append(place)
            # Two that write one file at once fail in one run and not in the next.
            free = _is_first_at(place, folder)
            return super().write(place if free else str(Path(folder, f"aside-{index}")), options)

        def save(self, file_prefix: Any, options: Any = None) -> Any:
            place = super().save(file_prefix, options)
            written.append(str(Path(place).absolute()))
            return place

    save(strategy, Watched(kernel=kernel, seen=seen), path)
    strategy.reduce("SUM", tf.constant(0.0), axis=None)  # until the others have written too
    left = [place for place in written if place != path and Path(f"{place}.index").exists()]
    names = {path: "path", f"{path}-1": "path-1"}
    place = [names.get(each, "another place") for each in written]
    everywhere = strategy.reduce("SUM", tf.constant(float(len(left))), axis=None)
    return {"place": place, "after": {"left behind": float(everywhere), **_restored(path)}}


def _is_first_at(place: str, folder: str) -> bool:
    try:
        os.close(os.open(Path(folder, place.replace(os.sep, "+")), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _restored(path: str) -> dict[str, Plain]:
    import tensorflow as tf

    if not Path(f"{path}.index").exists():
        return {"kernel": [], "seen": []}
    reader = tf.train.load_checkpoint(path)
    keys = {name: f"{name}/.ATTRIBUTES/VARIABLE_VALUE" for name in ("kernel", "seen")}
    return {
        name: reader.get_tensor(key) if reader.has_tensor(key) else [] for name, key in keys.items()
    }


def _save_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    chief, other = outputs["places"]
    wrote_nothing = [f"worker:{index}" for index, place in enumerate((chief, other)) if not place]
    message = f"worker:0 wrote to {chief}, worker:1 to {other}"
    if wrote_nothing:
        message = f"{' and '.join(wrote_nothing)} wrote nothing"
    return Verdict.of(
        expect_true(
            "all write, and only the chief to `path`",
            # What the chief wrote elsewhere it may have moved to `path`.
            not wrote_nothing and "path" not in other and len(outputs["kernel"]) > 0,
            message=message,
            weight=2,
        ),
        expect_close(
            "the variable in it", yours=outputs["kernel"], expected=inputs["kernel"], atol=1e-6
        ),
        expect_close(
            "the count of both workers in it",
            yours=outputs["seen"],
            expected=float(inputs["seen"].sum()),
            atol=1e-4,
        ),
        expect_true(
            "nothing else is left",
            not wrote_nothing and not outputs["left behind"],
            message="what was written elsewhere is still there" if other else message,
        ),
    )


SAVE_CHECKS = (
    Check(
        name="save_from_many",
        function="save",
        title="Save from many workers",
        points=3,
        inputs=_save_inputs,
        call=_save_call,
        judge=_save_judge,
        hint="All call checkpoint.write, each with a place of its own: the chief with `path`, the "
        "other with one in a tempfile.TemporaryDirectory().",
        revisit="Save from many",
        mistakes=(
            Mistake(
                "chief_only",
                "The chief waits inside `write`: to read the count it needs the other worker, "
                "which does not write and has gone on. All must take part.",
                error=ONE_HAS_FINISHED,
            ),
            Mistake(
                "same_path",
                "All workers write the same file at the same time. One of them must win, and "
                "sometimes nobody does.",
                when=lambda _, out: out["places"] == [["path"]] * WORKERS,
            ),
            Mistake(
                "numbered",
                "`checkpoint.save` puts a number behind the name. `write` writes to `path` itself.",
                when=lambda _, out: "path-1" in out["places"][0],
            ),
            Mistake(
                "other_worker_keeps",
                "Worker 1 wrote to `path`. The chief is worker 0, where no task has that type.",
                when=lambda _, out: "path" in out["places"][1],
            ),
            Mistake(
                "nothing_kept",
                "Nobody wrote to `path` itself. Which worker is the chief?",
                when=lambda _, out: not len(out["kernel"]),
            ),
            Mistake(
                "part_of_it",
                "What is at `path` lacks a part of what `checkpoint` holds. Write that one: its "
                "count needs all workers.",
                when=lambda _, out: not np.size(out["seen"]),
            ),
            Mistake(
                "left_behind",
                "What the other worker wrote is for nobody: remove it.",
                when=lambda _, out: bool(out["left behind"]),
            ),
        ),
    ),
)
