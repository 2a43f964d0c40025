"""Two checks of lesson 01: what is made in the scope, and gradients of unequal shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_close, expect_equal, expect_true
from distlab.grading.replicas import give_each, mirrored

# Task 1: scope


def _scope_inputs(seed: int) -> Inputs:
    # The first draw has two replicas, like the exercise.
    replicas = 2 + (seed - 1) % 3
    return {"units": int(np.random.default_rng(seed).integers(2, 40)), "replicas": replicas}


def _scope_call(make_model: Callable[..., Any], inputs: Inputs) -> Plain:
    import keras

    strategy = mirrored(inputs["replicas"])
    model = make_model(strategy, inputs["units"])
    if not isinstance(model, keras.Model):
        return {"returned": type(model).__name__}
    with model.distribute_strategy.scope():  # where `fit` builds what is not built yet
        answer = model(np.zeros((1, 3), np.float32))
    optimizer = getattr(model, "optimizer", None)  # none where it was not compiled

    def copies(variables: Any) -> list[int]:
        return [len(strategy.experimental_local_results(each.value)) for each in variables]

    return {
        "returned": "a model",
        "units": int(answer.shape[-1]),
        "weights": copies(model.weights),
        "optimizer": copies(optimizer.variables) if optimizer else None,
    }


def _scope_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    if outputs["returned"] != "a model":
        message = f"your function returned no model: {outputs['returned']}"
        if outputs["returned"] == "NoneType":
            message = "your function returned None: is there a `return`?"
        return Verdict.of(expect_true("a model comes back", False, message=message))
    units = expect_equal("units of its layer", yours=outputs["units"], expected=inputs["units"])
    if not units.passed:
        return Verdict.of(units)
    weights, optimizer = outputs["weights"], outputs["optimizer"]
    return Verdict.of(
        expect_equal(
            "copies of each weight of the model",
            yours=weights,
            expected=[inputs["replicas"]] * max(len(weights), 1),
        ),
        expect_equal(
            "copies of each variable of the optimizer",
            yours=optimizer,
            expected=[inputs["replicas"]] * max(len(optimizer), 1),
        )
        if optimizer is not None
        else expect_true("an optimizer", False, message="the model has none: is it compiled?"),
    )


def _are_single(counts: list[int]) -> bool:
    return set(counts) == {1}


SCOPE = Check(
    name="scope",
    function="make_model",
    title="Everything that a step changes has a copy on every device",
    points=2,
    inputs=_scope_inputs,
    call=_scope_call,
    judge=_scope_judge,
    hint="compile makes no weights. Which lines do? A variable is made where its owner is: the "
    "weights with the layers, the step counter and the momentum with the optimizer.",
    revisit='"What the scope does" in lesson 01',
    mistakes=(
        Mistake(
            "compile_only_inside",
            "One copy of everything: Keras trains such a model on one device, and says nothing. "
            "compile makes no variables. Which lines do, and where do they stand?",
            when=lambda _, out: (
                _are_single(out["weights"]) and _are_single(out["optimizer"] or [1])
            ),
        ),
        Mistake(
            "optimizer_outside",
            "The weights are right. But the optimizer has variables as well, its step counter "
            "and its learning rate, and makes them as soon as it is made (where you give a name, "
            "by compile). With one step counter for all replicas, each of them adds to it.",
            when=lambda _, out: _are_single(out["optimizer"]),
        ),
        Mistake(
            "model_outside",
            "The optimizer is right. But the layers were made outside, so the weights have only "
            "one copy.",
            when=lambda _, out: _are_single(out["weights"]),
        ),
    ),
)


# Task 2: combine_gradients

_REPLICAS = 4


def _combine_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    return {
        "gradients": draw.normal(size=(_REPLICAS, 3)).astype(np.float32),
        # All different, so that no other weighting gives the same.
        "examples": draw.choice(np.arange(1, 9), size=_REPLICAS, replace=False).astype(np.float32),
    }


def _combine_call(combine: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    strategy = mirrored(_REPLICAS)
    gradients = give_each(strategy, [tf.constant(each) for each in inputs["gradients"]])
    examples = give_each(strategy, [tf.constant(each) for each in inputs["examples"]])
    answers = strategy.run(combine, args=(gradients, examples))
    found = list(strategy.experimental_local_results(answers))
    if found == [None]:
        return {"on_replicas": None}
    return {"on_replicas": found * (_REPLICAS // len(found))}  # where all return one object


def _combine_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    return Verdict.of(
        expect_close(
            "the same on every replica",
            yours=outputs["on_replicas"],
            expected=_each_gets(_weighted(inputs).sum(0) / inputs["examples"].sum())["on_replicas"],
            atol=1e-5,
        )
    )


def _weighted(inputs: Inputs) -> Any:
    return inputs["gradients"] * inputs["examples"][:, None]


def _each_gets(value: Any) -> Plain:
    return {"on_replicas": np.broadcast_to(value, (_REPLICAS, 3))}


COMBINE = Check(
    name="combine_gradients",
    function="combine",
    title="The gradient of the global batch from unequal shares",
    points=3,
    inputs=_combine_inputs,
    call=_combine_call,
    judge=_combine_judge,
    hint="Two all-reduces, both SUM: one for the number of examples in the global batch, one for "
    "the gradients, each weighted by its replica's part of them.",
    revisit='"When a mean of means is wrong" in lesson 01',
    mistakes=(
        Mistake(
            "mean_of_means",
            "That is the mean of the means: a replica with one example counts as much as one "
            "with eight. Each example should count once.",
            yields=lambda i: _each_gets(i["gradients"].mean(0)),
        ),
        Mistake(
            "sum_of_means",
            "That is the sum of the means: with N replicas about N times too large. A step would "
            "be N times too long.",
            yields=lambda i: _each_gets(i["gradients"].sum(0)),
        ),
        Mistake(
            "not_divided",
            "Each gradient has the right weight, but the sum is not divided by the number of "
            "examples in the global batch.",
            yields=lambda i: _each_gets(_weighted(i).sum(0)),
        ),
        Mistake(
            "own_count",
            "The sum is divided by the examples of this replica only, so each replica returns "
            "something else. Add the numbers of examples up as well.",
            yields=lambda i: {"on_replicas": _weighted(i).sum(0) / i["examples"][:, None]},
        ),
        Mistake(
            "not_weighted",
            "You divide by the examples of the global batch, but what you add up are means. Turn "
            "each into a sum over its own examples first.",
            yields=lambda i: _each_gets(i["gradients"].sum(0) / i["examples"].sum()),
        ),
        Mistake(
            "mean_for_sum",
            "Right but for one factor: you divide by all examples already, so the all-reduce of "
            "the gradients must add up, not take the mean.",
            yields=lambda i: _each_gets(_weighted(i).mean(0) / i["examples"].sum()),
        ),
        Mistake(
            "divided_by_replicas",
            "You add up what all examples say, and then divide by the number of replicas in "
            "place of the number of examples.",
            yields=lambda i: _each_gets(_weighted(i).mean(0)),
        ),
        Mistake(
            "no_all_reduce",
            "Every replica came back with its own gradient: nothing was combined. The copies of "
            "the weights would drift apart.",
            yields=lambda i: {"on_replicas": i["gradients"]},
        ),
        Mistake(
            "not_summed",
            "Each replica weighs its own gradient rightly, but the weighted gradients are never "
            "added up.",
            yields=lambda i: {"on_replicas": _weighted(i) / i["examples"].sum()},
        ),
        Mistake(
            "arguments_swapped",
            'all_reduce takes first how to combine, then what: all_reduce("SUM", value).',
            error="'str' object has no attribute 'dtype'",
        ),
        Mistake(
            "reduce_on_a_replica",
            "strategy.reduce is for outside strategy.run. On a replica, use all_reduce of "
            "tf.distribute.get_replica_context().",
            error="cross-replica context",
        ),
    ),
)


# Tasks 3 and 4 are about mirrored variables alone.
