"""A check of lesson 17: split a gated layer by column and then by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Close, Cost, Equal, Fault, Form, Inputs, Plain, Then
from distlab.course.runs.replicas import give_each, mirrored

_EXAMPLES, _FEATURES, _OUTPUTS = 5, 4, 8
_KERNELS = ("gate", "up", "down")


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    devices = (4, 2)[seed % 2]  # the first draw has 2
    hidden = 4 * int(draw.integers(5, 8))  # no axis is as long as half of a different one
    shapes = {
        "x": (_EXAMPLES, _FEATURES),
        "gate": (_FEATURES, hidden),
        "up": (_FEATURES, hidden),
        "down": (hidden, _OUTPUTS),
        "bias": (_OUTPUTS,),
    }
    arrays = {name: draw.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    return {"devices": devices, **arrays}


def _call(split_gated: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    tensors = {key: tf.constant(value) for key, value in inputs.items() if key != "devices"}
    answer = split_gated(*(tensors[name] for name in _KERNELS), inputs["devices"])
    if not (isinstance(answer, tuple) and len(answer) == 2 and callable(answer[1])):
        return {"form": type(answer).__name__}
    pieces = [[tf.convert_to_tensor(kernel) for kernel in piece] for piece in answer[0]]
    forward = answer[1]
    if [len(piece) for piece in pieces] != [3] * inputs["devices"]:
        return {"form": f"{[len(piece) for piece in pieces]} pieces"}
    shapes = [[kernel.shape.as_list() for kernel in piece] for piece in pieces]
    if shapes != _reference(inputs)["shapes"]:
        return {"form": "", "shapes": shapes, "output": None}
    strategy = mirrored(inputs["devices"])
    own = [give_each(strategy, kernels) for kernels in zip(*pieces, strict=True)]
    run = tf.function(lambda *own: strategy.run(forward, args=own))
    results = run(tensors["x"], *own, tensors["bias"])
    return {
        "form": "",
        "shapes": shapes,
        "output": list(strategy.experimental_local_results(results)),
    }


def _reference(
    given: Inputs,
    *,
    cut: tuple[int, int] = (1, 0),
    combine: str = "sum",
    bias: str = "once",
) -> Plain:
    """The pieces' shapes and each device's output, cut along these axes and combined like this."""
    devices, (first, second) = given["devices"], cut
    axes = zip(_KERNELS, (first, first, second), strict=True)
    kernels = (np.split(given[name], devices, axis=axis) for name, axis in axes)
    pieces = list(zip(*kernels, strict=True))
    shapes = [[list(kernel.shape) for kernel in piece] for piece in pieces]
    if cut != (1, 0):
        return {"form": "", "shapes": shapes, "output": None}
    partial = np.stack([_gated(given["x"], *piece) for piece in pieces])
    partial += given["bias"] if bias == "on each" else 0
    summed = {
        "sum": [partial.sum(axis=0)] * devices,
        "mean": [partial.mean(axis=0)] * devices,
        "none": list(partial),
    }[combine]
    output = [each + (given["bias"] if bias == "once" else 0) for each in summed]
    return {"form": "", "shapes": shapes, "output": output}


def _gated(x: Any, gate: Any, up: Any, down: Any) -> Any:
    opened = x @ gate
    return (opened / (1 + np.exp(-opened)) * (x @ up)) @ down


SPLIT = Check(
    name="split_gated",
    title="A gated layer, split by column and then by row",
    question="Which axis of `down` belongs to the same hidden units as the columns of `gate`?",
    direction=(
        "Follow one hidden unit through all three kernels. Everything that belongs to this unit "
        "should be on one device."
    ),
    cost=Cost.TENSORFLOW,
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=(
        Form(
            "a list with three kernels for each device, and a function",
            lambda _, out: out["form"] == "",
            key="form",
        ),
        Equal("shapes", "shapes of gate, up and down on each device"),
        Then(
            Close("output", "on every device, the output of the whole layer", atol=1e-4, points=2)
        ),
    ),
    hint="Cut gate and up by column (axis 1) and down by row (axis 0). Each device then has a part "
    "of every output's sum: all_reduce adds these parts up. Add the bias behind it.",
    revisit='"Split two layers by hand" in lesson 17',
    mistakes=(
        Fault("split_twice_by_column", sees="shapes", cut=(1, 1)).feedback(
            "You cut all three kernels by column. A device then computes a part of the hidden "
            "units, and its piece of `down` asks for all of them. Which cut of `down` needs only "
            "the hidden units that are already on the device?"
        ),
        Fault("row_first", sees="shapes", cut=(0, 1)).feedback(
            "You cut `gate` and `up` by row. Each device then has a part of the sum of every "
            "hidden unit, and silu of a part is not a part of silu. Which cut gives a device "
            "whole hidden units?"
        ),
        Fault("all_reduce_forgotten", combine="none")
        .or_with(combine="none", bias="on each")
        .feedback(
            "Each of your devices returns the part of the output that comes from its own hidden "
            "units, so the devices differ. An output is a sum over all hidden units. Which "
            "collective completes this sum?"
        ),
        Fault("mean_for_sum", combine="mean").feedback(
            "You averaged what the devices computed. Each of them has a different part of one "
            "sum, and not an estimate of the whole. How do you put the parts of a sum together?"
        ),
        Fault("bias_on_each", bias="on each").feedback(
            "You added the bias on each device before the sum, so the output has it as many times "
            "as there are devices. Where in your function is there only one output left?"
        ),
    ),
)
