"""Checks of lesson 01: the scope, unequal shares, a variable made in a step, drifting copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from distlab.course.checks import (
    Check,
    Close,
    Equal,
    Fault,
    Form,
    Gate,
    Holds,
    Inputs,
    Observed,
    Plain,
    Raises,
    Then,
)
from distlab.course.runs.replicas import MOST_REPLICAS, give_each, mirrored, take_each

# --- scope


def _scope_inputs(seed: int) -> Inputs:
    # The first draw has two replicas, like the exercise.
    replicas = 2 + (seed - 1) % 3
    return {"units": int(np.random.default_rng(seed).integers(2, 40)), "replicas": replicas}


def _scope_call(make_model: Callable[..., Any], inputs: Inputs) -> Plain:
    import keras

    strategy = mirrored(inputs["replicas"])
    model = make_model(strategy, inputs["units"])
    if not isinstance(model, keras.Model):
        return {"returned": None if model is None else type(model).__name__}
    with model.distribute_strategy.scope():  # where `fit` builds what is not built yet
        answer = model(np.zeros((1, 3), np.float32))
    optimizer = getattr(model, "optimizer", None)  # none where it was not compiled

    def copies(variables: Any) -> Plain:
        """How many copies each variable has: one number if all have as many, else all numbers."""
        counts = [len(strategy.experimental_local_results(each.value)) for each in variables]
        return counts[0] if len(set(counts)) == 1 else counts

    return {
        "returned": "a model",
        "units": int(answer.shape[-1]),
        "weights": copies(model.weights),
        "optimizer": copies(optimizer.variables) if optimizer else None,
    }


def _scope_reference(given: Inputs, *, weights: str = "inside", optimizer: str = "inside") -> Plain:
    copies = {"inside": given["replicas"], "outside": 1}
    return {
        "returned": "a model",
        "units": given["units"],
        "weights": copies[weights],
        "optimizer": copies[optimizer],
    }


SCOPE = Check(
    name="scope",
    function="make_model",
    title="Everything that a step changes has a copy on every device",
    question="Which variables does a training step change, and which line makes each of them?",
    direction="A variable gets its copies when it is made. Look for every line that makes one, in "
    "the model and in the optimizer.",
    inputs=_scope_inputs,
    call=_scope_call,
    reference=_scope_reference,
    criteria=(
        Form("a Keras model", lambda _, out: out["returned"] == "a model", key="returned"),
        Gate(Equal("units", "units of its layer")),
        Equal("weights", "copies of each weight of the model"),
        Gate(
            Holds(
                "an optimizer",
                lambda _, out: out["optimizer"] is not None,
                "the model has none: is it compiled?",
            )
        ),
        Equal("optimizer", "copies of each variable of the optimizer"),
    ),
    hint="`units` and `return model` stay as they were, and only the place of lines changes. A "
    "variable is made where its owner is: the weights with the layers, the step counter and the "
    "momentum with the optimizer. `compile` makes no weights.",
    revisit='"What the scope does" in lesson 01',
    mistakes=(
        Observed(
            "units_ignored", lambda given, out: out.get("units", given["units"]) != given["units"]
        ).feedback(
            "Your layer has a different number of units than the argument `units` says. So the "
            "model is not the one that was asked for, and its copies are not looked at yet. Which "
            "number did you give to `Dense`?"
        ),
        Fault("compile_only_inside", weights="outside", optimizer="outside").feedback(
            "You put only `compile` into the scope, and `compile` makes no weights here. Every "
            "variable has one copy, so Keras trains on one device and says nothing. Which two "
            "lines make variables?"
        ),
        Fault("optimizer_outside", sees=("weights", "optimizer"), optimizer="outside").feedback(
            "You made the model inside the scope and the optimizer outside. The optimizer has "
            "variables as well, such as its step counter, and all replicas add to the one copy. On "
            "which line is the optimizer made? (If you give only its name, `compile` makes it.)"
        ),
        Fault("model_outside", sees=("weights", "optimizer"), weights="outside").feedback(
            "You made the optimizer inside the scope and the layers outside, so each weight has "
            "one copy. Training then stops with an error that has no text. Which line makes the "
            "weights?"
        ),
    ),
)


# --- combine_shares


def _combine_inputs(seed: int) -> Inputs:
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


def _combine_call(combine: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    strategy = mirrored(MOST_REPLICAS)

    def answers(means: Any, examples: Any) -> Plain:
        values = [
            give_each(strategy, [tf.constant(each) for each in some]) for some in (means, examples)
        ]
        answer = strategy.run(combine, args=tuple(values))
        return None if answer is None else take_each(strategy, answer)

    return {
        "on_replicas": answers(inputs["means"], inputs["examples"]),
        "with_empty": answers(*_with_an_empty_share(inputs, mean_of_nothing=np.nan)),
    }


def _weighted_mean(means: Any, examples: Any) -> Any:
    return examples @ means / examples.sum()


def _combine_reference(
    given: Inputs,
    *,
    combine: Callable[[Any, Any], Any] = _weighted_mean,
    mean_of_nothing: float = 0.0,
) -> Plain:
    """Returns the result of `combine` for all means and examples, on every replica."""
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
    question="How much does one example count in your result, on the replica with the most "
    "examples and on the one with the fewest?",
    direction="Write the mean over the global batch as a sum over examples. Which part of it does "
    "each replica know, and which part needs the others?",
    inputs=_combine_inputs,
    call=_combine_call,
    reference=_combine_reference,
    criteria=(
        Close(
            "on_replicas", "on every replica, the means over the global batch", atol=1e-5, points=2
        ),
        Then(Close("with_empty", "the same if one replica had no example", atol=1e-5, points=1)),
    ),
    hint="Two all-reduces, both SUM: one for the number of examples in the global batch, one for "
    "the means, each weighted by its replica's part of them. `tf.math.multiply_no_nan` gives 0 for "
    "NaN times 0.",
    revisit='"Three digits on two replicas" in lesson 01',
    mistakes=(
        Fault(
            "mean_of_means",
            sees="on_replicas",
            combine=lambda means, examples: means.mean(axis=0),
        ).feedback(
            "You averaged the replicas' means. A replica with one example then counts as much as a "
            "replica with eight. How much should one example count, and on which replica does it "
            "count more here?"
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
            "You called `strategy.reduce` on a replica, and it works only outside `strategy.run`. "
            "Which object, that every replica can ask for, has an `all_reduce`?"
        ),
    ),
)


# --- count_examples

_REPLICAS = 3


def _count_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    # The third batch has another shape than the first two, so the step is traced again.
    first, last = (draw.choice(np.arange(1, 9), size=_REPLICAS, replace=False) for _ in range(2))
    return {"shares": np.stack([first, first, last])}


def _count_call(count_examples: Callable[..., Any], inputs: Inputs) -> Plain:
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


def _count_reference(given: Inputs, *, added: Callable[[Any], Any] = np.sum) -> Plain:
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
    question="What does each copy of the variable hold after a step, and when is the variable "
    "made?",
    direction="Two things decide: how often Python's own lines run in a `tf.function`, and what "
    "`aggregation` does with what the replicas assign.",
    inputs=_count_inputs,
    call=_count_call,
    reference=_count_reference,
    criteria=(
        Holds(
            "kept['total'] is a variable with a copy on every replica", _has_copies, _what_was_kept
        ),
        Then(Close("totals", "every copy, after each of three batches", atol=1e-4, points=2)),
    ),
    hint='Ask `if "total" not in kept` before you make it, and choose the aggregation by what all '
    "copies should hold. The number of labels is tf.shape(labels)[0].",
    revisit='"A variable that remembers" in lesson 01',
    mistakes=(
        Raises("recreated_each_call", r"singleton tf\.Variables created on the first").feedback(
            "You make a new variable whenever the function is traced, and TensorFlow refuses that. "
            "How can a later trace find the variable of the first one?"
        ),
        # What TensorFlow says where the replicas have equal shares, and where not.
        Raises(
            "python_number", "non-DistributedValues value|'int' object has no attribute 'device'"
        ).feedback(
            "You gave TensorFlow an ordinary Python number, such as `len(labels)`, to add up over "
            "the replicas. It combines tensors only. Which operation returns the number of labels "
            "as a tensor?"
        ),
        Raises("variable_replaced", "is out of scope and cannot be used here").feedback(
            'You put a tensor or a number into `kept["total"]`, in place of the variable: `+=` on '
            "an entry of a dictionary does that. The next trace cannot use it. Which method of the "
            "variable adds to it?"
        ),
        Fault("own_share_only", added=lambda shares: shares).feedback(
            "Each copy counts the examples of its own replica, so the copies drift apart. Without "
            "an aggregation, each replica assigns to its own copy. Which aggregation gives every "
            "copy the total?"
        ),
        Fault("added_twice", added=lambda shares: shares.sum() * _REPLICAS).feedback(
            "You added up the replicas with an all-reduce, and the aggregation added them up "
            "again. The total is N times too large. Which of the two do you keep?"
        ),
    ),
)


# --- find_drifted

_NAMES = ("weights", "bias", "velocity", "moving_mean", "last_loss", "steps")
_SHAPES = ((3,), (1, 3), (3, 1))


def _drift_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    names = draw.permutation(_NAMES).tolist()
    copies = np.repeat(draw.normal(size=(len(names), 1, 3)), MOST_REPLICAS, axis=1)
    copies = copies.astype(np.float32)
    # Three drift: two elements on replicas 1 and 3, a whole copy, and one element by one bit.
    copies[0, 1::2, draw.permutation(3)[:2]] += 1
    copies[1, 2] += 0.5
    element = draw.integers(3)
    copies[2, 3, element] = np.nextafter(copies[2, 3, element], np.float32(9))
    copies[3, :, draw.integers(3)] = np.nan  # in all copies, so they are equal
    order = draw.permutation(len(names)).tolist()
    return {
        "names": [names[place] for place in order],
        "copies": copies[order],
        # The last of the equal ones says how to combine; so `aggregation` tells nothing.
        "aggregation": ["MEAN" if place == len(names) - 1 else "NONE" for place in order],
    }


def _drift_call(find_drifted: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    strategy = mirrored(MOST_REPLICAS)
    variables = {}
    given = zip(inputs["names"], inputs["copies"], inputs["aggregation"], strict=True)
    for place, (name, flat, rule) in enumerate(given):
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


def _drift_read(given: Inputs, outputs: Plain) -> Plain:
    """The variable with NaN apart from the others, if names were returned."""
    answer, after = outputs["drifted"], outputs["after"]
    has_nan = np.isnan(given["copies"]).any(axis=(1, 2))
    (nan_name,) = (name for name, has in zip(given["names"], has_nan, strict=True) if has)
    others, with_nan = answer, []
    if isinstance(answer, list):
        others = [name for name in answer if name != nan_name]
        with_nan = [name for name in answer if name == nan_name]
    return {"drifted": others, "with NaN": with_nan, "after": after}


def _differs(copies: Any) -> Any:
    """True for each element that differs from the first copy's; NaN equals NaN."""
    return (copies != copies[0]) & ~(np.isnan(copies) & np.isnan(copies[0]))


def _drift_reference(
    given: Inputs, *, named: Callable[[Any], Any] = lambda copies: _differs(copies).any()
) -> Plain:
    """The names of the variables that `named` picks by their copies."""
    variables = zip(given["names"], given["copies"], strict=True)
    names = [name for name, copies in variables if named(copies)]
    return _drift_read(given, {"drifted": sorted(names), "after": given["copies"]})


DRIFT = Check(
    name="find_drifted",
    title="Find the variables whose copies drifted apart",
    question="Which copies does your function look at, and what counts as equal?",
    direction="List all copies of one variable and compare them. Reading a variable shows a single "
    "copy.",
    inputs=_drift_inputs,
    call=_drift_call,
    read=_drift_read,
    reference=_drift_reference,
    criteria=(
        Equal("drifted", "names of the variables whose copies differ (sorted here)"),
        # A function that does nothing changes nothing, and names nothing.
        Then(
            Equal(
                "with NaN", "a variable whose copies all have the same NaN is left out", points=0.5
            ),
            Holds(
                "no variable changed",
                lambda given, out: np.array_equal(given["copies"], out["after"], equal_nan=True),
                "some copies changed while your function ran",
                points=0.5,
            ),
        ),
    ),
    hint="strategy.experimental_local_results(variable) lists all copies. Compare each of them "
    "with the first, in every element.",
    revisit='"A variable that remembers" in lesson 01',
    mistakes=(
        Fault("checks_primary_only", named=lambda copies: False).feedback(
            "Your function finds nothing. If you read `variable.numpy()`, you always get the same "
            "copy, and a copy never differs from itself. How do you list the copies of all "
            "replicas?"
        ),
        Fault(
            "first_two_only", sees="drifted", named=lambda copies: _differs(copies[:2]).any()
        ).feedback(
            "You compared only the first two copies. With more replicas, any of the others can "
            "have drifted, too. How do you compare the first copy with all of them?"
        ),
        Fault(
            "whole_copy_only", named=lambda copies: (copies != copies[0]).all(axis=1).any()
        ).feedback(
            "You named only the copy that differs in every element. A copy that differs in one "
            "element has drifted, too. How do you ask whether any element differs?"
        ),
        Fault(
            "nan_differs",
            sees=("drifted", "with NaN"),
            named=lambda copies: (copies != copies[0]).any(),
        ).feedback(
            "You named a variable whose copies all have NaN at the same place. NaN is not equal "
            "to itself, so `!=` calls even one array different from itself. How do you ask whether "
            "two elements are equal, or both NaN?"
        ),
        Fault(
            "tolerance",
            sees="drifted",
            named=lambda copies: not np.allclose(copies, copies[0], equal_nan=True),
        ).feedback(
            "You compared with a tolerance, so a very small difference was left out. Copies that "
            "agree are equal in every bit, and a small difference grows with each step. Which "
            "comparison allows none?"
        ),
    ),
)


CHECKS = (SCOPE, COMBINE, COUNT, DRIFT)
