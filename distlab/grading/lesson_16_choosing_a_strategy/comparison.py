"""One check of lesson 16: train a model under each strategy and compare it with one device's.

Some of its models are not equal under every strategy, and one of these has the same losses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_equal

# Each draw's model, and the replicas of each strategy.
_DRAWS: tuple[tuple[str, dict[str, int]], ...] = (
    ("plain", {"mirrored": 2, "central_storage": 3}),
    ("watches", {"one_device": 1, "mirrored": 2}),
    ("centres", {"mirrored": 4}),
)
_EXAMPLES, _BATCH = 23, 8  # the last batch has 7, which no strategy shares equally
_RATE, _SMALL_RATE = 0.2, 1e-3  # with the small one even what is wrong ends near one device
_CLEARLY_APART = 1e-5


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
        model = _model(inputs["model"], inputs["kernel"])
        built.append((tf.distribute.get_strategy().num_replicas_in_sync, model))
        return model

    data = tf.data.Dataset.from_tensor_slices((inputs["x"], inputs["y"])).batch(_BATCH)
    strategies = {name: _strategy(name, count) for name, count in inputs["strategies"].items()}
    return {
        "table": compare_strategies(build, data, strategies),
        "replicas": [replicas for replicas, _ in built],
        "apart": [_apart(model, built[0][1]) for _, model in built],
    }


def _strategy(kind: str, replicas: int) -> Any:
    from distlab.devices import split_devices
    from distlab.grading.replicas import MOST_REPLICAS, mirrored
    from distlab.strategy.making import make_strategy

    if kind == "mirrored":
        return mirrored(replicas)
    return make_strategy(kind, devices=split_devices(MOST_REPLICAS)[:replicas])  # type: ignore[arg-type]


def _model(kind: str, kernel: Any) -> Any:
    """A compiled model, with or without a layer that sees its batch as a whole.

    One that remembers stands between two whose weights come out equal.
    """
    import keras

    class Watches(keras.layers.Layer):  # type: ignore[misc]
        """Remembers the least input of the last batch; no loss and no gradient knows of it."""

        def build(self, shape: Any) -> None:
            self.least = self.add_weight(shape=(), trainable=False, aggregation="mean")

        def call(self, inputs: Any) -> Any:
            self.least.assign(keras.ops.min(inputs))
            return inputs

    class Centres(keras.layers.Layer):  # type: ignore[misc]
        """Subtracts the batch's mean: each replica that of its own share."""

        def call(self, inputs: Any) -> Any:
            return inputs - keras.ops.mean(inputs, axis=0)

    first, last = keras.layers.Dense(2, use_bias=False), keras.layers.Dense(2, use_bias=False)
    layers = {
        "plain": [first],
        "watches": [first, Watches(), last],
        "centres": [Centres(), first],
    }[kind]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile(keras.optimizers.SGD(_SMALL_RATE if kind == "centres" else _RATE), loss="mse")
    first.set_weights([kernel])
    if last.built:
        last.set_weights([np.eye(2)])
    return model


def _apart(model: Any, other: Any) -> float:
    pairs = zip(model.get_weights(), other.get_weights(), strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)


def _right(inputs: Inputs) -> dict[str, bool]:
    """Which strategies give one device's weights: of `watches` and `centres`, none that shares."""
    alike = inputs["model"] == "plain"
    return {name: alike or replicas == 1 for name, replicas in inputs["strategies"].items()}


def _copies(inputs: Inputs) -> dict[str, int]:
    counts = inputs["strategies"].items()
    return {name: replicas if name == "mirrored" else 1 for name, replicas in counts}


def _judge(inputs: Inputs, outputs: Plain) -> Verdict:
    return Verdict.of(
        expect_equal(
            "the weights are one device's",
            yours=_column(outputs, "equal"),
            expected=_right(inputs),
            weight=2,
        ),
        expect_equal(
            "copies of a weight", yours=_column(outputs, "copies"), expected=_copies(inputs)
        ),
    )


def _column(outputs: Plain, of: str) -> Plain:
    """One of the two columns; where there is none, what is in its place."""
    table = outputs["table"]
    if not isinstance(table, dict):
        return table
    return {name: row.get(of, row) if isinstance(row, dict) else row for name, row in table.items()}


def _wrong(inputs: Inputs, outputs: Plain) -> bool:
    return bool(_column(outputs, "equal") != _right(inputs))


def _is_table(outputs: Plain) -> bool:
    table = outputs["table"]
    return isinstance(table, dict) and all(isinstance(row, dict) for row in table.values())


def _shared(outputs: Plain) -> list[float]:
    """How far from one device each model ended that was built on several replicas."""
    pairs = zip(outputs["replicas"], outputs["apart"], strict=True)
    return [apart for replicas, apart in pairs if replicas > 1]


COMPARE = Check(
    name="compare_strategies",
    function="compare_strategies",
    title="The table of strategies for any model",
    points=4,
    inputs=_inputs,
    call=_call,
    judge=_judge,
    hint="First one model without a strategy, by plain fit. Then, for each strategy, "
    "dl.distribute(build, strategy) and the same fit. Compare get_weights() of both, all of "
    "them. Copies are what strategy.experimental_local_results lists.",
    revisit='"Your model under each strategy" in lesson 16',
    mistakes=(
        Mistake(
            "built_outside_scope",
            "Nothing was built on several replicas: build() has to be called in the strategy's "
            "scope, or the model trains on one device whatever the strategy. Of course that is "
            "one device's then. dl.distribute calls build for you, in the scope.",
            when=lambda inputs, out: _is_table(out) and not _shared(out),
        ),
        Mistake(
            "one_model_for_all",
            "A model belongs to the strategy under which it was built. Give dl.distribute the "
            "function `build`, so that each strategy has a model of its own.",
            error="outside the strategy's scope",
        ),
        Mistake(
            "keras_own_fit",
            "Keras's own fit takes the mean of the replicas' means, and the last batch has shares "
            "that are not equal. Train with dl.distribute, which weighs every example alike.",
            when=lambda inputs, out: (
                inputs["model"] == "plain" and max(_shared(out)) > _CLEARLY_APART
            ),
        ),
        Mistake(
            "exact_equality",
            "Two replicas add up in another order, so the last digits differ (by some 1e-7). "
            "Allow for 1e-5.",
            when=lambda inputs, out: inputs["model"] == "plain" and _wrong(inputs, out),
        ),
        Mistake(
            "compares_losses_only",
            "The losses agree here, and so do the weights that are trained. One weight that is not "
            "trained differs, and would be saved so. Compare all of get_weights(), each by its "
            "absolute difference.",
            when=lambda inputs, out: inputs["model"] == "watches" and _wrong(inputs, out),
        ),
        Mistake(
            "too_tolerant",
            "This model ends near one device, and not on it: it is apart by more than 1e-5, and "
            "more steps would bring it further.",
            when=lambda inputs, out: inputs["model"] == "centres" and _wrong(inputs, out),
        ),
        Mistake(
            "never_differs",
            "Your table finds every model equal, and some are not. Compare with a model of its "
            "own, which was trained without a strategy.",
            when=lambda inputs, out: (
                _is_table(out)
                and _wrong(inputs, out)
                and set(_column(out, "equal").values()) == {True}
            ),
        ),
        Mistake(
            "counts_the_name",
            "To Keras a variable is one, however many copies it has. They are in its `.value`: "
            "strategy.experimental_local_results(weight.value).",
            when=lambda inputs, out: (
                not _wrong(inputs, out) and set(_column(out, "copies").values()) == {1}
            ),
        ),
        Mistake(
            "counts_replicas",
            "CentralStorage has several replicas and one copy. Count the copies of a weight, not "
            "the replicas: strategy.experimental_local_results(weight.value).",
            when=lambda inputs, out: (
                not _wrong(inputs, out) and _column(out, "copies") == dict(inputs["strategies"])
            ),
        ),
    ),
)
