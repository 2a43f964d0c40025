"""A check of lesson 01: means over the global batch, from unequal and empty shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Close, Cost, Fault, Inputs, Plain, Raises, Then
from distlab.course.runs.replicas import MOST_REPLICAS, give_each, mirrored


def _inputs(seed: int) -> Inputs:
    draw, replicas = np.random.default_rng(seed), MOST_REPLICAS
    return {
        "means": draw.normal(size=(replicas, 3)).astype(np.float32),
        # All different, so that no other weighting gives the same.
        "examples": draw.choice(np.arange(1, 9), size=replicas, replace=False).astype(np.float32),
        "empty": int(draw.integers(replicas)),
    }


def _with_an_empty_share(given: Inputs, *, mean_of_nothing: float) -> tuple[Any, Any]:
    """The means and the examples, where one replica had none."""
    means, examples = given["means"].copy(), given["examples"].copy()
    means[given["empty"]], examples[given["empty"]] = mean_of_nothing, 0
    return means, examples


def _call(combine: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    strategy = mirrored(MOST_REPLICAS)

    def answers(means: Any, examples: Any) -> Plain:
        values = [
            give_each(strategy, [tf.constant(each) for each in some]) for some in (means, examples)
        ]
        answer = strategy.run(combine, args=tuple(values))
        results = list(strategy.experimental_local_results(answer))
        if results == [None]:
            return None
        return results * (MOST_REPLICAS // len(results))  # where all return one object

    return {
        "on_replicas": answers(inputs["means"], inputs["examples"]),
        "with_empty": answers(*_with_an_empty_share(inputs, mean_of_nothing=np.nan)),
    }


def _weighted_mean(means: Any, examples: Any) -> Any:
    return examples @ means / examples.sum()


def _reference(
    given: Inputs,
    *,
    combine: Callable[[Any, Any], Any] = _weighted_mean,
    mean_of_nothing: float = 0.0,
) -> Plain:
    """What `combine` makes of all means and examples, on every replica."""
    empty = _with_an_empty_share(given, mean_of_nothing=mean_of_nothing)

    def on_all(means: Any, examples: Any) -> Any:
        return np.broadcast_to(combine(means, examples), means.shape)

    return {
        "on_replicas": on_all(given["means"], given["examples"]),
        "with_empty": on_all(*empty),
    }


COMBINE = Check(
    name="combine_shares",
    function="combine",
    title="The means over the global batch from unequal shares",
    question=(
        "How much does one example count in your result, on the replica with the most examples and "
        "on the one with the fewest?"
    ),
    direction=(
        "Write the mean over the global batch as a sum over examples. Which part of it does each "
        "replica know, and which part needs the others?"
    ),
    cost=Cost.TENSORFLOW,
    inputs=_inputs,
    call=_call,
    reference=_reference,
    criteria=(
        Close(
            "on_replicas", "on every replica, the means over the global batch", atol=1e-5, points=2
        ),
        Then(Close("with_empty", "the same if one replica had no example", atol=1e-5, points=1)),
    ),
    hint="Two all-reduces, both SUM: one for the number of examples in the global batch, one for "
    "the means, each weighted by its replica's part of them. `tf.math.multiply_no_nan` gives 0 "
    "for NaN times 0.",
    revisit='"Three digits on two replicas" in lesson 01',
    mistakes=(
        Fault(
            "mean_of_means",
            sees="on_replicas",
            combine=lambda means, examples: means.mean(axis=0),
        ).feedback(
            "You averaged the replicas' means. A replica with one example then counts as much "
            "as a replica with eight. How much should one example count, and on which replica "
            "does it count more here?"
        ),
        Fault(
            "mean_for_sum",
            sees="on_replicas",
            combine=lambda *values: _weighted_mean(*values) / MOST_REPLICAS,
        ).feedback(
            "You divided by the number of all examples, and the all-reduce with MEAN divided "
            "by the number of replicas as well. The result is N times too small. Which of the "
            "two divisions should stay?"
        ),
        Fault(
            "nan_of_nothing", sees=("on_replicas", "with_empty"), mean_of_nothing=np.nan
        ).feedback(
            "Your result is right while every replica has an example. A replica without one has "
            "the mean over nothing, NaN, and NaN times 0 is still NaN, so every replica gets NaN. "
            "How can such a replica take part in the all-reduce with 0?"
        ),
        Raises(
            "all_reduce_in_a_condition",
            "different number of replica_context|`merge_call` called while defining",
        ).feedback(
            "Your `if` lets only some replicas reach an all-reduce, so they never meet. What could "
            "a replica without examples give to the all-reduce instead of staying away?"
        ),
        # The second is what TensorFlow says of the strategy of the notebook, which is not this one.
        Raises("reduce_on_a_replica", "cross-replica context|Mixing different tf.dist").feedback(
            "You called `strategy.reduce` on a replica, and it works only outside "
            "`strategy.run`. Which object, that every replica can ask for, has an "
            "`all_reduce`?"
        ),
    ),
)
