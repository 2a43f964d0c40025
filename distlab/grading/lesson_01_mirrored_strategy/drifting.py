"""A check of lesson 01: find the variables whose copies drifted apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_equal, expect_true
from distlab.grading.replicas import mirrored

_REPLICAS = 4
_NAMES = ("weights", "bias", "velocity", "moving_mean", "last_loss", "steps")


def _drift_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    names = draw.permutation(_NAMES).tolist()
    copies = np.repeat(draw.normal(size=(len(names), 1, 3)), _REPLICAS, axis=1)
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


def _drift_call(find_drifted: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    strategy = mirrored(_REPLICAS)
    variables = {}
    for name, copies, rule in zip(
        inputs["names"], inputs["copies"], inputs["aggregation"], strict=True
    ):
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
    return {"drifted": answer, "after": [[copy.numpy() for copy in each] for each in after]}


def _drifted(copies: Any) -> bool:
    return bool((copies != copies[0]).any())


def _names_where(inputs: Inputs, holds: Callable[[Any], bool]) -> list[str]:
    pairs = zip(inputs["names"], inputs["copies"], strict=True)
    return sorted(name for name, copies in pairs if holds(copies))


def _drift_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    names = expect_equal(
        "names of the variables whose copies differ (sorted here)",
        yours=outputs["drifted"],
        expected=_names_where(inputs, _drifted),
    )
    if not names.passed:  # who does nothing changes nothing
        return Verdict.of(names)
    message = "some copies are others after your function"
    return Verdict.of(
        names, expect_true("no variable changed", not _changed(inputs, outputs), message=message)
    )


def _changed(inputs: Inputs, outputs: Plain) -> bool:
    return not np.array_equal(inputs["copies"], outputs["after"])


def _named(which: Callable[[Inputs], list[str]]) -> Callable[[Inputs], Plain]:
    return lambda inputs: {"drifted": which(inputs)}


def _where(holds: Callable[[Any], Any]) -> Callable[[Inputs], Plain]:
    return _named(lambda inputs: _names_where(inputs, holds))


def _without_aggregation(inputs: Inputs) -> list[str]:
    pairs = zip(inputs["names"], inputs["aggregation"], strict=True)
    return sorted(name for name, rule in pairs if rule == "NONE")


DRIFT = Check(
    name="find_drifted",
    function="find_drifted",
    title="Find the variables whose copies drifted apart",
    points=2,
    inputs=_drift_inputs,
    call=_drift_call,
    judge=_drift_judge,
    hint="strategy.experimental_local_results(variable) lists all copies. Compare each of them "
    "with the first, in every element.",
    revisit='"The trap: a variable that drifts" in lesson 01',
    mistakes=(
        Mistake(
            "checks_primary_only",
            "Nothing was found. Did you read variable.numpy()? That is always the first copy; "
            "compared with itself it never differs.",
            yields=_named(lambda _: []),
        ),
        Mistake(
            "first_two_copies",
            "You found what drifted on replica 1 only. Look at the copies of all replicas.",
            yields=_where(lambda copies: _drifted(copies[:2])),
        ),
        Mistake(
            "whole_copy_only",
            "You found the copy that differs in every element. One element is enough.",
            yields=_where(lambda copies: (copies != copies[0]).all(axis=1).any()),
        ),
        Mistake(
            "tolerance",
            "A copy that differs by very little was left out. Copies that agree are equal in "
            "every bit: no tolerance is needed, and a small difference grows.",
            yields=_where(lambda copies: not np.allclose(copies, copies[0])),
        ),
        Mistake(
            "named_twice",
            "These are the right variables, but one stands there once for each copy that differs.",
            when=lambda i, out: (
                out["drifted"] != sorted(set(out["drifted"])) == _names_where(i, _drifted)
            ),
        ),
        Mistake(
            "changed_by_looking",
            "The names are right, and the copies are others than before: assigning to a variable "
            "sets all its copies. Only look.",
            when=lambda i, out: out["drifted"] == _names_where(i, _drifted) and _changed(i, out),
        ),
        Mistake(
            "aggregation_for_drift",
            "You named every variable without an aggregation. These can drift; whether one has, "
            "only its copies tell.",
            yields=_named(_without_aggregation),
        ),
        Mistake(
            "named_the_equal_ones",
            "The other way round: these are the variables whose copies agree.",
            yields=_where(lambda copies: not _drifted(copies)),
        ),
    ),
)
