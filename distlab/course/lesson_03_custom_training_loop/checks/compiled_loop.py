"""A check of lesson 03: the compiled loop."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Cost, Inputs, Plain
from distlab.course.checks.criteria import Close, Holds, Then
from distlab.course.checks.mistakes import Fault, Observed
from distlab.course.runs.replicas import MOST_REPLICAS, mirrored


def _inputs(seed: int) -> Inputs:
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


def _call(train_in_calls: Callable[..., Any], inputs: Inputs) -> Plain:
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
    noted = {"traces": len(seen) / MOST_REPLICAS, "eager": "eager" in seen, "loop": "loop" in seen}
    return {"losses": losses, "total": total.numpy(), **noted}


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


def _reference(given: Inputs, *, one_batch_a_call: bool = False) -> Plain:
    """Calls that train on a batch in each step, or on one batch in all their steps."""
    steps, batches = given["steps"], given["values"].astype("float64").reshape(-1, MOST_REPLICAS)
    places = np.repeat(range(len(steps)), steps) if one_batch_a_call else np.arange(sum(steps))
    calls = np.split(batches[places], np.cumsum(steps)[:-1])
    return {
        "losses": [float(trained_on.mean()) for trained_on in calls],
        "total": float(batches[places].sum()),
        "traces": 1,
        "eager": False,
        "loop": True,
    }


def _is_compiled(given: Inputs, out: Plain) -> bool:
    return out["loop"] and not out["eager"]


CALLS = Check(
    name="train_in_calls",
    title="The compiled loop",
    question="Which of your lines does Python run at every step, and which does TensorFlow?",
    direction=(
        "Python's loop runs while the function is traced. Look for a loop, a number or a list that "
        "should be TensorFlow's."
    ),
    cost=Cost.TENSORFLOW,
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=(
        Holds(
            "the loop over the steps is inside the tf.function",
            _is_compiled,
            "Python starts every step itself",
        ),
        Then(
            Close("total", "all that was trained on, added up", atol=1e-2),
            Close("losses", "the mean loss of each call", atol=1e-3, points=0.5),
            Holds(
                "traced once for all calls",
                # A second trace is TensorFlow's own, where the first made variables.
                lambda given, out: out["traces"] <= 2,
                lambda given, out: f"`replica_step` was traced {out['traces']:g} times",
                points=0.5,
            ),
        ),
    ),
    hint="One tf.function with the arguments `iterator` and `steps`. In it, a loop over "
    "tf.range(steps) that calls next(iterator). Give it `steps` as tf.constant(n).",
    revisit="Compile the loop",
    mistakes=(
        Fault("same_batch_again", sees="total", one_batch_a_call=True).feedback(
            "All steps of a call train on the same batch. The other batches come one call later. "
            "Where do you call next(iterator)?"
        ),
        Observed("never_compiled", lambda given, out: out["eager"]).feedback(
            "Nothing in your answer is compiled. Python starts every operation of every step. "
            "Which decorator makes a graph of a function?"
        ),
        Observed("retraces", lambda given, out: out["loop"] and out["traces"] > 2).feedback(
            "Your function is traced again for every call, which costs more than the steps. "
            "TensorFlow traces again for a new Python number and for a new tf.function. Which of "
            "the two happens in each of your calls?"
        ),
        Observed("unrolled", lambda given, out: not out["loop"] and out["traces"] > 2).feedback(
            "Python ran your loop while it was traced. The graph has a copy of each step, and "
            "every number of steps needs its own graph. Which range does TensorFlow run itself?"
        ),
        Observed("syncs_each_step", lambda given, out: not out["loop"]).feedback(
            "You compiled one step, and Python starts each one. Python then waits for every step. "
            "Which of your loops could move into the tf.function?"
        ),
    ),
)
