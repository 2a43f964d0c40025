"""A check of lesson 07: a loop of one's own in float16, with a fixed scale and SGD."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distlab.grading.checks import Check, Inputs, Mistake, Plain, Verdict
from distlab.grading.comparing import expect_close
from distlab.grading.replicas import MOST_REPLICAS, mirrored
from distlab.grading.shared_out import SEEN, Counter, expect_shared, not_shared

# So small that a gradient is about 2^-27, which float16 rounds to 0. The rate makes up for it.
_SIZE, _BATCH, _BATCHES, _FEATURES = 2.0**-13, 16, 3, 3
_RATE, _SCALE = 2.0**24, 2.0**15
_IN_PLAIN_SIGHT = 1e8  # losses are shown times this


def _inputs(seed: int) -> Inputs:
    draw = np.random.default_rng(seed)
    examples = _BATCH * _BATCHES
    x = draw.uniform(0.5, 1.0, size=(examples, _FEATURES)) * _SIZE
    x *= draw.choice([-1, 1], size=x.shape)
    x = x.astype("float16").astype("float32")
    wanted = draw.uniform(0.5, 1.0, size=_FEATURES) * draw.choice([-1, 1], size=_FEATURES)
    return {"x": x, "y": (x @ wanted).astype("float32")[:, None]}


def _call(train: Callable[..., Any], inputs: Inputs) -> Plain:
    import keras
    import tensorflow as tf

    from distlab.precision import mixed_precision

    strategy = mirrored(MOST_REPLICAS)
    with mixed_precision("mixed_float16"), strategy.scope():
        dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        as_float32 = keras.layers.Activation("linear", dtype="float32")
        counter = Counter(strategy)
        layers = [keras.Input((_FEATURES,)), counter.layer(), dense, as_float32]
        model = keras.Sequential(layers)
        optimizer = keras.optimizers.SGD(_RATE)
        optimizer.build(model.trainable_variables)
    data = tf.data.Dataset.from_tensor_slices((inputs["x"], inputs["y"])).batch(_BATCH)
    losses = train(strategy, model, optimizer, data, _SCALE)
    kernel = dense.kernel.numpy().ravel()
    return {"kernel": kernel, "losses": losses, SEEN: counter.on_replicas()}


def _results(inputs: Inputs, *, factor: float = 1.0) -> Plain:
    """Linear regression by SGD in float64, the gradient times a factor."""
    kernel, losses = np.zeros((_FEATURES, 1)), []
    for start in range(0, len(inputs["x"]), _BATCH):
        x, y = (inputs[name][start : start + _BATCH].astype("float64") for name in ("x", "y"))
        error = x @ kernel - y
        losses.append(float(np.mean(error**2)))
        kernel = kernel - _RATE * factor * 2 * x.T @ error / _BATCH
    return {"kernel": kernel.ravel(), "losses": losses}


def _judge(inputs: Inputs, outputs: Plain) -> Verdict:
    right = _results(inputs)
    weights = expect_close(
        "the weights, float32's on one device",
        yours=outputs["kernel"],
        expected=right["kernel"],
        atol=5e-3,
        weight=2,
    )
    if not weights.passed:  # losses of other weights are no losses to compare
        return Verdict.of(weights)
    yours = outputs["losses"]
    return Verdict.of(
        weights,
        expect_close(
            f"the losses, times {_IN_PLAIN_SIGHT:g}",
            yours=None if yours is None else np.multiply(yours, _IN_PLAIN_SIGHT),
            expected=np.multiply(right["losses"], _IN_PLAIN_SIGHT),
            atol=0.03,
        ),
        expect_shared(outputs, examples=_BATCH * _BATCHES),
    )


def _exploded(inputs: Inputs, outputs: Plain) -> bool:
    return not (np.abs(outputs["kernel"]) < 100).all()  # of weights below 1; NaN as well


def _losses_are(inputs: Inputs, outputs: Plain, factor: float) -> bool:
    expected = np.multiply(_results(inputs)["losses"], factor)
    return np.allclose(outputs["losses"], expected, rtol=0.05, atol=0)


TRAIN = Check(
    name="train_float16",
    function="train",
    title="A loop in float16, with SGD on four replicas",
    points=3,
    inputs=_inputs,
    call=_call,
    judge=_judge,
    hint="Multiply the loss by `scale` inside the tape, divide each gradient by it after "
    "tape.gradient, and return the loss from before the multiplication.",
    revisit="Scale the loss",
    mistakes=(
        Mistake(
            "scaled_outside_tape",
            "A gradient is None: the tape has not seen how what you asked it for came about. "
            "Multiply by `scale` inside the `with`.",
            error="'NoneType' and|No gradients provided|NoneType.* to (a )?[Tt]ensor",
        ),
        Mistake(
            "never_scaled",
            "The weights are where they were: every gradient was 0 in float16. Multiply the loss "
            "by `scale` before you ask the tape.",
            when=lambda inputs, outputs: not outputs["kernel"].any(),
        ),
        Mistake(
            "never_unscaled",
            "The weights exploded: the gradients went into the optimizer as large as the scaled "
            "loss made them. Divide them by `scale`.",
            when=_exploded,
        ),
        Mistake(
            "not_divided",
            "Steps four times too long: each replica takes the mean of its own examples, and four "
            "means are added. Divide by the global batch.",
            yields=lambda inputs: {"kernel": _results(inputs, factor=4.0)["kernel"]},
            atol=5e-3,
        ),
        Mistake(
            "divided_twice",
            "Steps four times too short: something divides by the number of replicas once more.",
            yields=lambda inputs: {"kernel": _results(inputs, factor=0.25)["kernel"]},
            atol=5e-3,
        ),
        Mistake(
            "scaled_loss_logged",
            "The weights are right. The losses you return are the scaled ones, 32768 times too "
            "large.",
            when=lambda inputs, outputs: _losses_are(inputs, outputs, _SCALE),
        ),
        Mistake(
            "one_replica_logged",
            "The weights are right. The losses you return are a quarter of those of the batch: "
            "each replica has a part, and the parts are added.",
            when=lambda inputs, outputs: _losses_are(inputs, outputs, 1 / MOST_REPLICAS),
        ),
        not_shared(lambda inputs: len(inputs["x"])),
    ),
)
