"""A check of lesson 08: an export that takes raw pixels and returns probabilities."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_close, expect_equal, expect_true, same_plain
from distlab.grading.replicas import mirrored

_IMAGE, _CLASSES, _ATOL = (8, 8, 1), 10, 1e-4


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
            return {"missing": "the export has no default signature"}
        return _answers(loaded.signatures["serving_default"], inputs["pixels"])


def _answers(signature: Any, pixels: Any) -> Plain:
    import tensorflow as tf

    takes, gives = signature.structured_input_signature[1], signature.structured_outputs
    if len(takes) != 1 or len(gives) != 1:
        return {"missing": f"the signature has {len(takes)} inputs and {len(gives)} outputs"}
    ((name, spec),) = takes.items()

    def ask(batch: Any) -> Any:
        try:
            (answer,) = signature(**{name: tf.cast(batch, spec.dtype)}).values()
        except (ValueError, TypeError, tf.errors.InvalidArgumentError):
            return None
        return answer

    return {"dtype": spec.dtype.name, "all": ask(pixels), "one": ask(pixels[:1])}


def _scores(inputs: Inputs, *, prepared: bool = True, over: float = 1.0) -> Any:
    images = inputs["pixels"].astype(np.float64) / over
    if prepared:
        images = inputs["slope"] * images / 255 + inputs["offset"]
    return images.reshape(len(images), -1) @ inputs["kernel"]


def _softmax(scores: Any) -> Any:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _judge(inputs: Inputs, outputs: Plain) -> Verdict:
    if "missing" in outputs:
        label = "an export of one input and one output"
        return Verdict.of(expect_true(label, False, message=outputs["missing"]))
    right = _softmax(_scores(inputs))
    return Verdict.of(
        expect_equal("it takes", yours=outputs["dtype"], expected="uint8"),
        *(
            expect_true(label, False, message="the signature takes no batch of this size")
            if outputs[name] is None
            else expect_close(label, yours=outputs[name], expected=expected, atol=_ATOL)
            for label, name, expected in (
                ("probabilities for five images", "all", right),
                ("probabilities for one image", "one", right[:1]),
            )
        ),
    )


def _is_near(outputs: Plain, *candidates: Any) -> bool:
    """Whether what came back, for five images or for one, is one of these."""
    got = outputs["all"] if outputs["all"] is not None else outputs["one"]
    return any(same_plain(got, each[: len(got)], atol=1e-3) for each in candidates)


def _raw(inputs: Inputs) -> tuple[Any, ...]:
    both = [_scores(inputs, prepared=False, over=over) for over in (1, 255)]
    return *both, *map(_softmax, both)


EXPORT = Check(
    name="export_service",
    function="export",
    title="An export that takes raw pixels",
    points=3,
    inputs=_inputs,
    call=_call,
    judge=_judge,
    hint="The endpoint is a function of pixels: softmax of the model of prepare(pixels). Its "
    "input_signature is one tf.TensorSpec, of uint8, with None for the number of images.",
    revisit="For those who only want predictions",
    mistakes=(
        Mistake(
            "preprocessing_lost",
            "The model gets pixels that `prepare` has not seen, as it never did in training. "
            "`prepare` belongs into the function that is exported.",
            when=lambda inputs, outputs: _is_near(outputs, *_raw(inputs)),
        ),
        Mistake(
            "scores_served",
            "Your export returns scores. A softmax of them gives probabilities.",
            when=lambda inputs, outputs: _is_near(outputs, _scores(inputs)),
        ),
        Mistake(
            "softmax_over_images",
            "Each class's numbers add up to 1 over the images, so an answer depends on what else "
            "is in the batch. The softmax goes over the classes, the last axis.",
            when=lambda inputs, outputs: _is_near(outputs, _softmax(_scores(inputs).T).T),
        ),
        Mistake(
            "fixed_batch",
            "The signature takes one number of images only. Leave it open: None.",
            when=lambda inputs, outputs: (outputs["all"] is None) != (outputs["one"] is None),
        ),
        Mistake(
            "takes_floats",
            "Right numbers, for those who turn their pixels into another type first. Say uint8 in "
            "the signature.",
            when=lambda inputs, outputs: (
                outputs["dtype"] != "uint8" and _is_near(outputs, _softmax(_scores(inputs)))
            ),
        ),
    ),
)
