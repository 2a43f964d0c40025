"""Checks of lesson 07: the head of a float16 model, a memory budget, a policy for a device."""

from __future__ import annotations

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
    Form,
    Inputs,
    Observed,
    Plain,
    Then,
)
from distlab.course.checks.criteria import Compared

_POLICIES = ("float32", "mixed_float16", "mixed_bfloat16")
_FLOAT32, _FLOAT16, _BFLOAT16 = _POLICIES

# --- training_bytes

_PARTS = ("weights", "gradients", "optimizer", "activations")


def _memory_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    replicas = int(draw.choice([2, 4, 8]))
    return {
        "parameters": int(draw.integers(1_000, 100_000)),
        "activations": int(draw.integers(100, 10_000)),
        "global_batch": replicas * int(draw.integers(8, 65)),
        "replicas": replicas,
    }


def _memory_call(training_bytes: Callable[..., Any], inputs: Inputs) -> Plain:
    return {policy: training_bytes(policy=policy, **inputs) for policy in _POLICIES}


def _memory_read(given: Inputs, outputs: Plain) -> Plain:
    """The bytes of each part, in a list of the policies."""
    for answer in outputs.values():
        if not isinstance(answer, dict) or not set(_PARTS) <= answer.keys():
            return {"a different form": answer}
    return {part: [_rounded(outputs[policy][part]) for policy in _POLICIES] for part in _PARTS}


def _rounded(value: Plain) -> Plain:
    whole = isinstance(value, float) and value.is_integer()
    return int(value) if whole else value


def _memory_reference(
    given: Inputs,
    *,
    narrow: tuple[str, ...] = ("activations",),
    slots: int = 2,
    batch_shared: bool = True,
) -> Plain:
    """Bytes of each part in each policy; a mixed one stores the narrow parts in 16 bits."""
    parameters, replicas = given["parameters"], given["replicas"]
    batch = given["global_batch"] // (replicas if batch_shared else 1)
    numbers = {
        "weights": parameters,
        "gradients": parameters,
        "optimizer": slots * parameters,
        "activations": given["activations"] * batch,
    }

    def size(part: str, policy: str) -> int:
        return 2 if part in narrow and policy != _FLOAT32 else 4

    return {
        part: [count * size(part, policy) for policy in _POLICIES]
        for part, count in numbers.items()
    }


MEMORY = Check(
    name="training_bytes",
    title="What is in the memory of one replica",
    question="Which of the four parts does a mixed policy store in 16 bits?",
    direction="Take the parts one by one: how many numbers are there, how many bytes has each, and "
    "does every replica hold all of them?",
    cost=Cost.PURE,
    inputs=_memory_inputs,
    call=_memory_call,
    read=_memory_read,
    reference=_memory_reference,
    criteria=(
        Form(
            f"it returns a dictionary with {', '.join(_PARTS)}",
            lambda given, out: "a different form" not in out,
            key="a different form",
        ),
        *(
            Equal(part, f"bytes of the {part}, in {', '.join(_POLICIES)}", points=0.5)
            for part in _PARTS
        ),
    ),
    hint="float32 takes 4 bytes, 16 bits take 2. Weights, gradients and Adam's two numbers stay in "
    "float32, whole on every replica. Activations take 2 bytes in a mixed policy, for the "
    "replica's share of the batch.",
    revisit='"What 16 bits save" in lesson 07',
    mistakes=(
        Fault("all_halved", narrow=_PARTS).feedback(
            "You halved all four parts. A model whose weights are in 16 bits loses its small "
            "steps, so a mixed policy keeps most parts in float32. Which part is only computed, "
            "and never added up?"
        ),
        # Each of the next two asks that one other part is whole: else all is halved.
        Fault(
            "weights_halved", sees=("weights", "gradients"), narrow=("activations", "weights")
        ).feedback(
            "You halved the weights. The 16-bit copy comes on top of the float32 weights, and does "
            "not replace them. What would happen to a small step on a 16-bit weight?"
        ),
        Fault(
            "gradients_halved", sees=("gradients", "optimizer"), narrow=("activations", "gradients")
        ).feedback(
            "You halved the gradients. Those between layers have 16 bits, but each weight's is "
            "cast when it leaves the tape. What is the dtype of a weight's gradient?"
        ),
        # With whole weights: else the bytes are those of all replicas together.
        Fault("global_batch_on_each", sees=("activations", "weights"), batch_shared=False).feedback(
            "You gave each replica the activations of the global batch. But it computes only its "
            "share. How many examples does one replica get?"
        ),
        Fault("one_slot", slots=1).feedback(
            "You counted one number of Adam's for each weight. That is SGD with momentum. Which "
            "two running means does Adam keep?"
        ),
    ),
)


# --- choose_policy

_ANSWERS: dict[str, tuple[str, bool]] = {
    "RTX 2080": (_FLOAT16, True),
    "Titan V": (_FLOAT16, True),
    "L4": (_BFLOAT16, False),
    "TPU v5e": (_BFLOAT16, False),
    "GTX 1080": (_FLOAT32, False),
}
_REASONS = {
    ("RTX 2080", _BFLOAT16): "its tensor cores do not know bfloat16",
    ("Titan V", _BFLOAT16): "its tensor cores do not know bfloat16",
    ("RTX 2080", _FLOAT32): "its tensor cores are not used in float32",
    ("Titan V", _FLOAT32): "its tensor cores are not used in float32",
    ("L4", _FLOAT16): "it works, but bfloat16 is as fast and needs no loss scale",
    ("L4", _FLOAT32): "its 16-bit units are not used, and activations take twice the memory",
    ("TPU v5e", _FLOAT16): "its matrix units are made for bfloat16",
    ("TPU v5e", _FLOAT32): "activations take twice the memory",
    ("GTX 1080", _FLOAT16): "it has no tensor cores",
    ("GTX 1080", _BFLOAT16): "it has no tensor cores",
}


def _choice_inputs(seed: int) -> Inputs:
    return {"devices": np.random.default_rng(seed).permutation(list(_ANSWERS)).tolist()}


def _choice_call(choose: Callable[..., Any], inputs: Inputs) -> Plain:
    return {device: choose(device) for device in inputs["devices"]}


def _choice_reference(given: Inputs, **answers: Plain) -> Plain:
    return _ANSWERS | {device.replace("_", " "): answer for device, answer in answers.items()}


class _Policy(Compared):
    """A policy, and whether it needs a loss scale; the right ones are not shown, but a reason."""

    def compare(self, yours: Plain, expected: Plain) -> Criterion:
        if yours is None:
            why = "your function returned None: is there a `return`?"
        elif not isinstance(yours, list) or len(yours) != 2:
            why = "return two things: a policy, and True or False"
        elif yours[0] not in _POLICIES:
            why = f"the first thing is a policy: {', '.join(_POLICIES)}"
        elif yours[1] not in (True, False):
            why = "the second thing is True or False"
        elif yours[0] != expected[0]:
            why = _REASONS[self.key, yours[0]]
        else:
            why = (
                "float16 loses small gradients without a loss scale"
                if expected[1]
                else "its range is that of float32, so there is nothing to scale"
            )
        right = yours == expected
        return Criterion(self.label, right, "" if right else why, weight=self.points)

    def agrees(self, yours: Plain, other: Plain) -> bool:
        """Returns whether both are the same; for a fault that leaves the scale open, the policy."""
        return bool(yours[0] == other[0] and other[1] in (None, yours[1]))


CHOICE = Check(
    name="choose_policy",
    function="choose",
    title="Which policy for which device",
    question="Which 16-bit type can each device compute fast?",
    direction="Look at the age of the device first, then at the range of the type: only a small "
    "range needs a loss scale.",
    cost=Cost.PURE,
    inputs=_choice_inputs,
    call=_choice_call,
    reference=_choice_reference,
    criteria=tuple(
        _Policy(device, f"{device}: the policy, and whether it needs a loss scale", points=0.5)
        for device in _ANSWERS
    ),
    hint="Volta and Turing: float16 with a loss scale. GPUs since Ampere and TPUs know bfloat16: "
    "take it, without a loss scale. A device without tensor cores stays in float32.",
    revisit='"Which one, where" in lesson 07',
    mistakes=(
        Fault("bf16_before_ampere", RTX_2080=(_BFLOAT16, None))
        .or_with(Titan_V=(_BFLOAT16, None))
        .feedback(
            "You chose bfloat16 for a Titan V or an RTX 2080. TensorFlow accepts the policy there, "
            "but the tensor cores of these GPUs do not know bfloat16, so nothing gets faster. "
            "Which 16-bit format do they know?"
        ),
        Fault("fp16_on_tpu", TPU_v5e=(_FLOAT16, None)).feedback(
            "You chose float16 for a TPU. Its matrix units take bfloat16, so float16 is not fast "
            "there and needs a loss scale besides. Which format was made for TPUs?"
        ),
        Fault("fast_without_units", GTX_1080=(_FLOAT16, None))
        .or_with(GTX_1080=(_BFLOAT16, None))
        .feedback(
            "You chose 16 bits for a GTX 1080. It has no tensor cores, so you lose digits and gain "
            "no speed. Which policy costs nothing on such a GPU?"
        ),
        Fault("bfloat16_scaled", L4=(_BFLOAT16, True))
        .or_with(TPU_v5e=(_BFLOAT16, True))
        .feedback(
            "You asked for a loss scale with bfloat16. A scale moves small gradients into the "
            "range of a format, and costs a skipped step now and then. How many exponent bits does "
            "bfloat16 have, and float32?"
        ),
        Fault("float16_unscaled", RTX_2080=(_FLOAT16, False))
        .or_with(Titan_V=(_FLOAT16, False))
        .or_with(L4=(_FLOAT16, False))
        .feedback(
            "You chose float16 without a loss scale. On every device, gradients below 3e-8 become "
            "0 then. What brings them back?"
        ),
    ),
)


# --- float32_head

_FEATURES = 4


def _head_inputs(seed: int) -> Inputs:
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


def _head_call(head: Callable[..., Any], inputs: Inputs) -> Plain:
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


def _head_read(given: Inputs, outputs: Plain) -> Plain:
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


def _head_reference(
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
    direction="Look at each layer of the head: its compute type comes from the policy unless you "
    "say otherwise.",
    inputs=_head_inputs,
    call=_head_call,
    read=_head_read,
    reference=_head_reference,
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
    ),
)
