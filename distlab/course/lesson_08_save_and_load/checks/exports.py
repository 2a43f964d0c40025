"""A check of lesson 08: an export that takes raw pixels, and returns digits with probabilities."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import (
    Check,
    Close,
    Cost,
    Equal,
    Fault,
    Gate,
    Holds,
    Inputs,
    Observed,
    Plain,
)
from distlab.course.checks.criteria import Then
from distlab.course.checks.matchers import expect_true, same_plain
from distlab.course.checks.verdict import Criterion
from distlab.course.runs.replicas import mirrored

_IMAGE, _CLASSES = (8, 8, 1), 10


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    return {
        "pixels": draw.integers(0, 256, size=(5, *_IMAGE)).astype(np.uint8),
        "kernel": draw.normal(size=(64, _CLASSES), scale=0.2).astype(np.float32),
        "offset": float(draw.uniform(0.5, 1.5)),
        "slope": float(draw.uniform(-2, -1)),
    }


def _call(export: Callable[..., Any], inputs: Inputs) -> Plain:
    import keras
    import tensorflow as tf

    with mirrored(2).scope():
        dense = keras.layers.Dense(_CLASSES, use_bias=False)
        model = keras.Sequential([keras.Input(_IMAGE), keras.layers.Flatten(), dense])
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
        return _answers(loaded.signatures["serving_default"], inputs["pixels"])


def _answers(signature: Any, pixels: Any) -> Plain:
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


def _reference(
    given: Inputs, *, prepared: bool = True, over: float = 1.0, softmax: bool = True
) -> Plain:
    """What the export answers, of pixels divided by `over`."""
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
    """What an export answers, or None where it takes no such batch."""

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
    direction=(
        "Follow one image from uint8 to its output. Which steps are inside the function that you "
        "export?"
    ),
    cost=Cost.TENSORFLOW,
    inputs=_inputs,
    call=_call,
    reference=_reference,
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
    revisit="Export for predictions",
    mistakes=(
        Fault("preprocessing_lost", prepared=False)
        .or_with(prepared=False, over=255)
        .feedback(
            "Your export gives the model raw pixels. In training it saw only what `prepare` "
            "returned, so its answers mean nothing. Inside which function must `prepare` be called?"
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
                and same_plain(out["probabilities"], _reference(given)["probabilities"], atol=1e-3)
            ),
        ).feedback(
            "Your export computes the right numbers, but its signature does not take uint8. A "
            "client must convert the camera's pixels first. Which type does a camera give?"
        ),
    ),
)
