"""A check of lesson 01: a variable that a step makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Close, Cost, Fault, Holds, Inputs, Plain, Raises, Then
from distlab.course.runs.replicas import give_each, mirrored

_REPLICAS = 3


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    # The third batch has another shape than the first two, so the step is traced again.
    first, last = (draw.choice(np.arange(1, 9), size=_REPLICAS, replace=False) for _ in range(2))
    return {"shares": np.stack([first, first, last])}


def _call(count_examples: Callable[..., Any], inputs: Inputs) -> Plain:
    import keras
    import tensorflow as tf

    strategy = mirrored(_REPLICAS)
    kept: dict[str, Any] = {}

    def run(labels: Any) -> None:
        strategy.run(lambda own_labels: count_examples(kept, own_labels), args=(labels,))

    step = tf.function(run)
    totals = []
    for shares in inputs["shares"]:
        step(give_each(strategy, [tf.zeros([share], tf.int64) for share in shares]))
        total = kept.get("total")
        total = total.value if isinstance(total, keras.Variable) else total
        if not isinstance(total, tf.Variable):
            return {"kept": type(total).__name__}
        copies = strategy.experimental_local_results(total)
        totals.append([copy.numpy() for copy in copies])
    return {"kept": "a variable", "totals": totals}


def _reference(given: Inputs, *, added: Callable[[Any], Any] = np.sum) -> Plain:
    """Each batch adds `added` of the shares (one number, or one for each replica) to the total."""
    of_batches = [np.broadcast_to(added(shares), _REPLICAS) for shares in given["shares"]]
    return {"kept": "a variable", "totals": np.cumsum(of_batches, axis=0)}


def _has_copies(given: Inputs, out: Plain) -> bool:
    return "totals" in out and all(len(copies) == _REPLICAS for copies in out["totals"])


def _what_was_kept(given: Inputs, out: Plain) -> str:
    if "totals" in out:
        return "after a step there is one without copies"
    kept = "there is none" if out["kept"] == "NoneType" else f"it is none: {out['kept']}"
    return f"after a step {kept}"


COUNT = Check(
    name="count_examples",
    title="A variable that a step makes once, right on every replica",
    question=(
        "What does each copy of the variable hold after a step, and when is the variable made?"
    ),
    direction=(
        "Two things decide: how often Python's own lines run in a `tf.function`, and what "
        "`aggregation` does with what the replicas assign."
    ),
    cost=Cost.TENSORFLOW,
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=(
        Holds(
            "kept['total'] is a variable with a copy on every replica", _has_copies, _what_was_kept
        ),
        Then(Close("totals", "every copy, after each of three batches", atol=1e-4, points=2)),
    ),
    hint='Ask `if "total" not in kept` before you make it, and choose the aggregation by what all '
    "copies should hold. The number of labels is tf.shape(labels)[0].",
    revisit='"A variable made inside a tf.function" in lesson 01',
    mistakes=(
        Raises("recreated_each_call", r"singleton tf\.Variables created on the first").feedback(
            "You make a new variable whenever the function is traced, and TensorFlow refuses "
            "that. How can a later trace find the variable of the first one?"
        ),
        # What TensorFlow says where the replicas have equal shares, and where not.
        Raises(
            "python_number", "non-DistributedValues value|'int' object has no attribute 'device'"
        ).feedback(
            "You gave TensorFlow an ordinary Python number, such as `len(labels)`, to add up "
            "over the replicas. It combines tensors only. Which operation returns the number "
            "of labels as a tensor?"
        ),
        Raises("variable_replaced", "is out of scope and cannot be used here").feedback(
            'You put a tensor or a number into `kept["total"]`, in place of the variable: '
            "`+=` on an entry of a dictionary does that. The next trace cannot use it. Which "
            "method of the variable adds to it?"
        ),
        Fault("own_share_only", added=lambda shares: shares).feedback(
            "Each copy counts the examples of its own replica, so the copies drift apart. "
            "Without an aggregation, each replica assigns to its own copy. Which aggregation "
            "gives every copy the total?"
        ),
        Fault("added_twice", added=lambda shares: shares.sum() * _REPLICAS).feedback(
            "You added up the replicas with an all-reduce, and the aggregation added them up "
            "again. The total is N times too large. Which of the two do you keep?"
        ),
    ),
)
