"""A check of lesson 06: the same run twice, whatever was drawn before it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.grading.boundary import to_plain
from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_true, same_plain

_EXAMPLES = 16


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    seeds = draw.choice(1000, size=5, replace=False)
    return {
        "seed": int(seeds[0]),
        "other seed": int(seeds[1]),
        "before": [int(number) for number in seeds[2:]],
        "x": draw.normal(size=(_EXAMPLES, 4)).astype(np.float32),
        "y": draw.integers(0, 3, size=_EXAMPLES).astype(np.int32),
    }


def _call(train_once: Callable[..., Any], inputs: Inputs) -> Plain:
    seeds = (inputs["seed"], inputs["seed"], inputs["other seed"])
    runs = zip(("first", "again", "other"), seeds, inputs["before"], strict=True)
    return {name: _run(train_once, seed, before, inputs) for name, seed, before in runs}


def _run(train_once: Callable[..., Any], seed: int, before: int, inputs: Inputs) -> Plain:
    """One run, after other numbers were drawn; what it drew, and where it left the streams."""
    import keras
    import tensorflow as tf

    drawn: dict[str, Any] = {"weights": None, "noise": None, "order": None}

    def build() -> Any:
        layers = [keras.layers.Dense(4, "relu"), keras.layers.Dropout(0.5), keras.layers.Dense(3)]
        model = keras.Sequential([keras.Input((4,)), *layers])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        # Eagerly, as four small steps are taken in less time than one is compiled.
        model.compile(keras.optimizers.SGD(0.1), loss=loss, run_eagerly=True)
        drawn["weights"] = [np.array(weight) for weight in model.get_weights()]
        return model

    def make_data() -> Any:
        drawn["noise"] = np.random.normal(size=inputs["x"].shape).astype(np.float32)
        numbers = tf.data.Dataset.range(_EXAMPLES)
        shuffled = numbers.shuffle(_EXAMPLES, reshuffle_each_iteration=False)
        order = drawn["order"] = np.array(list(shuffled.as_numpy_iterator()))
        x = (inputs["x"] + 0.1 * drawn["noise"])[order]
        return tf.data.Dataset.from_tensor_slices((x, inputs["y"][order])).batch(8)

    keras.utils.set_random_seed(before)
    trained = to_plain(train_once(seed, build, make_data), at="the answer of `train_once`")
    streams = {
        "python": random.random(),
        "numpy": float(np.random.rand()),
        "tensorflow": float(tf.random.uniform(())),
    }
    return {**drawn, "trained": trained, "streams": streams}


def _twice(outputs: Plain, name: str, *, atol: float = 0.0) -> bool:
    """Whether both runs with the same seed have it, and have the same."""
    first, again = outputs["first"][name], outputs["again"][name]
    return first is not None and same_plain(first, again, atol=atol)


def _judge(_: Inputs, outputs: Plain) -> Verdict:
    first, other = outputs["first"], outputs["other"]
    same = [
        expect_true(
            "the same initial weights, twice",
            _twice(outputs, "weights"),
            message="the two runs begin with other weights",
        ),
        expect_true(
            "the same noise from np.random, twice",
            _twice(outputs, "noise"),
            message="the two runs add other noise to the images",
        ),
        expect_true(
            "the same order from tf.data, twice",
            _twice(outputs, "order"),
            message="the two runs see the examples in another order",
        ),
        expect_true(
            "the same trained weights, twice",
            # On a GPU bits may need op determinism.
            _twice(outputs, "trained", atol=1e-6) and _are_of_model(first),
            message=_of_trained(first),
            weight=2,
        ),
    ]
    if not all(criterion.passed for criterion in same):
        return Verdict.of(*same)  # what never changes is the same as well: ask only now
    return Verdict.of(
        *same,
        expect_true(
            "the weights come back trained",
            not same_plain(first["weights"], first["trained"]),
            message="return model.get_weights() after fit",
        ),
        expect_true(
            "another seed, another run",
            not any(same_plain(first[name], other[name]) for name in ("weights", "order")),
            message="the run is the same whatever seed it is given",
        ),
    )


def _of_trained(run: Plain) -> str:
    if run["trained"] is None:
        return "your function returned None: is there a `return`?"
    if not _are_of_model(run):
        return "return model.get_weights() after fit"
    return "the two runs end with other weights"


def _are_of_model(run: Plain) -> bool:
    """Whether what came back are weights as the model has them."""
    weights, trained = run["weights"], run["trained"]
    if weights is None or not isinstance(trained, list):
        return False
    return list(map(np.shape, weights)) == list(map(np.shape, trained))


def _seeded(outputs: Plain, stream: str) -> bool:
    """Whether a stream was left at the same place by two runs that began at different ones."""
    first, again = outputs["first"], outputs["again"]
    return bool(first["streams"][stream] == again["streams"][stream])


def _only(stream: str) -> Callable[[Inputs, Plain], bool]:
    streams = ("python", "numpy", "tensorflow")
    return lambda _, out: [s for s in streams if _seeded(out, s)] == [stream]


EQUAL_RUNS = Check(
    name="equal_runs",
    function="train_once",
    title="Two runs, equal in every bit",
    points=3,
    inputs=_inputs,
    call=_call,
    judge=_judge,
    hint="One line seeds all three streams. It must stand before anything is drawn: who draws "
    "first, `fit`, `make_data` or `build`?",
    revisit="Seed before you build",
    mistakes=(
        Mistake(
            "seeded_after_build",
            "The weights were drawn when the model was built, and the seed came after that. It "
            "must be the first thing in a run.",
            when=lambda _, out: not _twice(out, "weights") and _seeded(out, "python"),
        ),
        Mistake(
            "python_seed_only",
            "Python's stream is seeded, which Keras takes its weights from. NumPy and TensorFlow "
            "have streams of their own.",
            when=_only("python"),
        ),
        Mistake(
            "tensorflow_seed_only",
            "TensorFlow's stream is seeded, which shuffles the data. Keras takes its weights from "
            "Python's stream, and NumPy has one too.",
            when=_only("tensorflow"),
        ),
        Mistake(
            "seeded_after_data",
            "All streams are seeded, but the data had been made by then, with its noise and its "
            "order.",
            when=lambda _, out: not _twice(out, "order") and _seeded(out, "tensorflow"),
        ),
        Mistake(
            "stream_left_out",
            "There are three streams: Python's, NumPy's and TensorFlow's. At least one is not "
            "seeded.",
            when=lambda _, out: 0 < sum(_seeded(out, s) for s in out["first"]["streams"]) < 3,
        ),
        Mistake(
            "same_for_every_seed",
            "Both runs are equal, and so is one with another seed: use the `seed` you are given.",
            when=lambda _, out: same_plain(out["first"], out["other"]),
        ),
    ),
)
