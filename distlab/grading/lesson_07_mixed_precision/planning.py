"""Two checks of lesson 07: what 16 bits save in memory, and which kind for which device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Criterion, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_equal, expect_true, shown

# Memory

_POLICIES = ("float32", "mixed_float16", "mixed_bfloat16")
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


def _bytes(
    inputs: Inputs,
    *,
    narrow: tuple[str, ...] = ("activations",),
    narrow_policies: tuple[str, ...] = _POLICIES[1:],
    slots: int = 2,
    batch_shared: bool = True,
    weights_shared: bool = False,
    batch: int | None = None,
    times: int = 1,
) -> Plain:
    """Bytes of each part, of a plan with these properties."""
    parameters, replicas = inputs["parameters"], inputs["replicas"]
    batch = batch or inputs["global_batch"] // (replicas if batch_shared else 1)
    held = parameters / replicas if weights_shared else parameters
    numbers = {
        "weights": held,
        "gradients": held,
        "optimizer": slots * held,
        "activations": inputs["activations"] * batch,
    }
    return {
        policy: {
            part: times * count * (2 if part in narrow and policy in narrow_policies else 4)
            for part, count in numbers.items()
        }
        for policy in _POLICIES
    }


def _memory_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    for found in outputs.values():
        if not isinstance(found, dict) or not set(_PARTS) <= found.keys():
            what = "nothing: is there a `return`?" if found is None else shown(found)
            label = f"it returns a dictionary with {', '.join(_PARTS)}"
            return Verdict.of(expect_true(label, False, message=f"yours returned {what}"))
    right = _bytes(inputs)
    return Verdict.of(
        *(
            expect_equal(
                f"bytes of the {part}, in {', '.join(_POLICIES)}",
                yours=[_rounded(outputs[policy][part]) for policy in _POLICIES],
                expected=[right[policy][part] for policy in _POLICIES],
            )
            for part in _PARTS
        )
    )


def _rounded(value: Plain) -> Plain:
    whole = isinstance(value, float) and value.is_integer()
    return int(value) if whole else value


def _budget(**how: Any) -> Callable[[Inputs], Plain]:
    return lambda inputs: _bytes(inputs, **how)


def _wrong_in(part: str, **how: Any) -> Callable[[Inputs, Plain], bool]:
    """Whether this part is what such a plan gives for it, whatever the others are."""

    def when(inputs: Inputs, outputs: Plain) -> bool:
        wrong, right = _bytes(inputs, **how), _bytes(inputs)
        mine = [outputs[policy][part] for policy in _POLICIES]
        return mine == [wrong[p][part] for p in _POLICIES] != [right[p][part] for p in _POLICIES]

    return when


MEMORY = Check(
    name="training_bytes",
    function="training_bytes",
    title="What is in the memory of one replica",
    points=2,
    inputs=_memory_inputs,
    call=_memory_call,
    judge=_memory_judge,
    hint="Four bytes for a number in float32, two in 16 bits. Which of the four parts does a "
    "mixed policy keep in float32? And which of them is shared among the replicas?",
    revisit="What 16 bits save",
    mistakes=(
        Mistake(
            "all_halved",
            "Everything is half as large in your budget. A mixed policy halves only what layers "
            "compute, their outputs; the rest stays in float32.",
            yields=_budget(narrow=_PARTS),
        ),
        Mistake(
            "optimizer_state_halved",
            "Adam's two numbers for each weight stay in float32, and so does what it updates.",
            when=_wrong_in("optimizer", narrow=_PARTS),
        ),
        Mistake(
            "weights_halved",
            "The weights stay in float32: in 16 bits small steps would round away. The copy in 16 "
            "bits is made for a moment, layer by layer.",
            when=_wrong_in("weights", narrow=_PARTS),
        ),
        Mistake(
            "gradients_halved",
            "On the way back gradients are 16 bits wide. That of a weight is float32 again when "
            "it leaves the tape, and these are the ones to keep.",
            when=_wrong_in("gradients", narrow=_PARTS),
        ),
        Mistake(
            "nothing_halved",
            "Your activations take four bytes in every policy. What does a mixed policy compute "
            "in?",
            when=_wrong_in("activations", narrow=()),
        ),
        Mistake(
            "bfloat16_forgotten",
            "bfloat16 has 16 bits as well.",
            when=_wrong_in("activations", narrow_policies=("mixed_float16",)),
        ),
        Mistake(
            "all_replicas",
            "That is what all replicas take together. How much is it on one?",
            yields=lambda inputs: _bytes(inputs, times=inputs["replicas"]),
        ),
        Mistake(
            "one_example",
            "These are the activations of one example. A replica keeps those of all its examples.",
            when=_wrong_in("activations", batch=1),
        ),
        Mistake(
            "global_batch_on_each",
            "No replica has the outputs for the global batch: each computes its share.",
            when=_wrong_in("activations", batch_shared=False),
        ),
        Mistake(
            "weights_shared_out",
            "A MirroredStrategy has all the weights on every replica, with gradients and state. "
            "More replicas do not make a model fit.",
            when=_wrong_in("weights", weights_shared=True),
        ),
        Mistake(
            "one_slot",
            "Adam keeps two numbers for each weight: a mean and a mean square.",
            when=_wrong_in("optimizer", slots=1),
        ),
    ),
)


# Which kind of 16 bits

_BFLOAT16, _FLOAT16 = "mixed_bfloat16", "mixed_float16"
_ANSWERS: dict[str, tuple[str, bool]] = {
    "T4": (_FLOAT16, True),
    "V100": (_FLOAT16, True),
    "H200": (_BFLOAT16, False),
    "TPU v5e": (_BFLOAT16, False),
    "GTX 1080": ("float32", False),
}
_REASONS = {
    ("T4", _BFLOAT16): "it has no units for bfloat16",
    ("V100", _BFLOAT16): "it has no units for bfloat16",
    ("T4", "float32"): "its fast units lie idle in float32",
    ("V100", "float32"): "its fast units lie idle in float32",
    ("H200", _FLOAT16): "it works and is fast, but bfloat16 is so without any loss scale",
    ("H200", "float32"): "its fast units lie idle, and activations take twice the room",
    ("TPU v5e", _FLOAT16): "its matrix units are made for bfloat16",
    ("TPU v5e", "float32"): "activations take twice the room",
    ("GTX 1080", _FLOAT16): "it has no fast units for 16 bits",
    ("GTX 1080", _BFLOAT16): "it has no fast units for 16 bits",
}


def _choice_inputs(seed: int) -> Inputs:
    return {"devices": np.random.default_rng(seed).permutation(list(_ANSWERS)).tolist()}


def _choice_call(choose: Callable[..., Any], inputs: Inputs) -> Plain:
    return {device: choose(device) for device in inputs["devices"]}


def _choice_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    return Verdict.of(*(_one_choice(device, outputs[device]) for device in _ANSWERS))


def _one_choice(device: str, yours: Plain) -> Criterion:
    wanted = _ANSWERS[device]
    label = f"{device}: the policy, and whether it needs a loss scale"
    if yours is None:
        why = "your function returned None: is there a `return`?"
    elif not isinstance(yours, list) or len(yours) != 2:
        why = "two things are asked for, a policy and True or False"
    elif yours[0] not in _POLICIES:
        why = f"the first thing is a policy: {', '.join(_POLICIES)}"
    elif yours[1] not in (True, False):
        why = "the second thing is True or False"
    elif yours[0] != wanted[0]:
        why = _REASONS[device, yours[0]]
    else:
        why = (
            "float16 loses small gradients without a loss scale"
            if wanted[1]
            else "its range is that of float32: nothing to scale"
        )
    # The expected answer is not shown: the reason is there to find it by.
    return Criterion(label, yours == list(wanted), "" if yours == list(wanted) else why)


def _chose(devices: tuple[str, ...], *policies: str) -> Callable[[Inputs, Plain], bool]:
    return lambda inputs, outputs: any(outputs[device][0] in policies for device in devices)


def _scale_is(policy: str, scaled: bool) -> Callable[[Inputs, Plain], bool]:
    return lambda inputs, outputs: any(
        answer[0] == policy and answer[1] is scaled for answer in outputs.values()
    )


CHOICE = Check(
    name="choose_policy",
    function="choose",
    title="Which policy for which device",
    points=2,
    inputs=_choice_inputs,
    call=_choice_call,
    judge=_choice_judge,
    hint="Ask of each device: which kind of 16 bits do its fast units know? Where they know both, "
    "take the one that needs no care.",
    revisit="Which one, where",
    mistakes=(
        Mistake(
            "bf16_fast_on_t4",
            "T4 and V100 are older than bfloat16 on GPUs: TensorFlow accepts the policy, but "
            "their fast units know float16 only.",
            when=_chose(("T4", "V100"), _BFLOAT16),
        ),
        Mistake(
            "fp16_on_tpu",
            "A TPU's matrix units take bfloat16. It has the range of float32, so the loss scale "
            "goes too.",
            when=_chose(("TPU v5e",), _FLOAT16),
        ),
        Mistake(
            "fast_without_units",
            "A GTX 1080 has no fast units for 16 bits, of either kind.",
            when=_chose(("GTX 1080",), _FLOAT16, _BFLOAT16),
        ),
        Mistake(
            "bfloat16_scaled",
            "bfloat16 has float32's exponent: no gradient falls below its line, so there is "
            "nothing to scale.",
            when=_scale_is(_BFLOAT16, True),
        ),
        Mistake(
            "float16_unscaled",
            "float16 turns small gradients into zeros: it wants a loss scale, on every device.",
            when=_scale_is(_FLOAT16, False),
        ),
    ),
)
