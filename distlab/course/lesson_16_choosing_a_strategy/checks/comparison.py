"""One check of lesson 16: let Keras's `fit` train a model under each strategy, and compare it.

Some of its models differ from one device's, and one of these has the same losses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.course.checks import Check, Cost, Inputs, Plain
from distlab.course.checks.criteria import Equal, Form, Then
from distlab.course.checks.mistakes import Fault, Observed

# Each draw's model, and the replicas of each strategy.
_DRAWS: tuple[tuple[str, dict[str, int]], ...] = (
    ("plain", {"mirrored": 2, "central_storage": 3}),
    ("watches", {"one_device": 1, "mirrored": 2}),
    ("centres", {"mirrored": 4}),
)
_EXAMPLES, _BATCH = 36, 12  # which 2, 3 and 4 replicas share equally
_ROUNDED = 1e-6
_RATE, _SMALL_RATE = 0.2, 1e-3  # with the small one even what is wrong ends near one device
# Which weights differ where Keras's `fit` shares, in the model's order; only a kernel is trained.
_APART: dict[str, list[str]] = {
    "plain": [],
    "watches": ["model/watch/seen", "model/second_watch/seen"],
    "centres": ["model/watch/seen", "model/first/kernel"],
}


def _inputs(seed: int) -> Inputs:
    model, strategies = _DRAWS[seed % len(_DRAWS)]
    draw = np.random.default_rng(seed)
    return {
        "model": model,
        "strategies": strategies,
        "x": draw.normal(size=(_EXAMPLES, 4)).astype("float32"),
        "y": draw.normal(size=(_EXAMPLES, 2)).astype("float32"),
        "kernel": draw.normal(size=(4, 2)).astype("float32"),
    }


def _call(compare_strategies: Callable[..., Any], inputs: Inputs) -> Plain:
    import tensorflow as tf

    built: list[tuple[int, Any]] = []

    def build() -> Any:
        model = _compared_model(inputs["model"], inputs["kernel"])
        built.append((tf.distribute.get_strategy().num_replicas_in_sync, model))
        return model

    data = tf.data.Dataset.from_tensor_slices((inputs["x"], inputs["y"])).batch(_BATCH)
    strategies = {name: _strategy_of(name, count) for name, count in inputs["strategies"].items()}
    table = compare_strategies(build, data, strategies)
    # How far from one device the weights are of each model that several replicas built.
    shared = [_apart(model, built[0][1]) for replicas, model in built if replicas > 1]
    return {"table": table, "shared": shared}


def _strategy_of(kind: str, replicas: int) -> Any:
    """Returns a strategy of this kind with so many replicas."""
    from distlab.course.runs.replicas import MOST_REPLICAS, mirrored
    from distlab.devices import split_devices
    from distlab.strategy.factory import make_strategy

    if kind == "mirrored":
        return mirrored(replicas)
    return make_strategy(kind, devices=split_devices(MOST_REPLICAS)[:replicas])  # type: ignore[arg-type]


def _compared_model(kind: str, kernel: Any) -> Any:
    """Returns a compiled model, with or without layers that see their batch as a whole."""
    import keras

    class Watches(keras.layers.Layer):  # type: ignore[misc]
        """Remembers the least input of the last batch; no loss and no gradient knows of it."""

        def __init__(self, name: str, times: float) -> None:
            super().__init__(name=name)
            self.times = times

        def build(self, shape: Any) -> None:
            self.seen = self.add_weight((), name="seen", trainable=False, aggregation="mean")

        def call(self, inputs: Any) -> Any:
            self.seen.assign(self.times * keras.ops.min(inputs))
            return inputs

    class Centres(keras.layers.Layer):  # type: ignore[misc]
        """Subtracts the batch's mean. Each replica subtracts the mean of its own share."""

        def call(self, inputs: Any) -> Any:
            return inputs - keras.ops.mean(inputs, axis=0)

    first, last = (keras.layers.Dense(2, use_bias=False, name=name) for name in ("first", "last"))
    # Their signs make a difference below zero and one above it.
    layers = {
        "plain": [first],
        "watches": [first, Watches("watch", 1.0), last, Watches("second_watch", -10.0)],
        "centres": [Watches("watch", -1e-3), Centres(), first],
    }[kind]
    model = keras.Sequential([keras.Input((4,)), *layers], name="model")
    model.compile(keras.optimizers.SGD(_SMALL_RATE if kind == "centres" else _RATE), loss="mse")
    first.set_weights([kernel])
    if last.built:
        last.set_weights([np.eye(2)])
    return model


def _apart(model: Any, other: Any) -> float:
    pairs = zip(model.weights, other.weights, strict=True)
    return max(float(np.abs(np.subtract(a, b)).max()) for a, b in pairs)


def _read(given: Inputs, outputs: Plain) -> Plain:
    """The two columns of the table, if it is one; where a row lacks an entry, the whole row."""
    table = outputs["table"]
    if not isinstance(table, dict) or not all(isinstance(row, dict) for row in table.values()):
        return {**outputs, "is_table": False}
    columns = {
        column: {name: row.get(column, row) for name, row in table.items()}
        for column in ("differs", "copies")
    }
    return {**outputs, "is_table": True, **columns}


def _reference(given: Inputs, *, counts_replicas: bool = False) -> Plain:
    """The first path that differs under each strategy with several replicas; None under others."""
    strategies, first = given["strategies"], next(iter(_APART[given["model"]]), None)
    copies = {name: n if name == "mirrored" else 1 for name, n in strategies.items()}
    return {
        "differs": {name: first if n > 1 else None for name, n in strategies.items()},
        "copies": strategies if counts_replicas else copies,
        "shared": [1.0 if first else 0.0],
        "is_table": True,
    }


def _names_wrongly(condition: Callable[[Any, list[str]], bool]) -> Callable[[Inputs, Plain], bool]:
    """Whether this holds of a wrong entry of the table and the paths of what differs."""

    def when(given: Inputs, out: Plain) -> bool:
        right, apart = _reference(given)["differs"], _APART[given["model"]]
        wrong = [path for name, path in out["differs"].items() if path != right.get(name)]
        return any(condition(path, apart) for path in wrong)

    return when


COMPARE = Check(
    name="compare_strategies",
    title="The table of strategies for any model",
    question=(
        "With what does your function compare each model, and under which strategy was that model "
        "built?"
    ),
    direction=(
        "Check three things for each strategy: where the model is built, how it is trained, and "
        "which weights you compare."
    ),
    cost=Cost.TENSORFLOW,
    inputs=_inputs,
    call=_call,
    read=_read,
    reference=_reference,
    criteria=(
        Form("a dictionary for each strategy", lambda _, out: out["is_table"], key="table"),
        Equal("differs", "the first weight that differs", points=3),
        Then(Equal("copies", "copies of a weight")),
    ),
    hint="Train one model without a strategy, by plain fit. Then, for each strategy, call build in "
    "strategy.scope(), and the same fit. Go through the weights of both models in "
    "pairs, and take the path of the first pair that np.allclose(a, b, rtol=0, atol=1e-5) refuses. "
    "strategy.experimental_local_results(weight.value) lists the copies.",
    revisit="Your model under each strategy",
    mistakes=(
        Observed(
            "built_outside_scope", lambda _, out: out["is_table"] and not out["shared"]
        ).feedback(
            "You built no model on several replicas. It trains on one device whatever the "
            "strategy, so it always ends with one device's weights. Where must `build` be called?"
        ),
        Observed(
            "by_distribute",
            lambda given, out: bool(_APART[given["model"]]) and max(out["shared"]) < _ROUNDED,
        ).feedback(
            "You trained by `dl.distribute`. There a layer that looks at the whole batch gets the "
            "whole batch, so every model ends with one device's weights and your table has nothing "
            "to find. Whose `fit` does the task ask about?"
        ),
        Observed(
            "exact_equality",
            _names_wrongly(lambda path, apart: path not in apart and str(path).endswith("/kernel")),
        ).feedback(
            "You named a weight that is one device's but for its last digits. Two replicas add up "
            "in a different order, so these differ by some 1e-7. Which difference does the task "
            "allow?"
        ),
        Observed(
            "compares_losses_only",
            _names_wrongly(
                lambda path, apart: path == next((p for p in apart if p.endswith("kernel")), None)
            ),
        ).feedback(
            "You compared a part of what the model keeps. The losses and the trained weights agree "
            "here, but one weight that is not trained differs, and a saved model would have it. "
            "Which attribute has every weight?"
        ),
        Fault("counts_replicas", sees=("differs", "copies"), counts_replicas=True).feedback(
            "You counted the replicas. CentralStorage has several replicas and one copy of each "
            "weight. Which function of a strategy lists the copies themselves?"
        ),
    ),
)
