"""A check of lesson 06: dropout masks that differ per replica and can be drawn again."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_true
from distlab.grading.replicas import mirrored

_STEPS = 3
_DRAWS = 2  # a layer may draw more than once in a step
_UNITS = 64


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    base, other, *rest = (int(number) for number in draw.choice(1000, size=7, replace=False))
    first = int(draw.integers(5, 50))  # a run that does not begin at 0
    return {
        "replicas": 2 + seed % 3,
        "base": base,
        "other base": other,
        "first step": first,
        "elsewhere": rest,
    }


@functools.cache
def _generator(replicas: int) -> tuple[Any, Any]:
    """A generator and its state: the next answer needs it, whatever this one puts there."""
    import keras

    with mirrored(replicas).scope():
        generator = keras.random.SeedGenerator(0)
    return generator, generator.state


def _call(seed_replica: Callable[..., Any], inputs: Inputs) -> Plain:
    first, (one, two, three, four, state) = inputs["first step"], inputs["elsewhere"]
    steps = range(first, first + _STEPS)
    run = _Run(seed_replica, inputs["base"], inputs)
    second_run = _Run(seed_replica, inputs["base"], inputs)
    other_run = _Run(seed_replica, inputs["other base"], inputs)
    return {
        "first": run.masks(steps, before=one, state=state),
        # The same, compiled anew; only the global streams are elsewhere.
        "again": second_run.masks(steps, before=two, state=state),
        # The last step alone, by a generator that was used otherwise.
        "resumed": second_run.masks(steps[-1:], before=three, state=state + 1),
        "other": other_run.masks(steps, before=four, state=state),
    }


class _Run:
    """Replicas that draw masks, their step compiled when the first is drawn."""

    def __init__(self, seed_replica: Callable[..., Any], base: int, inputs: Inputs) -> None:
        import keras
        import tensorflow as tf

        strategy = mirrored(inputs["replicas"])
        self.generator, self.state = generator, state = _generator(inputs["replicas"])
        generator.state = state

        def replica_step(step: Any) -> Any:
            seed_replica(generator, base, step)
            if generator.state is not state:
                raise TypeError("`generator.state` is another object now")
            ones = tf.ones(_UNITS)
            draws = [keras.random.dropout(ones, 0.5, seed=generator) for _ in range(_DRAWS)]
            return tf.stack(draws)

        @tf.function(autograph=False)  # type: ignore[untyped-decorator]
        def on_replicas(step: Any) -> Any:
            return strategy.experimental_local_results(strategy.run(replica_step, args=(step,)))

        self.on_replicas = on_replicas

    def masks(self, steps: Sequence[int], *, before: int, state: int) -> Any:
        """Masks of shape (steps, replicas, draws, units), after other numbers were drawn."""
        import keras
        import tensorflow as tf

        keras.utils.set_random_seed(before)
        self.state.assign([state, 0])
        return np.array([self.on_replicas(tf.constant(step, tf.int64)) for step in steps]) != 0


def _differ(masks: Sequence[Any]) -> bool:
    """Whether no two are the same."""
    return not any(np.array_equal(a, b) for a, b in itertools.combinations(masks, 2))


def _replicas_differ(outputs: Plain) -> bool:
    return all(_differ(step) for step in outputs["first"])


def _repeats(outputs: Plain) -> bool:
    return np.array_equal(outputs["first"], outputs["again"])


def _resumes(outputs: Plain) -> bool:
    return np.array_equal(outputs["first"][-1], outputs["resumed"][0])


def _steps_differ(outputs: Plain) -> bool:
    return all(_differ(replica) for replica in np.swapaxes(outputs["first"], 0, 1))


def _all_differ(outputs: Plain) -> bool:
    return _differ(outputs["first"].reshape(-1, _UNITS))


def _first_draws(outputs: Plain) -> Any:
    return outputs["first"][:, :, 0].reshape(-1, _UNITS)


def _bases_differ(outputs: Plain) -> bool:
    return not np.array_equal(outputs["first"], outputs["other"])


def _judge(_: Inputs, outputs: Plain) -> Verdict:
    first = (
        expect_true(
            "each replica draws masks of its own",
            _replicas_differ(outputs),
            message="two replicas draw the same mask in the same step",
        ),
        expect_true(
            "a second run, or a resumed one, draws the same masks",
            _repeats(outputs) and _resumes(outputs),
            message="the masks of the same step are others the second time",
        ),
    )
    if not all(criterion.passed for criterion in first):
        return Verdict.of(*first)  # masks of pure chance would pass most of what follows
    return Verdict.of(
        *first,
        expect_true(
            "each step draws new masks",
            _steps_differ(outputs),
            message="a replica draws the same mask in several steps",
        ),
        expect_true(
            "no mask comes twice",
            _all_differ(outputs),
            message="a mask of one step and replica comes again in another",
        ),
        expect_true(
            "another base seed, other masks",
            _bases_differ(outputs),
            message="two base seeds give the same masks",
        ),
    )


REPLICA_MASKS = Check(
    name="replica_masks",
    function="seed_replica",
    title="A dropout mask for each replica, the same on a second run",
    points=3,
    inputs=_inputs,
    call=_call,
    judge=_judge,
    hint="Start with tf.constant([base_seed, 0], tf.int64), fold the step into it, then the "
    "replica's number, and assign the result to `generator.state`. Keras counts its draws in the "
    "second place, so fold a 0 in last.",
    revisit="The cure: a function of base seed, step and replica",
    mistakes=(
        Mistake(
            "state_replaced",
            "`generator.state = ...` puts another object in the place of the variable that Keras "
            "draws from. Change what the variable holds: `generator.state.assign(...)`.",
            error="`generator.state` is another object",
        ),
        Mistake(
            "same_mask",
            "The masks can be drawn again, but all replicas draw the same. What does a replica "
            "know that the others do not?",
            when=lambda _, out: not _replicas_differ(out) and _repeats(out) and _resumes(out),
        ),
        Mistake(
            "untouched_state",
            "All replicas draw the same masks, which depend on what was drawn before: did you "
            "assign to `generator.state`?",
            when=lambda _, out: not _replicas_differ(out),
        ),
        Mistake(
            "unseeded_mask",
            "Each replica has a mask of its own, but a second run draws others. Compute the state "
            "from what is known; do not draw it.",
            when=lambda _, out: not _repeats(out),
        ),
        Mistake(
            "depends_on_history",
            "A run that resumes at a step draws other masks there: your state depends on the "
            "state before. Compute it anew.",
            when=lambda _, out: not _resumes(out),
        ),
        Mistake(
            "same_every_step",
            "Each replica drops the same units in every step, as if they were not there.",
            when=lambda _, out: not _steps_differ(out),
        ),
        Mistake(
            "base_ignored",
            "Another base seed gives the same masks, so there is only one run that one can have.",
            when=lambda _, out: not _bases_differ(out),
        ),
        Mistake(
            "collides_on_next_draw",
            "Right while a layer draws once. Keras adds 1 to the second place after each draw, and "
            "comes to what is another replica's or step's first. Fold a 0 in last.",
            when=lambda _, out: not _all_differ(out) and _differ(_first_draws(out)),
        ),
        Mistake(
            "collides",
            "1 + 0 = 0 + 1: the same mask comes at another step on another replica. Mix the "
            "numbers with stateless_fold_in; do not add them up.",
            when=lambda _, out: not _all_differ(out),
        ),
    ),
)
