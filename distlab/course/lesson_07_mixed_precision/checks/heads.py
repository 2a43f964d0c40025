"""A check of lesson 07: the last layers of a float16 model, with a temperature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Close, Cost, Equal, Fault, Inputs, Observed, Plain, Then

_FEATURES = 4


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    classes, temperature = int(draw.integers(3, 7)), float(draw.choice([1.5, 2.0]))
    # Quarters and small whole numbers, so that float16 holds every score exactly.
    kernel = draw.integers(-5, 6, size=(_FEATURES, classes)) / 4
    bias = draw.permutation(np.arange(-3, 4))[:classes] / 4
    features = draw.integers(-3, 4, size=(6, _FEATURES))
    features[0] = 0  # scores of nearly the same size: nothing to lose here
    # And much to lose here: class 0 is ahead of class 1, or behind it, by more than 22, divided
    # or not, and by less than 87, beyond which float32 loses it, too.
    kernel[:, 0] = draw.integers(3, 6, size=_FEATURES) / 4
    kernel[:, 1] = -kernel[:, 0]
    features[1], features[2] = 4, -4
    return {
        "kernel": (kernel * temperature).astype("float32"),
        "bias": (bias * temperature).astype("float32"),
        "features": features.astype("float32"),
        "temperature": temperature,
    }


def _call(head: Callable[..., Any], inputs: Inputs) -> Plain:
    import keras

    from distlab.precision import mixed_precision

    given = {inputs[name].shape: inputs[name] for name in ("kernel", "bias")}
    with mixed_precision("mixed_float16"):
        start = keras.Input((_FEATURES,))
        features = keras.layers.Activation("linear")(start)
        output = head(features, len(inputs["bias"]), inputs["temperature"])
    if output is None:
        raise TypeError("your function returned None: is there a `return`?")
    if not isinstance(output, keras.KerasTensor):
        raise TypeError(
            f"your function returned a {type(output).__name__}; return what comes out when the "
            "layer is called with `features`"
        )
    model = keras.Model(start, output)
    for weight in model.weights:
        weight.assign(given.get(tuple(weight.shape), np.zeros(weight.shape)))
    probabilities = model(inputs["features"])
    return {"dtype": keras.backend.standardize_dtype(output.dtype), "values": probabilities}


def _read(given: Inputs, outputs: Plain) -> Plain:
    values = np.asarray(outputs["values"], dtype="float32")
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        narrow = bool((values == values.astype("float16").astype("float32")).all())
        logarithms = np.log(values.astype("float64"))
    return {
        "logarithms": _two_decimals(logarithms),
        "dtype": outputs["dtype"],
        "went through float16": narrow,
    }


def _two_decimals(values: np.ndarray) -> np.ndarray:
    """Leaves out the third decimal, which a softmax in float16 gives differently on other CPUs."""
    return np.round(values, 2) + 0.0  # no "-0."


def _reference(
    given: Inputs, *, softmax: bool = True, dtype: str = "float32", divided: str = "scores"
) -> Plain:
    """The logarithms of the probabilities, with what the temperature divides."""
    features, kernel, bias = (
        given[name].astype("float64") for name in ("features", "kernel", "bias")
    )
    temperature = given["temperature"]
    scores = features @ kernel + bias
    scores = scores / temperature if divided == "scores" else scores
    if softmax:
        raised = scores - scores.max(axis=1, keepdims=True)
        logarithms = raised - np.log(np.exp(raised).sum(axis=1, keepdims=True))
    else:
        with np.errstate(divide="ignore", invalid="ignore"):
            logarithms = np.log(scores)
    if divided == "softmax":
        logarithms = logarithms - np.log(temperature)
    return {
        "logarithms": _two_decimals(logarithms),
        "dtype": dtype,
        "went through float16": False,
    }


HEAD = Check(
    name="float32_head",
    function="head",
    title="A head that does not lose small probabilities",
    question="In which type is the softmax itself computed?",
    direction=(
        "Look at each layer of the head: its compute type comes from the policy unless you say "
        "otherwise."
    ),
    cost=Cost.TENSORFLOW,
    inputs=_inputs,
    call=_call,
    read=_read,
    reference=_reference,
    criteria=(
        Close("logarithms", "the logarithm of each probability", atol=0.015, points=1.5),
        Then(Equal("dtype", "what the head returns", points=0.5)),
    ),
    hint="Divide the scores of a Dense layer by the temperature, and put this after it, with "
    'nothing behind it: keras.layers.Activation("softmax", dtype="float32").',
    revisit='"The last layer" in lesson 07',
    mistakes=(
        Fault("softmax_float16", dtype="float16").feedback(
            "You computed the softmax in float16. A probability below 3e-8 is 0 there, and its "
            "logarithm is infinite. Which argument of a layer says in what it computes?"
        ),
        Fault("no_softmax", softmax=False)
        .or_with(softmax=False, divided="nothing")
        .feedback(
            "You returned the scores. They can be negative and do not sum to 1, and the task asks "
            "for probabilities. What turns scores into probabilities?"
        ),
        Observed("cast_after_softmax", lambda given, out: out["went through float16"]).feedback(
            "You cast to float32 after the softmax. The small probabilities were 0 in float16 by "
            "then, and a cast does not bring them back. What must happen before the softmax?"
        ),
        Fault("no_temperature", divided="nothing").feedback(
            "You left the temperature out, so the probabilities are those of a temperature of 1. "
            "What does it divide?"
        ),
        Fault("temperature_after_softmax", divided="softmax").feedback(
            "You divided the probabilities by the temperature, so they no longer sum to 1. On "
            "which side of the softmax does the division belong?"
        ),
    ),
)
