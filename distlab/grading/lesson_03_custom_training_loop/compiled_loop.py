"""A check of lesson 03: the compiled loop."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_close, expect_true
from distlab.grading.replicas import MOST_REPLICAS, mirrored


def _calls_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    steps = [int(n) for n in draw.permutation([2, 3, 4])]
    # More batches than are asked for, so that a step too many is seen and not an error.
    values = draw.integers(1, 10, size=(sum(steps) + 4) * MOST_REPLICAS).astype("float32")
    return {"steps": steps, "values": values}


@functools.cache
def _total() -> Any:
    import tensorflow as tf

    with mirrored(MOST_REPLICAS).scope():
        return tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)


def _calls_call(train_in_calls: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    strategy, total = mirrored(MOST_REPLICAS), _total()
    total.assign(0.0)
    seen: list[str] = []

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def replica_step(batch: Any) -> Any:
        seen.append(_where())
        total.assign_add(tf.reduce_sum(batch))
        return tf.reduce_sum(batch) / MOST_REPLICAS

    data = tf.data.Dataset.from_tensor_slices(inputs["values"]).batch(MOST_REPLICAS)
    iterator = iter(strategy.experimental_distribute_dataset(data))
    losses = train_in_calls(strategy, replica_step, iterator, list(inputs["steps"]))
    return {
        "losses": losses,
        "total": total.numpy(),
        "times called": len(seen) / MOST_REPLICAS,
        "eager": "eager" in seen,
        "looped": "loop" in seen,
    }


def _where() -> str:
    """Whether a replica's step runs eagerly, or is traced inside a loop of the graph, or not."""
    import tensorflow as tf

    if tf.executing_eagerly():
        return "eager"
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        if "WhileBody" in type(graph).__name__:
            return "loop"
        graph = getattr(graph, "outer_graph", None)
    return "graph"


def _calls_results(
    inputs: Inputs, *, more: int = 0, of: Callable[[Any], Any] = np.mean, one_batch: bool = False
) -> Plain:
    """What comes of calls with more steps than asked, or with one batch for all their steps.

    The loss of a call is `of` the losses of its steps.
    """
    batches = inputs["values"].astype("float64").reshape(-1, MOST_REPLICAS).mean(axis=1)
    losses, total, start = [], 0.0, 0
    for steps in inputs["steps"]:
        end = start + (1 if one_batch else steps + more)
        taken = np.repeat(batches[start], steps) if one_batch else batches[start:end]
        losses.append(float(of(taken)))
        total += MOST_REPLICAS * float(taken.sum())
        start = end
    return {"losses": losses, "total": total}


def _total_is(**how: Any) -> Callable[[Inputs, Plain], bool]:
    return lambda inputs, out: np.isclose(out["total"], _calls_results(inputs, **how)["total"])


def _losses_are(of: Callable[[Any], Any]) -> Callable[[Inputs], Plain]:
    return lambda inputs: {"losses": _calls_results(inputs, of=of)["losses"]}


def _calls_judge(inputs: Inputs, outputs: Plain) -> Verdict:
    right = _calls_results(inputs)
    compiled = outputs["looped"] and not outputs["eager"]
    trained = expect_close(
        "all that was trained on, added up",
        yours=outputs["total"],
        expected=right["total"],
        atol=1e-2,
    )
    if not trained.passed:  # how it was done counts only where something was done
        return Verdict.of(trained)
    return Verdict.of(
        trained,
        expect_close(
            "the mean loss of each call",
            yours=outputs["losses"],
            expected=right["losses"],
            atol=1e-3,
        ),
        expect_true(
            "the loop over the steps is inside the tf.function",
            compiled,
            message="Python goes round the loop, once for every step",
        ),
        expect_true(
            "traced once for all calls",
            # A second trace is TensorFlow's own, where the first made variables.
            compiled and outputs["times called"] <= 2,
            message=f"`replica_step` was traced {outputs['times called']:g} times"
            if compiled
            else "there is no compiled loop yet",
        ),
    )


CALLS = Check(
    name="train_in_calls",
    function="train_in_calls",
    title="The compiled loop",
    points=3,
    inputs=_calls_inputs,
    call=_calls_call,
    judge=_calls_judge,
    hint="One tf.function with the arguments `iterator` and `steps`, in it a loop over "
    "tf.range(steps) that calls next(iterator). Give it `steps` as tf.constant(n).",
    revisit="Compile the loop",
    mistakes=(
        Mistake(
            "one_step_short",
            "Each call takes one step less than asked: where does your range end?",
            when=_total_is(more=-1),
        ),
        Mistake(
            "one_step_more",
            "Each call takes one step more than asked: where does your range end?",
            when=_total_is(more=1),
        ),
        Mistake(
            "same_batch_again",
            "All steps of a call have the same batch: call next(iterator) in the loop.",
            when=_total_is(one_batch=True),
        ),
        Mistake(
            "never_compiled",
            "Nothing is compiled: every step runs operation by operation.",
            when=lambda inputs, outputs: outputs["eager"],
        ),
        Mistake(
            "retraces",
            "Every call is traced anew. A Python number as `steps` is part of what was "
            "traced: give a tensor. And a tf.function that is defined anew for each call "
            "remembers nothing: define it once, before the calls.",
            when=lambda inputs, outputs: outputs["looped"] and outputs["times called"] > 2,
        ),
        Mistake(
            "unrolled",
            "A Python `range` inside a tf.function writes each step into the graph, one "
            "after the other. Use tf.range.",
            when=lambda inputs, outputs: not outputs["looped"] and outputs["times called"] > 2,
        ),
        Mistake(
            "syncs_each_step",
            "One step is compiled, but Python starts each one and waits for it. Put the loop "
            "inside the tf.function.",
            when=lambda inputs, outputs: not outputs["looped"],
        ),
        Mistake(
            "sum_for_mean",
            "These are the sums over the steps of a call; the mean was asked for.",
            yields=_losses_are(np.sum),
        ),
        Mistake(
            "mean_over_replicas",
            "A quarter of each loss: the replicas' parts are added up, not averaged.",
            yields=_losses_are(lambda taken: np.mean(taken) / MOST_REPLICAS),
        ),
        Mistake(
            "last_step_only",
            "These are the losses of the last step of each call. Add up over its steps.",
            yields=_losses_are(lambda taken: taken[-1]),
        ),
    ),
)
