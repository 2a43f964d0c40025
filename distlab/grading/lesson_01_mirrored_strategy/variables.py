"""Two checks of lesson 01: a variable that a step makes, and variables whose copies drifted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_equal, expect_true
from distlab.grading.replicas import give_each, mirrored

_REPLICAS = 4


# A variable made in a step


def _count_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    # The third batch has another shape than the first two, so the step is traced again.
    first, last = (draw.choice(np.arange(1, 9), size=3, replace=False) for _ in range(2))
    return {"shares": np.stack([first, first, last])}


def _count_call(count_examples: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    strategy = mirrored(inputs["shares"].shape[1])
    kept: dict[str, Any] = {}

    def run(labels: Any) -> None:
        strategy.run(lambda mine: count_examples(kept, mine), args=(labels,))

    step = tf.function(run)
    totals = []
    for shares in inputs["shares"]:
        step(give_each(strategy, [tf.zeros([share], tf.int64) for share in shares]))
        found = strategy.experimental_local_results(kept["total"]) if "total" in kept else ()
        totals.append([int(copy) if isinstance(copy, int) else copy.numpy() for copy in found])
    return {"totals": totals}


def _count_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    totals = outputs["totals"]
    return Verdict.of(
        expect_true(
            "kept['total'] is a variable with a copy on every replica",
            all(len(copies) == inputs["shares"].shape[1] for copies in totals),
            message="there is no such variable after a step",
        ),
        expect_equal(
            "every copy, after each of three batches",
            yours=totals,
            expected=_count_yields(inputs, inputs["shares"].sum(1))["totals"],
            weight=2,
        ),
    )


def _count_yields(inputs: Inputs, added: Any) -> Plain:
    """The copies after each batch, if each batch adds `added` (one number, or one a replica)."""
    added = np.asarray(added)
    added = added[:, None] if added.ndim == 1 else added
    return {"totals": np.broadcast_to(added, inputs["shares"].shape).cumsum(0).tolist()}


COUNT = Check(
    name="count_examples",
    function="count_examples",
    title="A variable that a step makes once, right on every replica",
    points=3,
    inputs=_count_inputs,
    call=_count_call,
    judge=_count_judge,
    hint='Ask `if "total" not in kept` before you make it, and choose the aggregation by what all '
    "copies should hold. The number of labels is tf.shape(labels)[0].",
    revisit='"A variable made inside a tf.function" in lesson 01',
    mistakes=(
        Mistake(
            "recreated_each_call",
            "A tf.function is traced more than once, and yours makes a new variable each time. "
            "Make it if it is not there yet, and keep it.",
            error=r"singleton tf\.Variables created on the first call",
        ),
        Mistake(
            "python_number",
            "len(labels) is an ordinary number here, and TensorFlow will not add up ordinary "
            "numbers over replicas. Use tf.shape(labels)[0], a tensor.",
            # What TensorFlow says where the replicas have equal shares, and where not.
            error="non-DistributedValues value|'int' object has no attribute 'device'",
        ),
        Mistake(
            "own_share_only",
            "Every copy counts its own replica's examples only, so the copies drift apart. "
            "Without an aggregation each replica assigns what it likes.",
            yields=lambda i: _count_yields(i, i["shares"]),
        ),
        Mistake(
            "first_replica_only",
            "All copies agree, but on the examples of replica 0. The others were dropped.",
            yields=lambda i: _count_yields(i, i["shares"][:, 0]),
        ),
        Mistake(
            "added_twice",
            "You add up the replicas yourself, and the aggregation adds them up once more: N "
            "times too large. One of the two is enough.",
            yields=lambda i: _count_yields(i, i["shares"].sum(1) * i["shares"].shape[1]),
        ),
        Mistake(
            "last_batch_only",
            "The total forgets the batches before: assign replaces, assign_add adds.",
            yields=lambda i: {"totals": np.broadcast_to(i["shares"].sum(1)[:, None], (3, 3))},
        ),
    ),
)


# Copies that drifted

_NAMES = ("weights", "bias", "velocity", "moving_mean", "last_loss", "steps")


def _drift_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    names = draw.permutation(_NAMES).tolist()
    copies = np.repeat(draw.normal(size=(len(names), 1, 3)), _REPLICAS, axis=1)
    # One drifts on replica 1, two only on a later one, in a single element; three are equal.
    copies[0, 1] += draw.normal(size=3)
    copies[1, 2, draw.integers(3)] += 0.5
    copies[2, 3, draw.integers(3)] -= 0.01
    order = draw.permutation(len(names)).tolist()
    return {
        "names": [names[place] for place in order],
        "copies": copies[order].astype(np.float32),
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
    return {"drifted": sorted(answer) if isinstance(answer, (set, list, tuple)) else answer}


def _drifted(copies: Any) -> bool:
    return bool((copies != copies[0]).any())


def _names_where(inputs: Inputs, holds: Callable[[Any], bool]) -> list[str]:
    pairs = zip(inputs["names"], inputs["copies"], strict=True)
    return sorted(name for name, copies in pairs if holds(copies))


def _drift_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    return Verdict.of(
        expect_equal(
            "names of the variables whose copies differ (sorted here)",
            yours=outputs["drifted"],
            expected=_names_where(inputs, _drifted),
        )
    )


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
            "Nothing was found. What variable.numpy() reads is always the first copy; compared "
            "with itself it never differs.",
            yields=lambda _: {"drifted": []},
        ),
        Mistake(
            "first_two_copies",
            "You found what drifted on replica 1 only. Look at the copies of all replicas.",
            yields=lambda i: {"drifted": _names_where(i, lambda copies: _drifted(copies[:2]))},
        ),
        Mistake(
            "aggregation_for_drift",
            "You named every variable without an aggregation. These can drift; whether one has, "
            "only its copies tell.",
            yields=lambda i: {"drifted": _without_aggregation(i)},
        ),
        Mistake(
            "named_the_equal_ones",
            "The other way round: these are the variables whose copies agree.",
            yields=lambda i: {"drifted": _names_where(i, lambda copies: not _drifted(copies))},
        ),
    ),
)
