"""A check of lesson 06: each layer's masks, its own on each replica or shared, and repeatable."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Cost, Gate, Holds, Inputs, Observed, Plain, Then
from distlab.course.runs.replicas import mirrored

_STEPS, _LAYERS, _UNITS = 3, 3, 64
_DRAWS = 2  # that are made; states are compared for as many as the task allows
_MOST_DRAWS = 100
_KEY = 2**31 - 2  # Keras takes both numbers of a state modulo this


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    base, other, *rest = (int(number) for number in draw.choice(1000, size=7, replace=False))
    first = int(draw.integers(5, 50))  # a run that does not begin at 0
    shared = int(draw.integers(1, _LAYERS))  # the first layer always has masks of its own
    return {
        "shared": [layer == shared for layer in range(_LAYERS)],
        "replicas": 2 + seed % 3,
        "base": base,
        "other base": other,
        "first step": first,
        "elsewhere": rest,
    }


@functools.cache
def _generators(replicas: int) -> tuple[list[Any], list[Any]]:
    """Generators and their states: the next answer needs them, whatever this one puts there."""
    import keras

    with mirrored(replicas).scope():
        generators = [keras.random.SeedGenerator(layer) for layer in range(_LAYERS)]
    return generators, [generator.state for generator in generators]


def _call(seed_layers: Callable[..., Any], inputs: Inputs) -> Plain:
    first, (*global_seeds, at) = inputs["first step"], inputs["elsewhere"]
    steps, base = range(first, first + _STEPS), inputs["base"]
    # The second is the same, compiled again; only the global streams are elsewhere.
    draw, draw_again, draw_other = (
        _compiled(seed_layers, inputs["shared"], seed, inputs["replicas"])
        for seed in (base, base, inputs["other base"])
    )
    masks, states = draw(steps, before=global_seeds[0], at=at)
    return {
        "first": masks,
        "states": states,
        "again": draw_again(steps, before=global_seeds[1], at=at)[0],
        # The last step alone, by generators that were used otherwise.
        "resumed": draw_again(steps[-1:], before=global_seeds[2], at=at + 1)[0],
        "other": draw_other(steps, before=global_seeds[3], at=at)[0],
    }


def _compiled(
    seed_layers: Callable[..., Any], shared: list[bool], base: int, replicas: int
) -> Callable[..., Any]:
    """Returns a function that draws masks, of shape (steps, replicas, layers, draws, units)."""
    import keras
    import tensorflow as tf

    strategy, (generators, states) = mirrored(replicas), _generators(replicas)
    for generator, state in zip(generators, states, strict=True):
        generator.state = state

    def masks_of(generator: Any) -> Any:
        ones = tf.ones(_UNITS)
        return tf.stack([keras.random.dropout(ones, 0.5, seed=generator) for _ in range(_DRAWS)])

    def replica_step(step: Any) -> Any:
        seed_layers(list(generators), list(shared), base, step)
        if any(g.state is not state for g, state in zip(generators, states, strict=True)):
            raise TypeError("`generator.state` is a different object now")
        seeded = tf.stack([tf.convert_to_tensor(state) for state in states])
        return tf.stack([masks_of(generator) for generator in generators]), seeded

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def on_replicas(step: Any) -> Any:
        masks, seeded = strategy.run(replica_step, args=(step,))
        each = strategy.experimental_local_results
        return each(masks), each(seeded)

    def masks(steps: Iterable[int], *, before: int, at: int) -> Any:
        keras.utils.set_random_seed(before)
        for layer, state in enumerate(states):
            state.assign([at, 1000 * layer])
        drawn = [on_replicas(tf.constant(step, tf.int64)) for step in steps]
        return np.array([masks for masks, _ in drawn]) != 0, np.array([seen for _, seen in drawn])

    return masks


def _differ(masks: Any) -> bool:
    """Whether no two are the same."""
    return not any(np.array_equal(a, b) for a, b in itertools.combinations(masks, 2))


def _apart_along(masks: Any, axis: int) -> bool:
    """Whether no two masks are the same that differ only in their place on this axis."""
    alone = np.moveaxis(masks, axis, -2)
    return all(map(_differ, alone.reshape(-1, *alone.shape[-2:])))


def _meet(states: Any, draws: int) -> bool:
    """Whether two states of a list come to the same numbers within some draws."""
    seen = sorted((int(key) % _KEY, int(count) % _KEY) for key, count in states)
    return any(
        key == next_key and next_count - count < draws
        for (key, count), (next_key, next_count) in itertools.pairwise(seen)
    )


def _read(given: Inputs, outputs: Plain) -> Plain:
    """Which masks differ, and which come again."""
    first = outputs["first"]  # (steps, replicas, layers, draws, units)
    shared = np.array(given["shared"])
    firsts = first[:, :, :, 0]
    # What must be different everywhere: of a shared layer, only what the first replica draws.
    once = ~shared | (np.arange(given["replicas"]) == 0)[:, None]
    states = outputs["states"][:, once].reshape(-1, 2)
    return {
        "again": np.array_equal(first, outputs["again"]),
        "resumed": np.array_equal(first[-1], outputs["resumed"][0]),
        "replicas": _apart_along(firsts[:, :, ~shared], 1),
        "shared": bool((first[:, :, shared] == first[:, :1, shared]).all()),
        "steps": _apart_along(firsts, 0),
        "layers": _apart_along(firsts, 2),
        "all": _differ(first[:, once].reshape(-1, _UNITS)) and not _meet(states, _MOST_DRAWS),
        "first draws": not _meet(states, 1),
        "bases": not np.array_equal(first, outputs["other"]),
    }


def _repeats(given: Inputs, out: Plain) -> bool:
    return bool(out["again"] and out["resumed"])


def _collides(given: Inputs, out: Plain) -> bool:
    """Whether states meet although each layer, replica and step has masks of its own."""
    has_own = all(out[key] for key in ("replicas", "shared", "layers", "steps"))
    return bool(_repeats(given, out) and has_own and not out["all"])


def _differing(key: str, label: str, message: str) -> Holds:
    return Holds(label, lambda given, out: out[key], message, points=0.5)


_AGAIN = Holds(
    "a second run, or a resumed one, draws the same masks",
    _repeats,
    "the same step draws different masks the second time",
    points=0.5,
)

REPLICA_MASKS = Check(
    name="replica_masks",
    function="seed_layers",
    title="Masks for each layer, its own on each replica or shared, the same on a second run",
    question="Which numbers identify a mask: layer, replica, step, draw? Which if it is shared?",
    direction=(
        "Three of these numbers must go into the state's first number. Keras itself counts the "
        "fourth in the second number, from where you start it."
    ),
    cost=Cost.TENSORFLOW,
    inputs=_inputs,
    call=_call,
    read=_read,
    criteria=(
        Gate(_AGAIN),  # masks of pure chance would pass most of what follows
        _differing(
            "replicas",
            "each replica draws its own masks in the layers that are not shared",
            "two replicas draw the same mask in the same step",
        ),
        Then(
            _AGAIN,
            _differing(
                "shared",
                "a shared layer draws the same masks on all replicas",
                "two replicas draw different masks in a shared layer",
            ),
            _differing(
                "layers",
                "each layer draws its own masks",
                "two layers of one replica draw the same mask in the same step",
            ),
            _differing(
                "steps",
                "each step draws new masks",
                "a layer draws the same mask in several steps",
            ),
            _differing(
                "all",
                f"no state is used twice, in {_MOST_DRAWS} draws of each layer",
                "a layer reaches a state that a different step, replica or layer uses, too",
            ),
            _differing(
                "bases", "a different base seed, different masks", "two base seeds, the same masks"
            ),
        ),
    ),
    hint="For each generator, start with tf.constant([base_seed, 0], tf.int64). Fold in its place "
    "in the list, the step, the replica, and a 0 last. For a shared layer, fold in 0 in place of "
    "the replica. Assign the result to `generator.state`.",
    revisit='"Compute the state" in lesson 06',
    mistakes=(
        Observed(
            "same_mask", lambda given, out: not out["replicas"] and _repeats(given, out)
        ).feedback(
            "You computed the same state on every replica. The masks can be drawn again, but all "
            "replicas drop the same units. Which number does a replica know that the others do "
            "not have?"
        ),
        Observed(
            "depends_on_history",
            lambda given, out: out["replicas"] and out["again"] and not out["resumed"],
        ).feedback(
            "You computed the new state from the state before. A run that resumes at this step has "
            "a different state before, and draws different masks. What does a resumed run know "
            "for certain?"
        ),
        Observed(
            "shared_ignored", lambda given, out: not out["shared"] and _repeats(given, out)
        ).feedback(
            "You gave each replica its own masks in a shared layer, too. Some replicas then skip a "
            "block that others compute. Which number must not change the state of a shared layer?"
        ),
        Observed(
            "collides_on_next_draw",
            lambda given, out: _collides(given, out) and out["first draws"],
        ).feedback(
            "You gave every layer, replica and step a state of its own, but some of these states "
            "are neighbours. Keras adds 1 to the second number after each draw, and comes to a "
            "neighbour's. What should be in the second number when a step begins?"
        ),
        Observed("collides", _collides).feedback(
            "You combined the numbers so that two of them give the same state: 1 + 0 = 0 + 1. A "
            "mask of one step then comes again in a different place. Which function keeps the "
            "numbers apart?"
        ),
    ),
)
