"""Checks of lesson 04: steps by hand on every replica, with and without an all-reduce."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from distlab.course.checks import Check, Close, Fault, Inputs, Plain, Raises, Then
from distlab.course.runs.replicas import MOST_REPLICAS, give_each, mirrored


def _mirrored_variables(*values: Any) -> list[Any]:
    """Returns a mirrored variable for each value, without an aggregation."""
    import tensorflow as tf

    with mirrored(MOST_REPLICAS).scope():
        return [tf.Variable(tf.constant(value, tf.float32)) for value in values]


def _run_step(step: Callable[..., Any], variables: Sequence[Any], *shares: Any) -> None:
    """Runs `step(*variables, *one share of each)` once, on four replicas."""
    import tensorflow as tf

    strategy = mirrored(MOST_REPLICAS)
    given = [
        give_each(strategy, [tf.constant(own, tf.float32) for own in share]) for share in shares
    ]
    strategy.run(lambda *own: step(*variables, *own), args=tuple(given))


def _copies_of(variable: Any) -> Any:
    """Returns the copies of a variable: an array [replicas, ...]."""
    local = mirrored(MOST_REPLICAS).experimental_local_results(variable)
    return np.stack([copy.numpy() for copy in local])


def _to_all(value: Any) -> Any:
    """Returns the same value for each replica: an array [replicas, ...]."""
    return np.broadcast_to(value, (MOST_REPLICAS, *np.shape(value)))


# --- sgd_step

_SGD_RATE = 0.1


def _regression_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)

    def shares(counts: Any) -> Any:
        return [
            draw.normal(size=(2, count)).astype("float32") for count in draw.permutation(counts)
        ]

    return {
        "slope": float(draw.normal()),
        "offset": float(draw.normal()),
        "full": shares([1, 2, 4, 7]),
        "with_empty": shares([0, 2, 3, 6]),
    }


def _regression_call(sgd_step: Callable[..., Any], inputs: Inputs) -> Plain:
    def after(shares: Any) -> Plain:
        slope, offset = _mirrored_variables(inputs["slope"], inputs["offset"])
        x, y = ([share[row] for share in shares] for row in (0, 1))
        _run_step(lambda *given: sgd_step(*given, _SGD_RATE), (slope, offset), x, y)
        return np.stack([_copies_of(slope), _copies_of(offset)], axis=1)

    return {key: after(inputs[key]) for key in ("full", "with_empty")}


def _one_device(sums: Any, counts: Any) -> Any:
    return sums.sum(axis=0) / counts.sum()


def _regression_reference(
    given: Inputs,
    *,
    gradient: Callable[[Any, Any], Any] = _one_device,
    of_nothing: float = 0.0,
) -> Plain:
    """The copies [replicas, 2] after a step; `gradient` combines sums [replicas, 2] and counts."""
    start = np.array([given["slope"], given["offset"]])

    def after(shares: Any) -> Any:
        counts = np.array([[share.shape[1]] for share in shares])
        errors = [start[0] * x + start[1] - y for x, y in shares]
        sums = [
            [2 * error @ share[0], 2 * error.sum()]
            for error, share in zip(errors, shares, strict=True)
        ]
        with np.errstate(divide="ignore", invalid="ignore"):
            combined = gradient(np.where(counts > 0, sums, of_nothing), counts)
        return _to_all(start) - _SGD_RATE * combined

    return {key: after(given[key]) for key in ("full", "with_empty")}


def _gradient_fault(name: str, gradient: Callable[[Any, Any], Any]) -> Fault:
    return Fault(name, sees="full", gradient=gradient)


REGRESSION = Check(
    name="sgd_step",
    title="A step of linear regression by hand",
    question="Which sums over the global batch does one device need, and which part has a replica?",
    direction="Write the gradient of one device as a sum over examples divided by a count. Let the "
    "all-reduce carry both.",
    inputs=_regression_inputs,
    call=_regression_call,
    reference=_regression_reference,
    criteria=(
        Close("full", "slope and offset of every copy after a step", atol=1e-5, points=2),
        Then(Close("with_empty", "the same if a replica has no example", atol=1e-5, points=1)),
    ),
    hint='all_reduce("SUM", [sum by slope, sum by offset, number of examples]), then divide the '
    "two sums by the third.",
    revisit='"The line that was missing" in lesson 04',
    mistakes=(
        _gradient_fault("no_all_reduce", lambda sums, counts: sums / counts).feedback(
            "Each replica subtracted the gradient of its own examples from its own copy. The "
            "copies now differ, and nothing will bring them together. Which call lets a replica "
            "use what the others know?"
        ),
        _gradient_fault(
            "mean_of_means", lambda sums, counts: (sums / counts).mean(axis=0)
        ).feedback(
            "You averaged the replicas' means. The example that is alone on its replica counts "
            "seven times as much as each of seven. How much should one example count?"
        ),
        Fault("nan_of_nothing", sees=("full", "with_empty"), of_nothing=np.nan).feedback(
            "Your step is right while every replica has an example. A replica without one took a "
            "mean over nothing, which is NaN, and the sum over the replicas is NaN, too. What is "
            "the sum over no examples?"
        ),
        Raises(
            "all_reduce_in_a_condition",
            "different number of replica_context|`merge_call` called while defining",
        ).feedback(
            "Your `if` keeps some replicas away from the all-reduce, and the others wait. What "
            "could a replica without examples add to the sum?"
        ),
    ),
)


# --- adagrad_step

_ADAGRAD_RATE, _LIMIT, _ADAGRAD_STEPS = 0.1, 1.0, 2


def _adagrad_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    # For each step and weight a sum within or beyond the limit, cut into parts that disagree.
    sums = draw.choice([0.3, 0.6, 1.8, 2.5], size=(_ADAGRAD_STEPS, 5)) * draw.choice(
        [-1, 1], size=5
    )
    parts = draw.normal(0, 1.5, size=(_ADAGRAD_STEPS, MOST_REPLICAS, 5))
    parts += (sums - parts.sum(axis=1))[:, None] / MOST_REPLICAS
    return {
        "weight": draw.normal(size=5).astype("float32"),
        "total": draw.uniform(0.5, 1, size=5).astype("float32"),
        "parts": parts.astype("float32"),
    }


def _adagrad_call(adagrad_step: Callable[..., Any], inputs: Inputs) -> Plain:
    variables = _mirrored_variables(inputs["weight"], inputs["total"])
    for parts in inputs["parts"]:
        _run_step(lambda *given: adagrad_step(*given, _ADAGRAD_RATE, _LIMIT), variables, parts)
    return dict(zip(("weight", "total"), map(_copies_of, variables), strict=True))


def _clip(gradient: Any) -> Any:
    return np.clip(gradient, -_LIMIT, _LIMIT)


def _identity(values: Any) -> Any:
    return values


def _adagrad_reference(
    given: Inputs,
    *,
    before: Callable[[Any], Any] = _identity,
    reduce: Callable[[Any], Any] = lambda parts: _to_all(parts.sum(axis=0)),
    clip: Callable[[Any], Any] = _clip,
    squares: Callable[[Any, Any], Any] = lambda gradient, parts: gradient**2,
) -> Plain:
    """All copies after the steps; each argument is one part of the step."""
    weight, total = (np.array(_to_all(given[key]), "float64") for key in ("weight", "total"))
    for parts in given["parts"].astype("float64"):
        gradient = clip(reduce(before(parts)))
        total = total + squares(gradient, parts)
        weight -= _ADAGRAD_RATE * gradient / np.sqrt(total)
    return {"weight": weight, "total": total}


ADAGRAD = Check(
    name="adagrad_step",
    title="Adagrad with a limit, by hand",
    question="Which of the three lines of Adagrad would give something different for a part?",
    direction="Find the first line that is not linear. What must be complete before it runs?",
    inputs=_adagrad_inputs,
    call=_adagrad_call,
    reference=_adagrad_reference,
    criteria=(
        Close("weight", "the weight in every copy after two steps", atol=1e-5, points=2),
        Close("total", "the total of squares in every copy after two steps", atol=1e-4, points=1),
    ),
    hint='gradient = context.all_reduce("SUM", gradient), and then the three lines of one device.',
    revisit='"An optimizer with a memory" in lesson 04',
    mistakes=(
        Fault("no_all_reduce", reduce=_identity).feedback(
            "Each replica took its own part for the whole gradient, so every copy went its own "
            "way. What turns the four parts into the gradient of one device?"
        ),
        Fault("clipped_before_reduce", before=_clip, clip=_identity)
        .or_with(before=_clip)
        .feedback(
            "You limited each replica's part and then added up. Parts that would cancel are cut "
            "first, so the sum is a different one. Which number should stay within the limit?"
        ),
        Fault("state_before_reduce", squares=lambda gradient, parts: (parts**2).sum(axis=0))
        .or_with(squares=lambda gradient, parts: (_clip(parts) ** 2).sum(axis=0))
        .or_with(squares=lambda gradient, parts: parts**2)
        .or_with(squares=lambda gradient, parts: _clip(parts) ** 2)
        .feedback(
            "The total collected the squares of the parts. The square of a sum is not the sum of "
            "the squares, so each step has the wrong length. Which gradient does one device "
            "square?"
        ),
        Fault("mean_for_sum", reduce=lambda parts: _to_all(parts.mean(axis=0))).feedback(
            "You took the mean of the parts, which is a quarter of the gradient. The task says "
            "what gives the gradient of one device. Which reduction is it?"
        ),
    ),
)


# --- local_step

_LOCAL_RATE, _LOCAL_STEPS = 0.5, 7


def _local_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    return {
        "every": 2 + seed % 2,
        "weight": draw.normal(size=3).astype("float32"),
        "gradients": draw.normal(size=(_LOCAL_STEPS, MOST_REPLICAS, 3)).astype("float32"),
    }


def _local_call(local_step: Callable[..., Any], inputs: Inputs) -> Plain:
    def copies_by(every: int, steps: int) -> Plain:
        (weight,) = _mirrored_variables(inputs["weight"])
        after_steps = []
        for step, parts in enumerate(inputs["gradients"][:steps], 1):
            _run_step(
                lambda *given, at=step: local_step(*given, _LOCAL_RATE, at, every), [weight], parts
            )
            after_steps.append(_copies_of(weight))
        return np.stack(after_steps)

    return {"copies": copies_by(inputs["every"], _LOCAL_STEPS), "always": copies_by(1, 2)}


def _local_reference(
    given: Inputs,
    *,
    averages: Callable[[int, int], bool] = lambda step, every: step % every == 0,
    average_first: bool = False,
) -> Plain:
    """The copies [steps, replicas, 3] after each step."""

    def copies_by(every: int, steps: int) -> Any:
        copies, after_steps = np.array(_to_all(given["weight"]), "float64"), []
        for step, gradient in enumerate(given["gradients"][:steps], 1):
            change = _LOCAL_RATE * gradient
            if not averages(step, every):
                copies = copies - change
            elif average_first:
                copies = _to_all(copies.mean(axis=0)) - change
            else:
                copies = _to_all((copies - change).mean(axis=0))
            after_steps.append(copies)
        return np.stack(after_steps)

    return {"copies": copies_by(given["every"], _LOCAL_STEPS), "always": copies_by(1, 2)}


LOCAL = Check(
    name="local_step",
    title="Train apart, and average now and then",
    question="In which steps do your copies differ, and in which are they equal?",
    direction="First let every replica move on its own. Then ask whether this step ends a round.",
    inputs=_local_inputs,
    call=_local_call,
    reference=_local_reference,
    criteria=(
        Close("copies", "every copy after each of seven steps", atol=1e-5, points=2),
        Then(Close("always", "the same if every step ends in an average", atol=1e-5, points=1)),
    ),
    hint="Subtract first. Then, if step % every == 0, assign the MEAN all-reduce of "
    "weight.read_value().",
    revisit='"When would you do without Keras?" in lesson 04',
    mistakes=(
        Fault("averages_each_step", sees="copies", averages=lambda step, every: True).feedback(
            "After each step all your copies were equal: you averaged copies or gradients every "
            "time. That is right as SGD, and costs as many all-reduces. In which steps may the "
            "copies differ?"
        ),
        Fault("never_averages", averages=lambda step, every: False).feedback(
            "Your copies drifted apart and never came together. Four models were trained, each on "
            "a quarter of the data. What should happen in step `every`?"
        ),
        Fault("averages_before_the_step", average_first=True).feedback(
            "You averaged first and subtracted afterwards, so the copies differ again at the end "
            "of the round. Which of the two comes last in the task?"
        ),
        Fault(
            "off_by_one", sees="copies", averages=lambda step, every: (step - 1) % every == 0
        ).feedback(
            "You averaged in steps 1, `every` + 1 and so on. Steps are counted from 1, so the "
            "first round has `every` steps. For which numbers is the remainder 0?"
        ),
    ),
)


CHECKS = (REGRESSION, ADAGRAD, LOCAL)
