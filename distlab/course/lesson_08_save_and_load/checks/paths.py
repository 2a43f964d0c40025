"""A check of lesson 08: which file each of several workers writes."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Cost, Equal, Gate, Holds, Inputs, Observed, Plain, Then

_WITHOUT, _WITH = "without a chief", "with a chief"


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    workers = [int(count) for count in draw.integers(2, 5, size=2)]
    return {
        "folder": f"/results/run-{draw.integers(100)}",
        "clusters": {
            _WITHOUT: {"worker": workers[0]},
            _WITH: {"chief": 1, "worker": workers[1]},
        },
    }


def _call(where: Callable[..., Any], inputs: Inputs) -> Plain:
    def path(job: str, index: int, jobs: dict[str, int]) -> str | None:
        answer = where(inputs["folder"], job, index, dict(jobs))
        return None if answer is None else posixpath.normpath(str(answer))

    paths = {
        name: [path(job, index, jobs) for job, count in jobs.items() for index in range(count)]
        for name, jobs in inputs["clusters"].items()
    }
    return paths | {f"chief {name}": tasks[0] for name, tasks in paths.items()}


def _reference(given: Inputs) -> Plain:
    def where(folder: str, job: str, index: int, jobs: dict[str, int]) -> str:
        is_chief = (job, index) == (next(iter(jobs)), 0)
        return f"{folder}/model.keras" if is_chief else f"{folder}/{job}-{index}/model.keras"

    return dict(_call(where, given))


def _chiefs(given: Inputs) -> str:
    return f"{given['folder']}/model.keras"


def _all(out: Plain) -> list[str | None]:
    return [*out[_WITHOUT], *out[_WITH]]


def _shares_temporary(given: Inputs, out: Plain, name: str) -> bool:
    """Whether tasks that are not the chief share a path of their own."""
    others = [path for path in out[name][1:] if path not in (None, _chiefs(given))]
    return len(set(others)) < len(others)


def _chiefs_path(name: str) -> Equal:
    return Equal(f"chief {name}", f"the chief's path in a cluster {name}", points=0.5)


def _apart(name: str) -> Holds:
    def is_inside(given: Inputs, out: Plain) -> bool:
        return any(str(path).startswith(f"{_chiefs(given)}/") for path in out[name])

    def message(given: Inputs, out: Plain) -> str:
        if is_inside(given, out):
            return "a path leads through the chief's file, as if it were a folder"
        return f"{len(out[name])} tasks write to {len(set(out[name]))} paths"

    return Holds(
        f"no two tasks share a path in a cluster {name}",
        lambda given, out: len(set(out[name])) == len(out[name]) and not is_inside(given, out),
        message,
        points=0.5,
    )


PATHS = Check(
    name="where_to_write",
    function="where",
    title="Who writes which file",
    question="Which two tasks get the same path from your function?",
    direction=(
        "Decide first which task is the chief. Then look at what differs between any two of the "
        "others."
    ),
    cost=Cost.PURE,
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=(
        Gate(
            Holds(
                "the path depends on the task",
                lambda given, out: len(set(_all(out))) > 1 or None in _all(out),
                "all tasks of both clusters write to the same path",
            )
        ),
        _chiefs_path(_WITHOUT),
        _chiefs_path(_WITH),
        Gate(
            Holds(
                "every task gets a path",
                lambda given, out: None not in _all(out),
                "some tasks get None",
            )
        ),
        # Paths that belong to no task are easily different.
        Then(_apart(_WITHOUT), _apart(_WITH), after=any),
        Then(
            Holds(
                "every path ends with .keras",
                lambda given, out: all(str(path).endswith(".keras") for path in _all(out)),
                "Keras refuses to save a model under a different ending",
                points=0.5,
            )
        ),
    ),
    hint="The chief is the task of the job `chief`, or worker 0 if `jobs` has no such job: it gets "
    "`folder/model.keras`. Put both job and index into the path of every other task.",
    revisit="Many workers: who saves?",
    mistakes=(
        Observed("same_path", lambda given, out: set(_all(out)) == {_chiefs(given)}).feedback(
            "You gave all tasks the same path. They write to it at the same time, and the file may "
            "hold a mixture. Which single task should write there?"
        ),
        Observed(
            "others_without_path",
            lambda given, out: all({None, _chiefs(given)} <= {*out[n]} for n in (_WITHOUT, _WITH)),
        ).feedback(
            "You gave None to the tasks that are not the chief. All of them call "
            "`model.save(where(...))`, so they stop with an error, and the chief may wait for "
            "them. What can they do with a file that is not needed?"
        ),
        Observed(
            "second_chief", lambda given, out: out[_WITH][1:].count(_chiefs(given)) == 1
        ).feedback(
            "In a cluster with a chief, you gave the chief's path to worker 0 as well. Both write "
            "to one file. In which clusters is worker 0 the chief?"
        ),
        Observed(
            "no_task_is_chief",
            lambda given, out: _chiefs(given) in out[_WITH] and _chiefs(given) not in out[_WITHOUT],
        ).feedback(
            "In a cluster without a task called chief, no task writes the file that counts. Which "
            "task takes that part there?"
        ),
        Observed(
            "shared_temporary",
            lambda given, out: any(
                _shares_temporary(given, out, name) for name in (_WITHOUT, _WITH)
            ),
        ).feedback(
            "Your chief has a file of its own, but the other tasks share one and overwrite each "
            "other. Which two arguments tell them apart?"
        ),
    ),
)
