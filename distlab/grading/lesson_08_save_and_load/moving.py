"""A check of lesson 08: a model and its optimizer, moved to several replicas."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Criterion, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_close, expect_equal, expect_true
from distlab.grading.replicas import mirrored

_RATE, _BATCH, _STEPS = 0.1, 12, 2  # steps before the move, and as many after it


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    return {
        "replicas": 2 + seed % 2,
        "x": draw.normal(size=(_BATCH * _STEPS, 4)).astype(np.float32),
        "y": draw.normal(size=(_BATCH * _STEPS, 2)).astype(np.float32),
        "kernel": draw.normal(size=(4, 2)).astype(np.float32),
    }


def _call(move: Callable[..., Any], inputs: Inputs) -> Plain:
    import keras

    strategy = mirrored(inputs["replicas"])
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.keras"
        _save_trained(path, inputs)
        model = move(path, strategy)
        if not isinstance(model, keras.Model):
            return {"returned": type(model).__name__}
        optimizer = getattr(model, "optimizer", None)  # none where it was not compiled
        found = {
            "returned": "a model",
            "copies": _fewest_copies(strategy, model.variables),
            "optimizer copies": _fewest_copies(strategy, optimizer.variables if optimizer else ()),
            "steps": int(optimizer.iterations.numpy()) if optimizer else None,
            "error": _error_of_training(model, inputs),
        }
        return found | {"kernel": np.array(model.get_weights()[0])}


def _save_trained(path: str, inputs: Inputs) -> None:
    import keras

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, use_bias=False)])
    model.compile(keras.optimizers.Adam(_RATE), loss="mse")
    model.set_weights([inputs["kernel"]])
    _fit(model, inputs)
    model.save(path)


def _fit(model: Any, inputs: Inputs) -> None:
    model.fit(inputs["x"], inputs["y"], batch_size=_BATCH, shuffle=False, verbose=0)


def _fewest_copies(strategy: Any, variables: Any) -> int:
    counts = [len(strategy.experimental_local_results(v.value)) for v in variables]
    return min(counts, default=0)


def _error_of_training(model: Any, inputs: Inputs) -> str:
    try:
        _fit(model, inputs)
    except Exception as error:  # whatever it is, it is the answer's
        first_line = f"{type(error).__name__}: {error}".splitlines()[0]
        first_line = re.sub(r" object at 0x[0-9a-f]+", "", first_line)
        return first_line.partition(" for <")[0].rstrip(": ")  # an object and its address
    return ""


def _kernel(inputs: Inputs) -> Any:
    """Linear regression by Adam in float64, over the same batches before and after the move."""
    kernel = inputs["kernel"].astype(np.float64)
    first = second = np.zeros_like(kernel)
    for step in range(1, 2 * _STEPS + 1):
        start = (step - 1) % _STEPS * _BATCH
        x, y = (inputs[name][start : start + _BATCH].astype(np.float64) for name in ("x", "y"))
        gradient = 2 * x.T @ (x @ kernel - y) / y.size
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        length = _RATE * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        kernel = kernel - length * first / (np.sqrt(second) + 1e-7)
    return kernel


def _judge(inputs: Inputs, outputs: Plain) -> Verdict:
    if outputs["returned"] != "a model":
        message = f"your function returned no model: {outputs['returned']}"
        if outputs["returned"] == "NoneType":
            message = "your function returned None: is there a `return`?"
        return Verdict.of(expect_true("a model comes back", False, message=message))
    replicas = inputs["replicas"]
    return Verdict.of(
        expect_equal(
            "copies of each variable: of the model, of the optimizer",
            yours=[outputs["copies"], outputs["optimizer copies"]],
            expected=[replicas, replicas],
        ),
        expect_equal("steps that the optimizer knows of", yours=outputs["steps"], expected=_STEPS)
        if outputs["steps"] is not None
        else expect_true("an optimizer", False, message="the model has none: is it compiled?"),
        _goes_on(inputs, outputs),
    )


def _goes_on(inputs: Inputs, outputs: Plain) -> Criterion:
    label = "the weights after more steps, those of a run that never moved"
    if outputs["error"]:
        return expect_true(label, False, message=f"fit raises {outputs['error']}", weight=2)
    right = _kernel(inputs)
    return expect_close(label, yours=outputs["kernel"], expected=right, atol=1e-4, weight=2)


MOVE = Check(
    name="move_model",
    function="move",
    title="A model and its optimizer, on other replicas",
    points=3,
    inputs=_inputs,
    call=_call,
    judge=_judge,
    hint="Load the model inside `with strategy.scope():`, where its variables get their copies. It "
    "brings its optimizer along, so do not compile it again.",
    revisit="Loaded outside the scope",
    mistakes=(
        Mistake(
            "loaded_outside_scope",
            "The model was loaded before the scope was entered, so its variables have one copy. "
            "They get their copies when they are made.",
            when=lambda inputs, outputs: outputs["copies"] < inputs["replicas"],
        ),
        Mistake(
            "not_compiled",
            "The model has no optimizer: it was loaded without what `compile` was told.",
            when=lambda inputs, outputs: outputs["steps"] is None,
        ),
        Mistake(
            "optimizer_lost",
            "The optimizer knows of no step: it is a new one, without Adam's averages. Who "
            "compiles again throws the old one away.",
            when=lambda inputs, outputs: outputs["steps"] == 0,
        ),
        Mistake(
            "averages_lost",
            "The optimizer knows how many steps were taken, and not what it learnt in them: Adam's "
            "averages are new.",
            when=lambda inputs, outputs: (
                outputs["steps"] == _STEPS and outputs["copies"] == inputs["replicas"]
            ),
        ),
    ),
)
