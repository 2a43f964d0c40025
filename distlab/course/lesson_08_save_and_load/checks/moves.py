"""A check of lesson 08: a model and its optimizer, moved to several replicas."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import (
    Check,
    Close,
    Cost,
    Equal,
    Fault,
    Gate,
    Holds,
    Inputs,
    Observed,
    Plain,
)
from distlab.course.checks.criteria import Then
from distlab.course.runs.replicas import mirrored

_RATE, _BATCH, _STEPS = 0.1, 12, 2  # rate and steps before the move; as many steps after it


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    return {
        "replicas": 2 + seed % 2,
        "rate": float(draw.choice([0.01, 0.02, 0.04])),
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
        model = move(path, strategy, inputs["rate"])
        if not isinstance(model, keras.Model):
            return {"returned": type(model).__name__}
        optimizer = getattr(model, "optimizer", None)  # none where it was not compiled
        variables = (model.variables, optimizer.variables if optimizer else ())
        moved = {
            "returned": "a model",
            "copies": [_fewest_copies(strategy, each) for each in variables],
            "steps": int(optimizer.iterations.numpy()) if optimizer else None,
            "error": _error_of_training(model, inputs),
        }
        return moved | {"kernel": np.array(model.get_weights()[0])}


def _save_trained(path: str, inputs: Inputs) -> None:
    import keras

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, use_bias=False)])
    model.compile(keras.optimizers.Adam(_RATE), loss="mse", jit_compile=False)
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


def _reference(given: Inputs, *, same_optimizer: bool = True, slower: bool = True) -> Plain:
    """Linear regression by Adam, over the same batches before and after the move."""
    kernel = given["kernel"].astype(np.float64)
    first = second = np.zeros_like(kernel)
    steps = 0
    for batch in range(2 * _STEPS):
        if batch == _STEPS and not same_optimizer:
            steps, first, second = 0, np.zeros_like(kernel), np.zeros_like(kernel)
        start = batch % _STEPS * _BATCH
        x, y = (given[name][start : start + _BATCH].astype(np.float64) for name in ("x", "y"))
        gradient = 2 * x.T @ (x @ kernel - y) / y.size
        steps += 1
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        rate = given["rate"] if slower and batch >= _STEPS else _RATE
        length = rate * np.sqrt(1 - 0.999**steps) / (1 - 0.9**steps)
        kernel = kernel - length * first / (np.sqrt(second) + 1e-7)
    return {
        "returned": "a model",
        "error": "",
        "copies": [given["replicas"]] * 2,
        "steps": _STEPS if same_optimizer else 0,
        "kernel": kernel,
    }


def _no_model(given: Inputs, out: Plain) -> str:
    if out["returned"] == "NoneType":
        return "your function returned None: is there a `return`?"
    return f"your function returned no model: {out['returned']}"


_GOES_ON = "the weights after more steps, those of a run that never moved and has the new rate"

MOVE = Check(
    name="move_model",
    function="move",
    title="A model and its optimizer, on more replicas",
    question=(
        "Where were the model's variables made, and which state did the optimizer bring along?"
    ),
    direction=(
        "Compare three things with the saved model: the copies of a weight, the optimizer's step "
        "counter, and its momentum."
    ),
    cost=Cost.TENSORFLOW,
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=(
        Gate(
            Holds("a model comes back", lambda given, out: out["returned"] == "a model", _no_model)
        ),
        Equal("copies", "copies of each variable: of the model, of the optimizer", points=1),
        Gate(
            Holds(
                "an optimizer",
                lambda given, out: out["steps"] is not None,
                "the model has none: is it compiled?",
            )
        ),
        Gate(
            Holds(
                _GOES_ON,
                lambda given, out: not out["error"],
                lambda given, out: f"fit raises {out['error']}",
            )
        ),
        Then(  # a model that was only loaded, and not moved, has these as well
            Equal("steps", "steps that the optimizer knows of", points=0.5),
            Close("kernel", _GOES_ON, atol=1e-4, points=1.5),
        ),
    ),
    hint="Load the model inside `with strategy.scope():`, where its variables get their copies. "
    "Then set `model.optimizer.learning_rate`. Do not compile: that makes a new optimizer.",
    revisit="Train on",
    mistakes=(
        Observed(
            "loaded_outside_scope", lambda given, out: out["copies"][0] < given["replicas"]
        ).feedback(
            "You loaded the model before you entered the scope. Its variables have one copy, so it "
            "cannot train on all replicas. When does a variable get its copies?"
        ),
        Observed("not_compiled", lambda given, out: out["steps"] is None).feedback(
            "You loaded the model without its optimizer, so it cannot train. Which part of the "
            "file did you leave out?"
        ),
        Fault("optimizer_lost", sees="steps", same_optimizer=False).feedback(
            "Your model has a new optimizer: it knows of 0 steps and has no averages. So its first "
            "steps are as long as at the very start. Which of your lines made a new optimizer?"
        ),
        Fault("rate_kept", slower=False).feedback(
            "Your model continues with the old learning rate. So it takes longer steps than you "
            "were asked for. Where does the optimizer that you loaded keep its rate?"
        ),
    ),
)
