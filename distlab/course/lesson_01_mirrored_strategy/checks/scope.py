"""A check of lesson 01: what has to be made in the scope."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Cost, Equal, Fault, Gate, Holds, Inputs, Plain
from distlab.course.runs.replicas import mirrored


def _inputs(seed: int) -> Inputs:
    # The first draw has two replicas, like the exercise.
    replicas = 2 + (seed - 1) % 3
    return {"units": int(np.random.default_rng(seed).integers(2, 40)), "replicas": replicas}


def _call(make_model: Callable[..., Any], inputs: Inputs) -> Plain:
    import keras

    strategy = mirrored(inputs["replicas"])
    model = make_model(strategy, inputs["units"])
    if not isinstance(model, keras.Model):
        return {"returned": type(model).__name__}
    with model.distribute_strategy.scope():  # where `fit` builds what is not built yet
        answer = model(np.zeros((1, 3), np.float32))
    optimizer = getattr(model, "optimizer", None)  # none where it was not compiled

    def copies(variables: Any) -> Plain:
        """How many copies each variable has: one number if all have as many, else all numbers."""
        counts = [len(strategy.experimental_local_results(each.value)) for each in variables]
        return counts[0] if len(set(counts)) == 1 else counts

    return {
        "returned": "a model",
        "units": int(answer.shape[-1]),
        "weights": copies(model.weights),
        "optimizer": copies(optimizer.variables) if optimizer else None,
    }


def _reference(given: Inputs, *, weights: str = "inside", optimizer: str = "inside") -> Plain:
    copies = {"inside": given["replicas"], "outside": 1}
    return {
        "returned": "a model",
        "units": given["units"],
        "weights": copies[weights],
        "optimizer": copies[optimizer],
    }


def _no_model(given: Inputs, out: Plain) -> str:
    if out["returned"] == "NoneType":
        return "your function returned None: is there a `return`?"
    return f"your function returned no model: {out['returned']}"


SCOPE = Check(
    name="scope",
    function="make_model",
    title="Everything that a step changes has a copy on every device",
    question="Which variables does a training step change, and which line makes each of them?",
    direction=(
        "A variable gets its copies when it is made. Look for every line that makes one, in the "
        "model and in the optimizer."
    ),
    cost=Cost.TENSORFLOW,
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=(
        Gate(Holds("a model comes back", lambda _, out: out["returned"] == "a model", _no_model)),
        Gate(Equal("units", "units of its layer")),
        Equal("weights", "copies of each weight of the model"),
        Gate(
            Holds(
                "an optimizer",
                lambda _, out: out["optimizer"] is not None,
                "the model has none: is it compiled?",
            )
        ),
        Equal("optimizer", "copies of each variable of the optimizer"),
    ),
    hint="compile makes no weights. Which lines do? A variable is made where its owner is: the "
    "weights with the layers, the step counter and the momentum with the optimizer.",
    revisit='"What the scope does" in lesson 01',
    mistakes=(
        Fault("compile_only_inside", weights="outside", optimizer="outside").feedback(
            "You put only `compile` into the scope, and `compile` makes no weights here. "
            "Every variable has one copy, so Keras trains on one device and says nothing. "
            "Which two lines make variables?"
        ),
        Fault("optimizer_outside", sees=("weights", "optimizer"), optimizer="outside").feedback(
            "You made the model inside the scope and the optimizer outside. The optimizer has "
            "variables as well, such as its step counter, and all replicas add to the one "
            "copy. On which line is the optimizer made? (If you give only its name, `compile` "
            "makes it.)"
        ),
        Fault("model_outside", sees=("weights", "optimizer"), weights="outside").feedback(
            "You made the optimizer inside the scope and the layers outside, so each weight "
            "has one copy. Training then stops with an error that has no text. Which line "
            "makes the weights?"
        ),
    ),
)
