"""Checks of lesson 08: an export for raw pixels, and the file that each worker writes."""

from __future__ import annotations

import posixpath
import tempfile
from collections.abc import Callable
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
    Then,
)
from distlab.course.checks.matchers import expect_true, same_plain
from distlab.course.runs.replicas import mirrored

# --- export_service

_IMAGE, _CLASSES = (8, 8, 1), 10


def _export_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    return {
        "pixels": draw.integers(0, 256, size=(5, *_IMAGE)).astype(np.uint8),
        "kernel": draw.normal(size=(64, _CLASSES), scale=0.2).astype(np.float32),
        "offset": float(draw.uniform(0.5, 1.5)),
        "slope": float(draw.uniform(-2, -1)),
    }


def _export_call(export: Callable[..., Any], inputs: Inputs) -> Plain:
    import keras
    import tensorflow as tf

    with mirrored(2).scope():
        layers = [keras.layers.Flatten(), keras.layers.Dropout(0.5)]
        layers += [keras.layers.Dense(_CLASSES, use_bias=False)]
        model = keras.Sequential([keras.Input(_IMAGE), *layers])
    model.set_weights([inputs["kernel"]])

    def prepare(pixels: Any) -> Any:
        return inputs["slope"] * tf.cast(pixels, tf.float32) / 255 + inputs["offset"]

    with tempfile.TemporaryDirectory() as parent:
        folder = f"{parent}/export"
        export(model, prepare, folder)
        try:
            loaded = tf.saved_model.load(folder)
        except OSError:
            return {"missing": "there is no export in the folder"}
        if "serving_default" not in loaded.signatures:
            return {"missing": "the export has no signature `serving_default`"}
        return _answers_of(loaded.signatures["serving_default"], inputs["pixels"])


def _answers_of(signature: Any, pixels: Any) -> Plain:
    import tensorflow as tf

    takes, gives = signature.structured_input_signature[1], signature.structured_outputs
    if len(takes) != 1 or set(gives) != {"digit", "probability"}:
        names = ", ".join(sorted(gives))
        return {"missing": f"the signature has {len(takes)} inputs, and the outputs {names}"}
    ((name, spec),) = takes.items()

    def ask(batch: Any) -> Any:
        try:
            return signature(**{name: tf.cast(batch, spec.dtype)})
        except (ValueError, TypeError, tf.errors.InvalidArgumentError):
            return {"digit": None, "probability": None}

    five = ask(pixels)
    return {
        "dtype": spec.dtype.name,
        "probabilities": five["probability"],
        "digits": five["digit"],
        "one": ask(pixels[:1])["probability"],
    }


def _export_reference(
    given: Inputs, *, prepared: bool = True, over: float = 1.0, softmax: bool = True
) -> Plain:
    """Returns the export's answers to pixels divided by `over`."""
    images = given["pixels"].astype(np.float64) / over
    if prepared:
        images = given["slope"] * images / 255 + given["offset"]
    answers = images.reshape(len(images), -1) @ given["kernel"]
    if softmax:
        powers = np.exp(answers - answers.max(axis=1, keepdims=True))
        answers = powers / powers.sum(axis=1, keepdims=True)
    highest = answers.max(axis=1)
    return {
        "dtype": "uint8",
        "probabilities": highest,
        "digits": answers.argmax(axis=1),
        "one": highest[:1],
    }


class _Answers(Close):
    """The answers of an export, or None where it takes no such batch."""

    def compare(self, yours: Plain, expected: Plain) -> Criterion:
        """Returns the criterion for the two values."""
        if yours is not None:
            return super().compare(yours, expected)
        message = "the signature takes no batch of this size"
        return expect_true(self.label, False, message=message, weight=self.points)

    def agrees(self, yours: Plain, other: Plain) -> bool:
        """Returns whether two values are near: raw pixels give large scores, and these round."""
        return same_plain(yours, other, atol=1e-3)


EXPORT = Check(
    name="export_service",
    function="export",
    title="An export that takes raw pixels",
    question="What does a client get from your export if it sends raw pixels?",
    direction="Follow one image from uint8 to its output. Which steps are inside the function that "
    "you export?",
    inputs=_export_inputs,
    call=_export_call,
    reference=_export_reference,
    criteria=(
        Gate(
            Holds(
                "an export of one input, with the outputs digit and probability",
                lambda given, out: "missing" not in out,
                lambda given, out: out["missing"],
            )
        ),
        _Answers("probabilities", "the probabilities, for five images", atol=1e-4),
        _Answers("one", "the probability, for one image", atol=1e-4, points=0.5),
        Then(
            _Answers("digits", "the digits, for five images", atol=0, points=0.5),
            Equal("dtype", "the type of pixels that the signature takes", points=0.5),
        ),
    ),
    hint="Write a function of pixels that computes `tf.nn.softmax(model(prepare(pixels)))`, and "
    "returns a dictionary with `tf.argmax` and `tf.reduce_max` of it, along axis 1. Give it to "
    "`ExportArchive.add_endpoint` with an `input_signature` of one `tf.TensorSpec`: uint8, and "
    "None for the number of images. `track` the model before.",
    revisit="Extra: Export for predictions",
    mistakes=(
        Fault("preprocessing_lost", prepared=False)
        .or_with(prepared=False, over=255)
        .feedback(
            "Your export gives the model raw pixels. In training it saw only what `prepare` "
            "returned, so its answers mean nothing. Inside which function must `prepare` be "
            "called?"
        ),
        Fault("scores_served", softmax=False).feedback(
            "Your export returns a score as the probability. A score can be negative or above 1, "
            "so a client cannot read it as a probability. Which function is missing between the "
            "two?"
        ),
        Observed(
            "fixed_batch",
            lambda given, out: (out["probabilities"] is None) != (out["one"] is None),
        ).feedback(
            "Your signature fixes the number of images. Any other number raises an error at the "
            "client. What stands for an open size in a shape?"
        ),
        Observed(
            "takes_floats",
            lambda given, out: (
                out["dtype"] != "uint8"
                and same_plain(
                    out["probabilities"], _export_reference(given)["probabilities"], atol=1e-3
                )
            ),
        ).feedback(
            "Your export computes the right numbers, but its signature does not take uint8. A "
            "client must convert the camera's pixels first. Which type does a camera give?"
        ),
    ),
)

# --- where_to_write

_WITHOUT, _WITH = "without a chief", "with a chief"


def _paths_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    workers = [int(count) for count in draw.integers(2, 5, size=2)]
    return {
        "folder": f"/results/run-{draw.integers(100)}",
        "clusters": {
            _WITHOUT: {"worker": workers[0]},
            _WITH: {"chief": 1, "worker": workers[1]},
        },
    }


def _paths_call(where: Callable[..., Any], inputs: Inputs) -> Plain:
    def path(job: str, index: int, jobs: dict[str, int]) -> str | None:
        answer = where(inputs["folder"], job, index, dict(jobs))
        return None if answer is None else posixpath.normpath(str(answer))

    return {
        name: [path(job, index, jobs) for job, count in jobs.items() for index in range(count)]
        for name, jobs in inputs["clusters"].items()
    }


def _paths_read(given: Inputs, outputs: Plain) -> Plain:
    """The paths of each cluster, its chief's first, and what is wrong with those of the others."""
    right = f"{given['folder']}/model.keras"
    read: dict[str, Plain] = {"all": [*outputs[_WITHOUT], *outputs[_WITH]], "right": right}
    for name, paths in outputs.items():
        others = [path for path in paths[1:] if path not in (None, right)]
        read |= {
            name: paths,
            f"chief {name}": paths[0],
            f"inside {name}": any(str(path).startswith(f"{right}/") for path in paths),
            f"shared {name}": len(set(others)) < len(others),
        }
    return read


def _paths_reference(given: Inputs) -> Plain:
    def where(folder: str, job: str, index: int, jobs: dict[str, int]) -> str:
        is_chief = (job, index) == (next(iter(jobs)), 0)
        return f"{folder}/model.keras" if is_chief else f"{folder}/{job}-{index}/model.keras"

    return _paths_read(given, _paths_call(where, given))


def _paths_differ(name: str) -> Holds:
    return Holds(
        f"no two tasks share a path in a cluster {name}",
        lambda _, out: len(set(out[name])) == len(out[name]) and not out[f"inside {name}"],
        lambda _, out: (
            "a path leads through the chief's file, as if it were a folder"
            if out[f"inside {name}"]
            else f"{len(out[name])} tasks write to {len(set(out[name]))} paths"
        ),
        points=0.5,
    )


PATHS = Check(
    name="where_to_write",
    function="where",
    title="Who writes which file",
    question="Which two tasks get the same path from your function?",
    direction="Decide first which task is the chief. Then look at what differs between any two of "
    "the others.",
    cost=Cost.PURE,
    inputs=_paths_inputs,
    call=_paths_call,
    read=_paths_read,
    reference=_paths_reference,
    criteria=(
        Gate(
            Holds(
                "the path depends on the task",
                lambda _, out: len(set(out["all"])) > 1 or None in out["all"],
                "all tasks of both clusters write to the same path",
            )
        ),
        *(
            Equal(f"chief {name}", f"the chief's path in a cluster {name}", points=0.5)
            for name in (_WITHOUT, _WITH)
        ),
        Gate(
            Holds(
                "every task gets a path",
                lambda _, out: None not in out["all"],
                "some tasks get None",
            )
        ),
        # Paths that belong to no task are easily different.
        Then(_paths_differ(_WITHOUT), _paths_differ(_WITH), after=any),
        Then(
            Holds(
                "every path ends with .keras",
                lambda _, out: all(str(path).endswith(".keras") for path in out["all"]),
                "Keras refuses to save a model under a different ending",
                points=0.5,
            )
        ),
    ),
    hint="The chief is the task of the job `chief`, or worker 0 if `jobs` has no such job: it gets "
    "`folder/model.keras`. Put both job and index into the path of every other task.",
    revisit="Many workers: who saves?",
    mistakes=(
        Observed("same_path", lambda _, out: set(out["all"]) == {out["right"]}).feedback(
            "You gave all tasks the same path. They write to it at the same time, and the file may "
            "hold a mixture. Which single task should write there?"
        ),
        Observed(
            "others_without_path",
            lambda _, out: all({None, out["right"]} <= {*out[n]} for n in (_WITHOUT, _WITH)),
        ).feedback(
            "You gave None to the tasks that are not the chief. All of them call "
            "`model.save(where(...))`, so they stop with an error, and the chief may wait for "
            "them. What can they do with a file that is not needed?"
        ),
        Observed("second_chief", lambda _, out: out[_WITH][1:].count(out["right"]) == 1).feedback(
            "In a cluster with a chief, you gave the chief's path to worker 0 as well. Both write "
            "to one file. In which clusters is worker 0 the chief?"
        ),
        Observed(
            "no_task_is_chief",
            lambda _, out: out["right"] in out[_WITH] and out["right"] not in out[_WITHOUT],
        ).feedback(
            "In a cluster without a task called chief, no task writes the file that counts. Which "
            "task takes that part there?"
        ),
        Observed(
            "shared_temporary",
            lambda _, out: out[f"shared {_WITHOUT}"] or out[f"shared {_WITH}"],
        ).feedback(
            "Your chief has a file of its own, but the other tasks share one and overwrite each "
            "other. Which two arguments tell them apart?"
        ),
    ),
)
