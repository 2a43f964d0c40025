"""A check of lesson 17: choose the kind of parallelism for five models.

Its feedback asks about the model and never says the answer: there are few to guess from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.checks import Check, Cost, Fault, Inputs, Plain
from distlab.checks.criteria import Choice, Gate, Holds

KINDS = ("data", "sharded", "tensor", "pipeline", "expert")
_ASK = {
    "classifier": "how many gigabytes does all of this model take?",
    "language model": "does it fit if it is divided, and is there room for its largest layer?",
    "wide layer": "what must a device hold while it computes the largest layer?",
    "two sites": "how often would your choice use the link between the devices?",
    "many experts": "which part of the model does one example use?",
}
_Model = dict[str, Any]


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)

    def model(least: float, most: float, **facts: Any) -> _Model:
        parameters = int(draw.uniform(least, most) * 1e9)
        size = {"parameters": parameters, "bytes_per_parameter": 16, "largest_layer_gb": 2.0}
        return size | {"device_gb": 80, "devices": 8, "link": "fast", "experts": 1} | facts

    models = {
        "classifier": model(0.02, 3.0),
        "language model": model(7.5, 25),
        "wide layer": model(12, 25, largest_layer_gb=float(draw.integers(90, 120))),
        "two sites": model(7.5, 20, link="slow"),
        # Even its weights alone do not fit on one device.
        "many experts": model(100, 150, devices=64, experts=int(draw.integers(16, 129))),
    }
    return {"order": draw.permutation(sorted(models)).tolist(), "models": models}


def _call(choose_parallelism: Callable[..., Any], inputs: Inputs) -> Plain:
    return {name: choose_parallelism(dict(inputs["models"][name])) for name in inputs["order"]}


def _reference(
    given: Inputs,
    *,
    bytes_each: int | None = None,
    layer_counts: bool = True,
    link_counts: bool = True,
    experts_count: bool = True,
    always: str = "",
) -> Plain:
    """The kind for each model, chosen with these habits."""

    def kind(model: _Model) -> str:
        total = model["parameters"] * (bytes_each or model["bytes_per_parameter"]) / 1e9
        layer = model["largest_layer_gb"] if layer_counts else 0
        if total <= model["device_gb"]:
            return "data"
        if model["experts"] > 1 and experts_count:
            return "expert"
        if model["link"] == "slow" and link_counts:
            return "pipeline"
        fits = total / model["devices"] + layer <= model["device_gb"]
        return "sharded" if fits else "tensor"

    return {name: always or kind(model) for name, model in given["models"].items()}


CHOOSE = Check(
    name="choose_parallelism",
    title="A kind of parallelism for five models",
    question="Which of the five questions has the answer yes first, for the model that you missed?",
    direction="Work out the gigabytes of one model by hand, and ask the questions in their order.",
    cost=Cost.PURE,
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=(
        Gate(
            Holds(
                "the answer depends on the model",
                lambda _, out: (
                    len({str(kind) for kind in out.values()}) > 1 or None in out.values()
                ),
                "your function gives the same answer to every model",
            )
        ),
        *(Choice(name, f"the model {name!r}", among=KINDS, ask=ask) for name, ask in _ASK.items()),
    ),
    hint="total = parameters * bytes_per_parameter / 1e9. Data if total fits on one device; expert "
    "if there are several experts; pipeline if the link is slow; sharded if total / devices and "
    "the largest layer fit together; else tensor.",
    revisit='"Which one decides" in lesson 17',
    mistakes=(
        Fault("data_parallel_always", always="data").feedback(
            "You chose data parallelism for every model, and four of these five do not fit on one "
            "device. The memory of several devices does not add up, because each replica holds the "
            "whole model. With whose memory must you compare?"
        ),
        # It still finds the experts, whose weights alone are too large.
        Fault("weights_only", sees=("language model", "two sites", "many experts"), bytes_each=2)
        .or_with(bytes_each=4)
        .feedback(
            "You counted the weights only. A step also needs the gradients and the optimizer's "
            "state. How many bytes does each parameter take in all?"
        ),
        Fault("layer_ignored", layer_counts=False).feedback(
            "You chose sharding for a model whose largest layer does not fit. A device that "
            "computes a layer fetches all of its weights first. Which kind never puts a whole "
            "layer on one device?"
        ),
        Fault("link_ignored", link_counts=False).feedback(
            "You chose a kind that sends weights or activations within each layer, over a slow "
            "link. Which kind sends only the activations between two groups of layers?"
        ),
        Fault("experts_ignored", experts_count=False).feedback(
            "You treated a layer of many experts like any other layer. An example uses few of "
            "them, so most weights need not meet most examples. Which kind sends the example to "
            "its expert?"
        ),
    ),
)
