"""A check of lesson 15: a loss over labelled examples that XLA compiles, with fixed shapes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import (
    Check,
    Close,
    Cost,
    Fault,
    Gate,
    Holds,
    Inputs,
    Observed,
    Plain,
    Then,
)

_ROWS, _CLASSES, _UNLABELLED, _LIMIT = 12, 5, 4, 3.0
# Operations whose result has a shape that depends on values.
_DYNAMIC = {"Where", "Unique", "UniqueV2", "UniqueWithCounts", "DynamicPartition", "ListDiff"}
_VALUE_WANTED = (
    r"has no attribute 'numpy'|as a Python `?bool|to a numpy array|not allowed in Graph"
    r"|__float__|__int__|__index__|float\(\) argument|int\(\) argument|be interpreted as an integer"
)


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    labels = draw.integers(_CLASSES, size=_ROWS)
    labels[draw.permutation(_ROWS)[:_UNLABELLED]] = -1
    scores = draw.normal(0, 2.5, size=(_ROWS, _CLASSES))
    return {"scores": scores.astype("float32"), "labels": labels.astype("int32")}


def _call(labelled_loss: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    def step(scores: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(scores)
            loss = labelled_loss(scores, labels)
        return loss, None if loss is None else tape.gradient(loss, scores)

    compiled = tf.function(step, jit_compile=True)
    scores, labels = tf.constant(inputs["scores"]), tf.constant(inputs["labels"])
    try:
        loss, gradient = compiled(scores, labels)
        empty, empty_gradient = compiled(scores, tf.fill([_ROWS], -1))
        graph = compiled.get_concrete_function(scores, labels).graph.as_graph_def()
    except Exception as error:  # what a compiler refuses is what this check is about
        return {"refused": f"{type(error).__name__}: {error}"}
    nodes = [
        *graph.node,
        *(node for function in graph.library.function for node in function.node_def),
    ]
    return {
        "refused": "",
        "loss": loss,
        "gradient": gradient,
        "empty": empty,
        "empty_gradient": empty_gradient,
        "dynamic": sorted({node.op for node in nodes} & _DYNAMIC),
    }


def _reference(given: Inputs, *, divisor: int = _ROWS - _UNLABELLED) -> Plain:
    scores, labels = np.asarray(given["scores"], float), np.asarray(given["labels"])
    clipped = np.clip(scores, -_LIMIT, _LIMIT)
    chances = np.exp(clipped) / np.exp(clipped).sum(axis=1, keepdims=True)
    counts = labels >= 0
    target = np.eye(_CLASSES)[np.maximum(labels, 0)]
    losses = -np.log((chances * target).sum(axis=1))
    inside = np.abs(scores) < _LIMIT
    return {
        "loss": (losses * counts).sum() / divisor,
        "gradient": (chances - target) * counts[:, None] * inside / divisor,
        "empty": 0.0,
        "empty_gradient": np.zeros_like(scores),
        "refused": "",
        "dynamic": [],
    }


def _refusal(inputs: Inputs, outputs: Plain) -> str:
    text = outputs["refused"]
    if operation := re.search(r"'(\w+)' OpKernel", text):
        return f"TensorFlow cannot translate the operation {operation[1]} for XLA"
    return f"it ended with: {text.strip().splitlines()[-1].strip()[:200]}"


def _is_a_number(inputs: Inputs, outputs: Plain) -> bool:
    return outputs["loss"] is not None and np.shape(outputs["loss"]) == ()


COMPILED_LOSS = Check(
    name="labelled_loss",
    title="A loss that XLA compiles",
    question="Which lines ask for a value while the step is traced, and which give a shape that "
    "depends on values?",
    direction=(
        "Go through the function line by line. Each line must be TensorFlow, must not ask a tensor "
        "for its value, and must give a tensor of a fixed shape."
    ),
    cost=Cost.TENSORFLOW,
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=(
        Gate(
            Holds(
                "it can be traced, and XLA compiles it",
                lambda _, out: not out["refused"],
                _refusal,
            )
        ),
        Gate(Holds("the loss is one number", _is_a_number, "it has a different form")),
        Close("loss", "the loss of a batch with labels", atol=1e-5, points=2),
        Then(
            Close("gradient", "its gradient by the scores", atol=1e-5, points=1),
            Close("empty", "the loss of a batch without labels", atol=1e-6, points=0.5),
            Close("empty_gradient", "the gradient of that loss", atol=1e-6, points=0.5),
            Holds(
                "no shape depends on values",
                lambda _, out: not out["dynamic"],
                lambda _, out: f"the graph has {', '.join(out['dynamic'])}",
                points=1,
            ),
        ),
    ),
    hint="tf.clip_by_value for the clip. tf.maximum(labels, 0) for labels that exist. Multiply "
    "the losses by the mask, and divide with tf.math.divide_no_nan by the sum of the mask.",
    revisit='"Repair it, and prove it" in lesson 15',
    mistakes=(
        Observed(
            "python_branch_on_tensor", lambda _, out: re.search(_VALUE_WANTED, out["refused"])
        ).feedback(
            "You asked a tensor for its value, for example in an `if`, with `.numpy()` or with a "
            "function of NumPy. While a step is traced, its tensors have no value. "
            "How can one formula give the right loss in both cases?"
        ),
        Observed("py_function_left", lambda _, out: "PyFunc" in out["refused"]).feedback(
            "You kept a call back into Python. TensorFlow cannot translate it for XLA, and "
            "a TPU would have to wait for its host in every step. Which operation of TensorFlow "
            "does the same?"
        ),
        Observed(
            "nan_times_zero",
            lambda _, out: np.isnan(out["loss"]) or np.isnan(out["gradient"]).any(),
        ).feedback(
            "You let the loss of an example without a label be computed from the label -1. That "
            "loss is NaN, and NaN times 0 is NaN, too. Which label could such an example have "
            "until the mask takes its loss away?"
        ),
        Fault("divided_by_all", sees="loss", divisor=_ROWS).feedback(
            "You divided by all examples of the batch. The loss shrinks with every example that "
            "has no label. How many losses does your sum contain?"
        ),
        Observed("dynamic_shape_op", lambda _, out: out["dynamic"]).feedback(
            "You select the labelled examples, so the shape of the result depends on the labels. "
            "It compiles on this CPU, and it is suspect on a TPU. How could all examples stay, "
            "and only some of them count?"
        ),
    ),
)
