"""A check of lesson 06: the same run twice, whatever was drawn before it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Cost, Gate, Holds, Inputs, Observed, Plain, Then
from distlab.course.checks.matchers import same_plain
from distlab.course.results.plain_values import to_plain

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


def _read(given: Inputs, outputs: Plain) -> Plain:
    """What two runs with one seed share, and whether a third run, with a different seed, does."""
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


def _same(key: str, what: str, otherwise: str) -> Holds:
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
    direction=(
        "There are three streams: Python's, NumPy's and TensorFlow's. Find out which of your lines "
        "draws from which one."
    ),
    cost=Cost.TENSORFLOW,
    inputs=_inputs,
    call=_call,
    read=_read,
    criteria=(
        Gate(_FITTED),
        _same("weights", "initial weights", "begin with different weights"),
        _same("noise", "noise from np.random", "add different noise to the images"),
        _same("order", "order from tf.data", "see the examples in a different order"),
        _same("trained", "trained weights", "end with different weights"),
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
        Observed("python_seed_only", lambda given, out: out["seeded"] == ["python"]).feedback(
            "You seeded Python's stream only. Keras's weights are the same twice, but the noise "
            "and the order of the data are not. From which streams do `np.random` and `shuffle` "
            "draw?"
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
            "You made every run the same, whatever seed it is given. So five seeds would give "
            "one result five times. Where does your function use `seed`?"
        ),
    ),
)
