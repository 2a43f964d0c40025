"""A check of lesson 07: which kind of 16 bits for which device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.checks import Check, Cost, Criterion, Fault, Inputs, Plain
from distlab.checks.criteria import Compared
from distlab.checks.lesson_07_mixed_precision.memory import POLICIES

_FLOAT32, _FLOAT16, _BFLOAT16 = POLICIES
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


def _inputs(seed: int) -> Inputs:
    return {"devices": np.random.default_rng(seed).permutation(list(_ANSWERS)).tolist()}


def _call(choose: Callable[..., Any], inputs: Inputs) -> Plain:
    return {device: choose(device) for device in inputs["devices"]}


def _reference(given: Inputs, **answers: Plain) -> Plain:
    return _ANSWERS | {device.replace("_", " "): answer for device, answer in answers.items()}


class _Policy(Compared):
    """A policy, and whether it needs a loss scale; the right ones are not shown, but a reason."""

    def compare(self, yours: Plain, expected: Plain) -> Criterion:
        if yours is None:
            why = "your function returned None: is there a `return`?"
        elif not isinstance(yours, list) or len(yours) != 2:
            why = "return two things: a policy, and True or False"
        elif yours[0] not in POLICIES:
            why = f"the first thing is a policy: {', '.join(POLICIES)}"
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
    inputs=_inputs,
    call=_call,
    reference=_reference,
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
