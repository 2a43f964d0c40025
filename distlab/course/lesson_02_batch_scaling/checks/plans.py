"""A check of lesson 02: batch, learning rate and steps of a job that moves to several replicas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Close, Cost, Equal, Fault, Form, Inputs, Plain

_PARTS = ("global_batch", "learning_rate", "steps")
_FORM = "a dictionary with global_batch, learning_rate, steps"


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    per_replica, replicas = int(draw.choice([24, 40, 52])), int(draw.choice([2, 4, 6]))
    accumulate = int(draw.choice([3, 5]))
    batch = per_replica * replicas * accumulate
    # About half a batch is left at the end of each epoch: to forget it changes the steps.
    examples = batch * int(draw.integers(5, 20)) + round(batch * draw.uniform(0.4, 0.6))
    return {
        "examples": examples,
        "epochs": int(draw.integers(4, 8)),
        "per_replica": per_replica,
        "replicas": replicas,
        "accumulate": accumulate,
        "found_rate": round(float(draw.uniform(0.01, 0.1)), 4),
        "found_batch": int(draw.choice([14, 22, 34])),
    }


def _call(plan_job: Callable[..., Any], inputs: Inputs) -> Plain:
    return {name: plan_job(optimizer=name, **inputs) for name in ("sgd", "adam")}


def _has_parts(given: Inputs, out: Plain) -> bool:
    return "a different form" not in out


def _read(given: Inputs, outputs: Plain) -> Plain:
    for plan in outputs.values():
        if not isinstance(plan, dict) or not set(_PARTS) <= plan.keys():
            return {"a different form": plan}
    sgd, adam = outputs["sgd"], outputs["adam"]
    return {
        "global_batch": sgd["global_batch"],
        "rate": sgd["learning_rate"],
        "adam rate": adam["learning_rate"],
        "steps": sgd["steps"],
    }


def _reference(
    given: Inputs,
    *,
    counted: tuple[str, ...] = ("per_replica", "replicas", "accumulate"),
    ratio_of: Callable[[Inputs, int], float] = lambda given, batch: batch / given["found_batch"],
    adam: Callable[[float], float] = math.sqrt,
    steps_by: str = "",
) -> Plain:
    """The plan for a batch that is the product of what is `counted`."""
    batch = math.prod(given[name] for name in counted)
    ratio = ratio_of(given, batch)
    return {
        "global_batch": batch,
        "rate": given["found_rate"] * ratio,
        "adam rate": given["found_rate"] * adam(ratio),
        "steps": given["epochs"] * math.ceil(given["examples"] / given.get(steps_by, batch)),
    }


PLAN = Check(
    name="plan_job",
    title="Batch, rate and steps of a job on several replicas",
    question="How many examples decide one update of the weights?",
    direction=(
        "Find the number of examples in one update first. Then express the learning rate and the "
        "steps with that number only."
    ),
    cost=Cost.PURE,
    inputs=_inputs,
    call=_call,
    read=_read,
    reference=_reference,
    criteria=(
        Form(_FORM, _has_parts, key="a different form"),
        Equal("global_batch", "the examples in one update", points=1),
        Close("rate", "the learning rate of SGD", atol=1e-6, points=1),
        Close("adam rate", "the learning rate of Adam", atol=1e-6, points=0.5),
        Equal("steps", "the updates in all epochs", points=1),
    ),
    hint="batch = per_replica * replicas * accumulate. k = batch / found_batch: times k for SGD, "
    "times math.sqrt(k) for Adam. Each epoch has math.ceil(examples / batch) steps.",
    revisit='"A rule for the learning rate" in lesson 02',
    mistakes=(
        Fault("batch_per_replica", counted=("per_replica",))
        .or_with(counted=("per_replica", "accumulate"))
        .feedback(
            "You planned for the examples of one replica. All replicas add their gradients into "
            "the same update, so rate and steps are those of a smaller job. How many examples "
            "reach one update?"
        ),
        Fault("accumulation_forgotten", counted=("per_replica", "replicas")).feedback(
            "You counted one micro-batch of each replica. The weights wait until `accumulate` of "
            "them are added up, so an update has more examples than you planned for. When does "
            "the optimizer move the weights?"
        ),
        Fault("steps_of_one_device", sees=("steps", "global_batch"), steps_by="per_replica")
        .or_with(steps_by="found_batch")
        .feedback(
            "You returned the steps that one device would take with its own batch. A schedule "
            "that is planned for so many steps never comes to its end. How many examples does one "
            "step use now?"
        ),
        Fault("scaled_by_replicas", ratio_of=lambda given, batch: given["replicas"]).feedback(
            "You scaled the rate by the number of replicas. That is right only if the rate was "
            "found for the batch of one replica. For how many examples was `found_rate` found?"
        ),
        Fault("linear_for_adam", adam=float).feedback(
            "You multiplied Adam's rate by the growth of the batch. Adam divides each gradient by "
            "its usual size, which shrinks with the noise, so this rate is too high. Which rule "
            "did the lesson give for Adam?"
        ),
    ),
)
