"""A check of lesson 01: find the variables whose copies drifted apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Cost, Equal, Fault, Holds, Inputs, Plain, Then
from distlab.course.runs.replicas import MOST_REPLICAS, mirrored

_NAMES = ("weights", "bias", "velocity", "moving_mean", "last_loss", "steps")
_SHAPES = ((3,), (1, 3), (3, 1))


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    names = draw.permutation(_NAMES).tolist()
    copies = np.repeat(draw.normal(size=(len(names), 1, 3)), MOST_REPLICAS, axis=1)
    copies = copies.astype(np.float32)
    # Three drift: two elements on replicas 1 and 3, a whole copy, and one element by one bit.
    copies[0, 1::2, draw.permutation(3)[:2]] += 1
    copies[1, 2] += 0.5
    element = draw.integers(3)
    copies[2, 3, element] = np.nextafter(copies[2, 3, element], np.float32(9))
    order = draw.permutation(len(names)).tolist()
    return {
        "names": [names[place] for place in order],
        "copies": copies[order],
        # The last of the equal ones says how to combine; so `aggregation` tells nothing.
        "aggregation": ["MEAN" if place == len(names) - 1 else "NONE" for place in order],
    }


def _variables(given: Inputs) -> Iterable[tuple[str, Any, str]]:
    """The name, the copies and the aggregation of each variable."""
    return zip(given["names"], given["copies"], given["aggregation"], strict=True)


def _call(find_drifted: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    strategy = mirrored(MOST_REPLICAS)
    variables = {}
    for place, (name, flat, rule) in enumerate(_variables(inputs)):
        copies = [copy.reshape(_SHAPES[place % len(_SHAPES)]) for copy in flat]
        with strategy.scope():
            variable = tf.Variable(copies[0], aggregation=tf.VariableAggregation[rule])
        for copy, value in zip(strategy.experimental_local_results(variable), copies, strict=True):
            copy.assign(value)
        variables[name] = variable
    answer = find_drifted(strategy, variables)
    if isinstance(answer, Iterable) and not isinstance(answer, (str, dict, tf.Tensor)):
        answer = list(answer)
        answer = sorted(answer) if all(isinstance(name, str) for name in answer) else answer
    after = [strategy.experimental_local_results(each) for each in variables.values()]
    return {"drifted": answer, "after": [[copy.numpy().ravel() for copy in each] for each in after]}


def _drifted(copies: Any, rule: str) -> bool:
    return bool((copies != copies[0]).any())


def _reference(given: Inputs, *, named: Callable[[Any, str], Any] = _drifted) -> Plain:
    """The names of the variables that `named` picks, by their copies and their aggregation."""
    names = [name for name, copies, rule in _variables(given) if named(copies, rule)]
    return {"drifted": sorted(names), "after": given["copies"]}


def _unchanged(given: Inputs, out: Plain) -> bool:
    return np.array_equal(given["copies"], out["after"])


DRIFT = Check(
    name="find_drifted",
    title="Find the variables whose copies drifted apart",
    question="Which copies does your function look at, and what counts as equal?",
    direction=(
        "List all copies of one variable and compare them. Reading a variable shows a single copy."
    ),
    cost=Cost.TENSORFLOW,
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=(
        Equal("drifted", "names of the variables whose copies differ (sorted here)"),
        # A function that does nothing changes nothing.
        Then(
            Holds("no variable changed", _unchanged, "some copies changed while your function ran")
        ),
    ),
    hint="strategy.experimental_local_results(variable) lists all copies. Compare each of them "
    "with the first, in every element.",
    revisit='"A variable that remembers" in lesson 01',
    mistakes=(
        Fault("checks_primary_only", named=lambda copies, rule: False).feedback(
            "Your function finds nothing. If you read `variable.numpy()`, you always get the "
            "same copy, and a copy never differs from itself. How do you list the copies of "
            "all replicas?"
        ),
        Fault(
            "whole_copy_only", named=lambda copies, rule: (copies != copies[0]).all(axis=1).any()
        ).feedback(
            "You named only the copy that differs in every element. A copy that differs in "
            "one element has drifted, too. How do you ask whether any element differs?"
        ),
        Fault("tolerance", named=lambda copies, rule: not np.allclose(copies, copies[0])).feedback(
            "You compared with a tolerance, so a very small difference was left out. Copies "
            "that agree are equal in every bit, and a small difference grows with each step. "
            "Which comparison allows none?"
        ),
        Fault("aggregation_for_drift", named=lambda copies, rule: rule == "NONE").feedback(
            "You named every variable without an aggregation. Such a variable can drift, but "
            "most have not. What does only a comparison of the copies tell you?"
        ),
    ),
)
