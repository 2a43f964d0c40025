"""Checks of lesson 06: two identical runs, a mask for each layer and replica, what can be equal.

They hold in a kernel where op determinism was switched on, which cannot be undone there: before
each run the global streams get a different seed, so what a learner did not seed differs from run
to run, and no operation is refused because a seed is missing.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from distlab.course.checks import (
    Check,
    Cost,
    Equal,
    Fault,
    Gate,
    Holds,
    Inputs,
    Observed,
    Plain,
    Then,
)
from distlab.course.checks.matchers import same_plain
from distlab.course.results.plain_values import to_plain
from distlab.course.runs.replicas import mirrored

# --- equal_runs

_EXAMPLES = 16


def _runs_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    seeds = draw.choice(1000, size=5, replace=False)
    return {
        "seed": int(seeds[0]),
        "other seed": int(seeds[1]),
        "before": [int(number) for number in seeds[2:]],
        "x": draw.normal(size=(_EXAMPLES, 4)).astype(np.float32),
        "y": draw.integers(0, 3, size=_EXAMPLES).astype(np.int32),
    }


def _runs_call(train_once: Callable[..., Any], inputs: Inputs) -> Plain:
    seeds = (inputs["seed"], inputs["seed"], inputs["other seed"])
    runs = zip(("first", "again", "other"), seeds, inputs["before"], strict=True)
    return {name: _run_once(train_once, seed, before, inputs) for name, seed, before in runs}


def _run_once(train_once: Callable[..., Any], seed: int, before: int, inputs: Inputs) -> Plain:
    """One run, after other numbers were drawn; what it drew, and where it left the streams."""
    import keras
    import tensorflow as tf

    noted: dict[str, Any] = {"weights": None, "noise": None, "order": None, "left": None}
    models: list[Any] = []

    def build() -> Any:
        layers = [keras.layers.Dense(4, "relu"), keras.layers.Dropout(0.5), keras.layers.Dense(3)]
        model = keras.Sequential([keras.Input((4,)), *layers])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        # Eagerly, as four small steps are taken in less time than one is compiled.
        model.compile(keras.optimizers.SGD(0.1), loss=loss, run_eagerly=True)
        noted["weights"] = [np.array(weight) for weight in model.get_weights()]
        models.append(model)
        return model

    def make_data() -> Any:
        noted["noise"] = np.random.normal(size=inputs["x"].shape).astype(np.float32)
        numbers = tf.data.Dataset.range(_EXAMPLES)
        shuffled = numbers.shuffle(_EXAMPLES, reshuffle_each_iteration=False)
        order = noted["order"] = np.array(list(shuffled.as_numpy_iterator()))
        x = (inputs["x"] + 0.1 * noted["noise"])[order]
        return tf.data.Dataset.from_tensor_slices((x, inputs["y"][order])).batch(8)

    keras.utils.set_random_seed(before)
    trained = to_plain(train_once(seed, build, make_data), at="the answer of `train_once`")
    streams = {
        "python": random.random(),
        "numpy": float(np.random.rand()),
        "tensorflow": float(tf.random.uniform(())),
    }
    for model in models:
        noted["left"] = model.get_weights()
    return {**noted, "trained": trained, "streams": streams}


def _runs_read(given: Inputs, outputs: Plain) -> Plain:
    """Compares two runs with one seed, and a third run with a different seed."""
    first, again, other = outputs["first"], outputs["again"], outputs["other"]

    def twice(key: str) -> bool:  # on a GPU bits may need op determinism
        return first[key] is not None and same_plain(first[key], again[key], atol=1e-6)

    fitted = not same_plain(first["weights"], first["left"])
    return {
        "returned": first["trained"],
        "fitted": fitted and same_plain(first["trained"], first["left"], atol=1e-6),
        "same": {key: twice(key) for key in ("weights", "noise", "order", "trained")},
        "seed used": not any(same_plain(first[key], other[key]) for key in ("weights", "order")),
        "seed ignored": same_plain(first, other),
        # Left at the same place by two runs that began at different ones.
        "seeded": [name for name, at in first["streams"].items() if at == again["streams"][name]],
    }


def _same_twice(key: str, what: str, otherwise: str) -> Holds:
    label, message = f"the same {what}, twice", f"the two runs {otherwise}"
    return Holds(label, lambda given, out: out["same"][key], message, points=0.5)


_FITTED = Holds(
    "the weights come back trained",
    lambda given, out: out["fitted"],
    lambda given, out: (
        "your function returned None: is there a `return`?"
        if out["returned"] is None
        else "return model.get_weights() after fit"
    ),
    points=0.5,
)

EQUAL_RUNS = Check(
    name="equal_runs",
    function="train_once",
    title="Two runs, identical bit for bit",
    question="Which random numbers are drawn first in a run, and is their stream seeded by then?",
    direction="There are three streams: Python's, NumPy's and TensorFlow's. Find out which of your "
    "lines draws from which one.",
    inputs=_runs_inputs,
    call=_runs_call,
    read=_runs_read,
    criteria=(
        Gate(_FITTED),
        _same_twice("weights", "initial weights", "begin with different weights"),
        _same_twice("noise", "noise from np.random", "add different noise to the images"),
        _same_twice("order", "order from tf.data", "see the examples in a different order"),
        _same_twice("trained", "trained weights", "end with different weights"),
        # What never changes is the same twice as well: ask only now.
        Then(
            _FITTED,
            Holds(
                "a different seed, a different run",
                lambda given, out: out["seed used"],
                "the run is the same whatever seed it is given",
                points=0.5,
            ),
        ),
    ),
    hint="`dl.set_seed(seed)` seeds all three streams. It must be the first line of `train_once`, "
    "before `build` and `make_data` draw.",
    revisit='"Three streams of random numbers" in lesson 06',
    mistakes=(
        Observed(
            "seeded_after_build",
            lambda given, out: not out["same"]["weights"] and "python" in out["seeded"],
        ).feedback(
            "You set the seed after the model was built. Its weights and dropout layers had drawn "
            "their numbers by then, so each run begins with different weights. What is the first "
            "thing in `train_once` that draws?"
        ),
        Observed(
            "seeded_after_data",
            lambda given, out: not out["same"]["order"] and "tensorflow" in out["seeded"],
        ).feedback(
            "You set the seed after the data set was made. Its noise and its order had been drawn "
            "by then, so each run trains on different data. What draws before your line?"
        ),
        Observed("stream_left_out", lambda given, out: 0 < len(out["seeded"]) < 3).feedback(
            "You seeded some of the three streams. What the others give is different in each run. "
            "Which stream did you leave out: Python's, NumPy's or TensorFlow's?"
        ),
        Observed("same_for_every_seed", lambda given, out: out["seed ignored"]).feedback(
            "You made every run the same, whatever seed it is given. So five seeds would give one "
            "result five times. Where does your function use `seed`?"
        ),
    ),
)


# --- replica_masks

_STEPS, _LAYERS, _UNITS = 3, 3, 64
_DRAWS = 2  # that are made; states are compared for as many as the task allows
_MOST_DRAWS = 100
_KEY = 2**31 - 2  # Keras takes both numbers of a state modulo this


def _masks_inputs(seed: int) -> Inputs:
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


def _masks_call(seed_layers: Callable[..., Any], inputs: Inputs) -> Plain:
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


def _all_differ(masks: Any) -> bool:
    """Whether no two are the same."""
    return not any(np.array_equal(a, b) for a, b in itertools.combinations(masks, 2))


def _apart_along(masks: Any, axis: int) -> bool:
    """Whether no two masks are the same that differ only in their place on this axis."""
    alone = np.moveaxis(masks, axis, -2)
    return all(map(_all_differ, alone.reshape(-1, *alone.shape[-2:])))


def _states_meet(states: Any, draws: int) -> bool:
    """Whether two states of a list reach the same numbers within some draws."""
    seen = sorted((int(key) % _KEY, int(count) % _KEY) for key, count in states)
    return any(
        key == next_key and next_count - count < draws
        for (key, count), (next_key, next_count) in itertools.pairwise(seen)
    )


def _masks_read(given: Inputs, outputs: Plain) -> Plain:
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
        "all": _all_differ(first[:, once].reshape(-1, _UNITS))
        and not _states_meet(states, _MOST_DRAWS),
        "first draws": not _states_meet(states, 1),
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
    direction="Three of these numbers must go into the state's first number. Keras itself counts "
    "the fourth in the second number, from where you start it.",
    inputs=_masks_inputs,
    call=_masks_call,
    read=_masks_read,
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
            "replicas drop the same units. Which number does a replica know that the others do not "
            "have?"
        ),
        Observed(
            "depends_on_history",
            lambda given, out: out["replicas"] and out["again"] and not out["resumed"],
        ).feedback(
            "You computed the new state from the state before. A run that resumes at this step has "
            "a different state before, and draws different masks. What does a resumed run know for "
            "certain?"
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
            "are neighbours. Keras adds 1 to the second number after each draw, and soon reaches a "
            "neighbour's. What should be in the second number when a step begins?"
        ),
        Observed("collides", _collides).feedback(
            "You combined the numbers so that two of them give the same state: 1 + 0 = 0 + 1. A "
            "mask of one step then comes again in a different place. Which function keeps the "
            "numbers apart?"
        ),
    ),
)


# --- expectations

# The cases in the learner's words, and what is right; `_pair_of` makes the runs.
_CASES = {
    "again": ("the same run again", "bitwise"),
    "again_with_dropout": ("the same run again, with dropout", "bitwise"),
    "resumed_in_place": ("resumed, with its place in the data", "bitwise"),
    "more_replicas": ("a different number of replicas", "close"),
    "resumed_on_more_replicas": ("resumed on a different number of replicas", "close"),
    "more_replicas_with_dropout": ("a different number of replicas, with dropout", "close"),
    "resumed_without_place": ("resumed without its place in the data", "different"),
    "different_seed": ("a different seed", "different"),
    "no_seed": ("no seed in either", "different"),
}


def _expect_inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    pairs = [{"case": case, "runs": _pair_of(case, draw)} for case in _CASES]
    return {"pairs": [pairs[int(place)] for place in draw.permutation(len(pairs))]}


def _pair_of(case: str, draw: np.random.Generator) -> list[dict[str, Any]]:
    number, other = (int(seed) for seed in draw.choice(np.arange(1, 100), size=2, replace=False))
    few, many = (int(count) for count in draw.choice([1, 2, 4, 8], size=2, replace=False))
    rate = float(draw.choice([0.1, 0.2, 0.5]))
    first = {"seed": number, "replicas": few, "dropout": 0.0, "resumed": "no"}
    changes: dict[str, dict[str, Any]] = {
        "again": {},
        "again_with_dropout": {"dropout": rate},
        "resumed_in_place": {"resumed": "with place"},
        "more_replicas": {"replicas": many},
        "resumed_on_more_replicas": {"replicas": many, "resumed": "with place"},
        "more_replicas_with_dropout": {"replicas": many, "dropout": rate},
        "resumed_without_place": {"resumed": "without place"},
        "different_seed": {"seed": other},
        "no_seed": {"seed": None},
    }
    second = changes[case]
    # Both train the same model. In the last case neither run has a seed.
    shared = {key: second[key] for key in ("dropout",) if key in second}
    pair = [{**first, **(second if case == "no_seed" else shared)}, {**first, **second}]
    return pair if draw.random() < 0.5 else pair[::-1]


def _expect_call(expect: Callable[..., Any], inputs: Inputs) -> Plain:
    return {pair["case"]: expect(*(dict(run) for run in pair["runs"])) for pair in inputs["pairs"]}


def _expect_reference(given: Inputs, **answers: str) -> Plain:
    return {case: answer for case, (_, answer) in _CASES.items()} | answers


EXPECTATIONS = Check(
    name="expectations",
    function="expect",
    title="What can be identical, close, or different",
    question="What do the two runs draw differently, and what do they compute in a different "
    "order?",
    direction="Separate two causes: different random numbers or data, and the same sums in a "
    "different order.",
    cost=Cost.PURE,
    inputs=_expect_inputs,
    call=_expect_call,
    reference=_expect_reference,
    criteria=(
        Gate(
            Holds(
                "the answer depends on the runs",
                lambda given, out: len({str(answer) for answer in out.values()}) > 1,
                lambda given, out: (
                    "your function returned None: is there a `return`?"
                    if None in out.values()
                    else "your function gives the same answer to every pair"
                ),
            )
        ),
        *(Equal(case, label, points=0.5) for case, (label, _) in _CASES.items()),
    ),
    hint='First return "different" where a seed or the place in the data is not shared. Then the '
    'same number of replicas is "bitwise", and a different number is "close". Dropout changes '
    "nothing.",
    revisit='"What can be equal" in lesson 06',
    mistakes=(
        Fault("expects_bitwise_across_n", more_replicas="bitwise").feedback(
            "You expect identical weights from different numbers of replicas. They would need the "
            "same sums in the same order. What happens to a float after each addition?"
        ),
        Fault("different_across_n", more_replicas="different").feedback(
            "You expect different weights from different numbers of replicas, without dropout. But "
            "both runs add the same gradients. What is the only thing that their order changes?"
        ),
        Fault("dropout_different_across_n", more_replicas_with_dropout="different").feedback(
            "You expect different weights from different numbers of replicas with dropout. That "
            "would be so if each replica drew a mask of its own. Under `dl.distribute`, from which "
            "mask does a replica take the rows of its examples?"
        ),
        Fault("none_is_a_seed", no_seed="bitwise")
        .or_with(no_seed="close")
        .feedback(
            "You treat two runs without a seed like two runs with the same seed. In Python, None "
            "equals None. But where does a stream begin if you set no seed?"
        ),
        Fault("place_ignored", resumed_without_place="bitwise")
        .or_with(resumed_without_place="close")
        .feedback(
            "You expect a run that lost its place in the data to end like one that did not. It "
            "begins the epoch again. Which examples does it see twice?"
        ),
    ),
)


CHECKS = (EQUAL_RUNS, REPLICA_MASKS, EXPECTATIONS)
