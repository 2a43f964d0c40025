"""A check of lesson 07: the last layer of a float16 model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_close, expect_equal

_FEATURES = 4


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    classes = int(draw.integers(3, 7))
    # Quarters and small whole numbers, so that float16 holds every score exactly.
    kernel = draw.integers(-8, 9, size=(_FEATURES, classes)) / 4
    features = draw.integers(-3, 4, size=(6, _FEATURES))
    features[0] = 0  # equal scores: nothing to lose here
    # And much to lose here: class 0 is ahead of class 1 by 24 to 48.
    kernel[:, 0] = draw.integers(3, 7, size=_FEATURES) / 4
    kernel[:, 1] = -kernel[:, 0]
    features[1] = 4
    return {"kernel": kernel.astype("float32"), "features": features.astype("float32")}


def _call(head: Callable[..., Any], inputs: Inputs) -> Plain:
    import keras

    from distlab.precision import mixed_precision

    kernel = inputs["kernel"]
    with mixed_precision("mixed_float16"):
        start = keras.Input((_FEATURES,))
        output = head(keras.layers.Activation("linear")(start), kernel.shape[1])
    if output is None:
        raise TypeError("your function returned None: is there a `return`?")
    if not isinstance(output, keras.KerasTensor):
        raise TypeError(
            f"your function returned a {type(output).__name__}; return what comes out when the "
            "layer is called with `features`"
        )
    model = keras.Model(start, output)
    for weight in model.weights:
        weight.assign(kernel if tuple(weight.shape) == kernel.shape else np.zeros(weight.shape))
    probabilities = model(inputs["features"])
    return {"dtype": keras.backend.standardize_dtype(output.dtype), "values": probabilities}


def _scores(inputs: Inputs) -> Any:
    return inputs["features"].astype("float64") @ inputs["kernel"].astype("float64")


def _logarithms(inputs: Inputs) -> Any:
    scores = _scores(inputs)
    raised = scores - scores.max(axis=1, keepdims=True)
    return raised - np.log(np.exp(raised).sum(axis=1, keepdims=True))


def _judge(inputs: Inputs, outputs: Plain) -> Verdict:
    values = np.asarray(outputs["values"], dtype="float64")
    with np.errstate(divide="ignore", invalid="ignore"):
        logarithms = np.log(values)
    right = _logarithms(inputs)
    return Verdict.of(
        expect_close(
            "the logarithm of each probability",
            yours=logarithms,
            expected=right,
            atol=0.01,
            weight=2,
        ),
        expect_equal("what the head returns", yours=_type(outputs, logarithms), expected="float32"),
    )


def _type(outputs: Plain, logarithms: Any) -> str:
    """The dtype; what is no probability at all earns nothing for its dtype."""
    meant = np.isfinite(logarithms[0]).all() and not (logarithms > 1e-3).any()
    return outputs["dtype"] if meant else f"{outputs['dtype']}, but no probabilities"


def _through_float16(inputs: Inputs, outputs: Plain) -> bool:
    values = np.asarray(outputs["values"], dtype="float32")
    return bool((values == values.astype("float16").astype("float32")).all())


HEAD = Check(
    name="float32_head",
    function="head",
    title="A head that does not lose small probabilities",
    points=2,
    inputs=_inputs,
    call=_call,
    judge=_judge,
    hint="A layer takes `dtype`. The softmax itself must run in float32, not only what comes "
    'after it: keras.layers.Activation("softmax", dtype="float32").',
    revisit="What stays in float32: the head",
    mistakes=(
        Mistake(
            "softmax_float16",
            "The softmax runs in float16, where a probability below 6e-8 is 0. Which argument of a "
            "layer says what it computes in?",
            when=lambda inputs, outputs: outputs["dtype"] == "float16",
        ),
        Mistake(
            "no_softmax",
            "These are the scores. The task asks for probabilities: where is the softmax?",
            when=lambda inputs, outputs: np.allclose(outputs["values"], _scores(inputs), atol=0.1),
        ),
        Mistake(
            "cast_after_softmax",
            "It returns float32, but every number in it went through float16: you cast after the "
            "softmax, when the small ones were 0 already.",
            when=_through_float16,
        ),
    ),
)
