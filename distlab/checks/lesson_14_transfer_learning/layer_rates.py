"""A check of lesson 14: a learning rate for each layer of a model that is fine-tuned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.checks import Check, Close, Cost, Fault, Form, Holds, Inputs, Observed, Plain, Then


def _inputs(seed: int) -> Inputs:
    """A ladder of layers: frozen ones first, then others; one between them is frozen, too."""
    draw = np.random.default_rng(seed)
    frozen = int(draw.integers(1, 3))
    kinds = [("conv", True), ("relu", False), ("conv", True), ("pool", False), ("kept", True)]
    kinds += [("conv", True)] * int(draw.integers(1, 3)) + [("head", True)]
    layers = [
        [f"{kind}_{at}", weights, kind != "kept" and at > frozen]
        for at, (kind, weights) in enumerate([("conv", True)] * (frozen + 1) + kinds)
    ]
    return {
        "layers": layers,
        "head_rate": float(draw.uniform(0.005, 0.02)),
        "factor": float(draw.uniform(2, 4)),
    }


def _call(rates: Callable[..., Any], inputs: Inputs) -> Plain:
    layers = [tuple(layer) for layer in inputs["layers"]]
    return {"rates": rates(layers, inputs["head_rate"], inputs["factor"])}


def _read(given: Inputs, outputs: Plain) -> Plain:
    """Takes the rates apart: those of trained layers from the top, and all other names."""
    rates = outputs["rates"]
    names = [name for name, weights, trained in reversed(given["layers"]) if weights and trained]
    good = isinstance(rates, dict) and set(names) <= set(rates)
    others = {name: rate for name, rate in rates.items() if name not in names} if good else {}
    return {
        "form": rates,
        "good": good,
        "trained": [rates[name] for name in names] if good else None,
        "head": rates[names[0]] if good else None,
        "others": sorted(name for name, rate in others.items() if rate != 0),
    }


def _reference(
    given: Inputs,
    *,
    power: int = -1,
    reverse: bool = False,
    count: str = "both",
    linear: bool = False,
) -> Plain:
    layers, below, found = given["layers"], 0, []
    for _, weights, trained in reversed(layers):
        if weights and trained:
            scale = (
                1 / (1 + below * (given["factor"] - 1))
                if linear
                else given["factor"] ** (power * below)
            )
            found.append(given["head_rate"] * scale)
        counts = {"all": True, "weights": weights, "trainable": trained}
        if (weights and trained) or counts.get(count):
            below += 1
    found = found[::-1] if reverse else found
    return {"form": {}, "good": True, "trained": found, "head": found[0], "others": []}


RATES = Check(
    name="layer_rates",
    title="A learning rate for each layer",
    question="How many trained layers lie between a layer and the end of the model?",
    direction=(
        "Walk through the layers from the last to the first. Which kind of layer makes the next "
        "rate smaller, and which kind leaves it as it is?"
    ),
    cost=Cost.PURE,
    inputs=_inputs,
    call=_call,
    read=_read,
    reference=_reference,
    criteria=(
        Form(
            "a dictionary with a rate for each layer that is trained",
            lambda _, out: out["good"],
            key="form",
        ),
        Close("trained", "the rates of the trained layers, the head first", atol=1e-9, points=2),
        Then(
            Holds(
                "no rate for a layer that does not learn",
                lambda _, out: not out["others"],
                lambda _, out: f"yours has a rate for {', '.join(out['others'])}",
                points=1,
            )
        ),
    ),
    hint="Start with `rate = head_rate`, and walk through `reversed(layers)`. If a layer is "
    "trained, note the rate for it, and only then divide the rate by `factor`.",
    revisit='"A rate for weights that know something" in lesson 14',
    mistakes=(
        Fault("same_lr", power=0).feedback(
            "You gave every layer the rate of the head. The head starts from random numbers and "
            "has far to go, while the layers below it already know something. What do large steps "
            "do to weights that are nearly right?"
        ),
        Fault("bottom_fastest", reverse=True)
        .or_with(power=1)
        .feedback(
            "You gave the lowest trained layer the largest rate. Those layers find edges and "
            "corners, which the new task needs as they are. Which layer has to change most?"
        ),
        Fault("every_layer_counted", count="all")
        .or_with(count="weights")
        .or_with(count="trainable")
        .feedback(
            "You divided the rate at layers that do not learn. Such a layer makes "
            "no step, so the layers below it now learn too slowly. Which layers count?"
        ),
        Fault("divided_by_multiples", linear=True).feedback(
            "You lowered the rate by the same amount for every layer, not by the same factor. By "
            "what do you divide the rate of the layer directly above?"
        ),
        Observed("frozen_has_a_rate", lambda _, out: bool(out["good"] and out["others"])).feedback(
            "You gave a rate to a layer that is frozen or has no weights. Its rate is never used, "
            "and a reader of your table will think that the layer learns. Which of the three "
            "entries of a layer says that it learns?"
        ),
    ),
)
