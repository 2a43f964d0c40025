"""A check of lesson 01: a variable that a step makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_equal, expect_true
from distlab.grading.replicas import give_each, mirrored


def _count_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    # The third batch has another shape than the first two, so the step is traced again.
    first, last = (draw.choice(np.arange(1, 9), size=3, replace=False) for _ in range(2))
    return {"shares": np.stack([first, first, last])}


def _count_call(count_examples: Callable[..., Any], inputs: Inputs) -> Plain:
    import keras
    import tensorflow as tf

    strategy = mirrored(inputs["shares"].shape[1])
    kept: dict[str, Any] = {}

    def run(labels: Any) -> None:
        strategy.run(lambda mine: count_examples(kept, mine), args=(labels,))

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
    return {"totals": totals}


def _count_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    label = "kept['total'] is a variable with a copy on every replica"
    if "kept" in outputs:
        found = (
            "there is none" if outputs["kept"] == "NoneType" else f"it is none: {outputs['kept']}"
        )
        return Verdict.of(expect_true(label, False, message=f"after a step {found}"))
    totals = outputs["totals"]
    return Verdict.of(
        expect_true(
            label,
            all(len(copies) == inputs["shares"].shape[1] for copies in totals),
            message="after a step there is one without copies",
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


def _old_total_added_too(inputs: Inputs) -> Plain:
    total, totals = 0, []
    for shares in inputs["shares"]:
        total = total * len(shares) + int(shares.sum())
        totals.append([total] * len(shares))
    return {"totals": totals}


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
            "other_dtype",
            "The variable and what you add to it have different dtypes: tf.shape gives whole "
            "numbers, and 0.0 makes a variable of floats.",
            error="Tensor conversion requested dtype",
        ),
        Mistake(
            "replicas_do_otherwise",
            "The replica that makes the variable does something else than those that find it "
            "there. Only the making belongs under the `if`; the adding is for everyone.",
            error="different number of replica_context",
        ),
        Mistake(
            "variable_replaced",
            'kept["total"] holds a tensor or a number now, in place of the variable: `+=` on a '
            "dictionary's entry does that. Let the variable itself add: assign_add.",
            error="is out of scope and cannot be used here",
        ),
        Mistake(
            "no_variable",
            "A tf.function runs Python's own lines only while it is traced. What shall change in "
            "every step must be a tf.Variable.",
            when=lambda _, out: out["kept"] != "NoneType",
        ),
        Mistake(
            "own_share_only",
            "Every copy counts its own replica's examples only, so the copies drift apart. "
            "Without an aggregation (or with one that waits until the variable is read) each "
            "replica assigns what it likes.",
            yields=lambda i: _count_yields(i, i["shares"]),
        ),
        Mistake(
            "mean_for_sum",
            "All copies agree, on the mean of what the replicas have. How many there are together "
            "is a sum.",
            yields=lambda i: _count_yields(i, i["shares"].mean(1)),
        ),
        Mistake(
            "old_total_added_too",
            "An aggregation adds up what each replica assigns. You assign the old total plus the "
            "new examples, as assign_add of a keras.Variable does, and so the old total is added "
            "up as well. Let assign_add of a tf.Variable add the new ones only.",
            yields=_old_total_added_too,
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
