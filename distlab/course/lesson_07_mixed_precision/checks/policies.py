"""Checks of lesson 07: what a policy saves in memory, and which policy fits which device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Cost, Criterion, Equal, Fault, Form, Inputs, Plain
from distlab.course.checks.criteria import Compared

_POLICIES = ("float32", "mixed_float16", "mixed_bfloat16")
_FLOAT32, _FLOAT16, _BFLOAT16 = _POLICIES

# --- training_bytes

_PARTS = ("weights", "gradients", "optimizer", "activations")


def _draw_model(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    replicas = int(draw.choice([2, 4, 8]))
    return {
        "parameters": int(draw.integers(1_000, 100_000)),
        "activations": int(draw.integers(100, 10_000)),
        "global_batch": replicas * int(draw.integers(8, 65)),
        "replicas": replicas,
    }


def _bytes_by_policy(training_bytes: Callable[..., Any], inputs: Inputs) -> Plain:
    return {policy: training_bytes(policy=policy, **inputs) for policy in _POLICIES}


def _bytes_by_part(given: Inputs, outputs: Plain) -> Plain:
    """The bytes of each part, in a list of the policies."""
    for answer in outputs.values():
        if not isinstance(answer, dict) or not set(_PARTS) <= answer.keys():
            return {"a different form": answer}
    return {part: [_rounded(outputs[policy][part]) for policy in _POLICIES] for part in _PARTS}


def _rounded(value: Plain) -> Plain:
    whole = isinstance(value, float) and value.is_integer()
    return int(value) if whole else value


def _right_bytes(
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
    direction=(
        "Take the parts one by one: how many numbers are there, how many bytes has each, and does "
        "every replica hold all of them?"
    ),
    cost=Cost.PURE,
    inputs=_draw_model,
    call=_bytes_by_policy,
    read=_bytes_by_part,
    reference=_right_bytes,
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


def _draw_devices(seed: int) -> Inputs:
    return {"devices": np.random.default_rng(seed).permutation(list(_ANSWERS)).tolist()}


def _choices(choose: Callable[..., Any], inputs: Inputs) -> Plain:
    return {device: choose(device) for device in inputs["devices"]}


def _right_choices(given: Inputs, **answers: Plain) -> Plain:
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
    direction=(
        "Look at the age of the device first, then at the range of the type: only a small range "
        "needs a loss scale."
    ),
    cost=Cost.PURE,
    inputs=_draw_devices,
    call=_choices,
    reference=_right_choices,
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
