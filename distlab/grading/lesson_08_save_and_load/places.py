"""A check of lesson 08: which file each of several workers writes."""

from __future__ import annotations

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
    return {
        name: [
            [str(where(inputs["folder"], job, index, dict(jobs))) for index in range(count)]
            for job, count in jobs.items()  # the chief's job is the first
        ]
        for name, jobs in inputs["clusters"].items()
    }


def _paths(outputs: Plain, name: str) -> list[str]:
    """The paths of all tasks, that of the chief first."""
    return [path for paths in outputs[name] for path in paths]


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
    apart = [
        expect_true(
            f"no two tasks share a path in a cluster {name}",
            len(set(paths)) == len(paths),
            message=f"{len(paths)} tasks write to {len(set(paths))} paths",
            weight=2,
        )
        for name, paths in zip(inputs["clusters"], everyone, strict=True)
    ]
    if not all(criterion.passed for criterion in apart):
        return Verdict.of(*rights, *apart)
    ending = expect_true(
        "every path ends with .keras",
        all(path.endswith(".keras") for paths in everyone for path in paths),
        message="Keras refuses to save a model under another ending",
    )
    return Verdict.of(*rights, *apart, ending)


def _sharing(inputs: Inputs, outputs: Plain, name: str) -> tuple[int, int]:
    """How many of the other tasks write to the chief's path, and how many share another one."""
    others = _paths(outputs, name)[1:]
    to_chiefs = others.count(_chiefs(inputs))
    rest = [path for path in others if path != _chiefs(inputs)]
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
            when=lambda i, out: all(len(set(_paths(out, name))) == 1 for name in i["clusters"]),
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
            when=lambda i, out: _chiefs(i) not in _paths(out, "without a chief"),
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
                    path.endswith(".keras") for name in i["clusters"] for path in _paths(out, name)
                )
            ),
        ),
    ),
)
