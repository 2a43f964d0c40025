"""A check of lesson 08: which file each of several workers writes."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_equal, expect_true


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    workers = [int(count) for count in draw.integers(2, 5, size=2)]
    return {
        "folder": f"/results/run-{draw.integers(100)}",
        "clusters": {
            "without a chief": {"worker": workers[0]},
            "with a chief": {"chief": 1, "worker": workers[1]},
        },
    }


def _call(where: Callable[..., Any], inputs: Inputs) -> Plain:
    def path(job: str, index: int, jobs: dict[str, int]) -> str | None:
        found = where(inputs["folder"], job, index, dict(jobs))
        return None if found is None else str(found)

    return {
        name: [
            [path(job, index, jobs) for index in range(count)]
            for job, count in jobs.items()  # the chief's job is the first
        ]
        for name, jobs in inputs["clusters"].items()
    }


def _paths(outputs: Plain, name: str) -> list[str | None]:
    """The paths of all tasks, that of the chief first, written in the shortest way."""
    found = [path for paths in outputs[name] for path in paths]
    return [None if path is None else posixpath.normpath(path) for path in found]


def _chiefs(inputs: Inputs) -> str:
    return f"{inputs['folder']}/model.keras"


def _judge(inputs: Inputs, outputs: Plain) -> Verdict:
    rights = [
        expect_equal(
            f"the chief's path in a cluster {name}",
            yours=_paths(outputs, name)[0],
            expected=_chiefs(inputs),
        )
        for name in inputs["clusters"]
    ]
    if not any(right.passed for right in rights):  # paths of nobody are easily different
        return Verdict.of(*rights)
    everyone = [_paths(outputs, name) for name in inputs["clusters"]]
    if any(None in paths for paths in everyone):
        label = "every task gets a path"
        return Verdict.of(*rights, expect_true(label, False, message="some get None", weight=5))
    apart = [
        expect_true(
            f"no two tasks share a path in a cluster {name}",
            len(set(paths)) == len(paths) and not _inside(paths, _chiefs(inputs)),
            message=f"{len(paths)} tasks write to {len(set(paths))} paths"
            if not _inside(paths, _chiefs(inputs))
            else "a path leads through the chief's file, as if it were a folder",
            weight=2,
        )
        for name, paths in zip(inputs["clusters"], everyone, strict=True)
    ]
    if not all(criterion.passed for criterion in apart):
        return Verdict.of(*rights, *apart)
    ending = expect_true(
        "every path ends with .keras",
        all(str(path).endswith(".keras") for paths in everyone for path in paths),
        message="Keras refuses to save a model under another ending",
    )
    return Verdict.of(*rights, *apart, ending)


def _inside(paths: list[str | None], file: str) -> bool:
    return any(str(path).startswith(f"{file}/") for path in paths)


def _sharing(inputs: Inputs, outputs: Plain, name: str) -> tuple[int, int]:
    """How many of the other tasks write to the chief's path, and how many share another one."""
    others = _paths(outputs, name)[1:]
    to_chiefs = others.count(_chiefs(inputs))
    rest = [path for path in others if path not in (None, _chiefs(inputs))]
    return to_chiefs, len(rest) - len(set(rest))


PLACES = Check(
    name="where_to_write",
    function="where",
    title="Who writes which file",
    points=2,
    inputs=_inputs,
    call=_call,
    judge=_judge,
    hint="The chief is the task of the job `chief`, or worker 0 where `jobs` has no such job. Put "
    "both job and index into the path of the others.",
    revisit="Who saves?",
    mistakes=(
        Mistake(
            "same_path",
            "All tasks write to the same file at the same time. What is in it afterwards is "
            "anybody's guess.",
            when=lambda i, out: all(
                set(_paths(out, name)) == {_chiefs(i)} for name in i["clusters"]
            ),
        ),
        Mistake(
            "others_without_path",
            "Every task calls `model.save(where(...))`, so every task needs a path, also those "
            "whose file is thrown away.",
            when=lambda i, out: all(
                _chiefs(i) in _paths(out, name) and None in _paths(out, name)
                for name in i["clusters"]
            ),
        ),
        Mistake(
            "chiefs_path_is_another",
            "In no cluster is there a task that writes `model.keras` into `folder` itself. That is "
            "where the model shall be.",
            when=lambda i, out: (
                not any(
                    _chiefs(i) in _paths(out, name) or None in _paths(out, name)
                    for name in i["clusters"]
                )
            ),
        ),
        Mistake(
            "second_chief",
            "In a cluster with a chief, worker 0 writes to the chief's path as well. It is chief "
            "only where there is no other.",
            when=lambda i, out: _sharing(i, out, "with a chief")[0] == 1,
        ),
        Mistake(
            "nobody_is_chief",
            "Where no task is called chief, nobody writes the file that counts. Worker 0 should.",
            when=lambda i, out: (
                _chiefs(i) in _paths(out, "with a chief")
                and _chiefs(i) not in _paths(out, "without a chief")
            ),
        ),
        Mistake(
            "shared_temporary",
            "The chief is alone with its file, but the others share one. Put into the path what "
            "tells them apart.",
            when=lambda i, out: any(_sharing(i, out, name)[1] for name in i["clusters"]),
        ),
        Mistake(
            "ending_lost",
            "The places are right. `model.save` wants an ending `.keras`, also of a file that is "
            "thrown away.",
            when=lambda i, out: (
                not all(
                    path is None or path.endswith(".keras")
                    for name in i["clusters"]
                    for path in _paths(out, name)
                )
            ),
        ),
    ),
)
